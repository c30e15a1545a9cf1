"""Follows an engine's post-processing of weights by the elements' numbers in a second model.

If an engine packs, pads or permutes parameters after their load, its loader alone does not show
where an element ends. So a fresh instance of the model, beside the live one, is loaded with tensors
whose elements are their own numbers, and goes through the engine's post-processing; its memory then
shows each element's origin. Digits are written as bits of the tensors' own types, one digit a run
and each run in a new instance. A last run over random bits must match the map's prediction, bit for
bit.

The engine may start threads of its own. The cost is three loads of a new instance, and the followed
tensors' memory four times. Failures are `Lost`, with the reason.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from deltawire.engine._geometry import INTEGERS, Box, boxes_of
from deltawire.engine._model import Storage, live_storages
from deltawire.engine._outcome import some
from deltawire.engine._trace import Tensors

#: A map of one tensor that needs more boxes is a shuffle, not a layout.
_MOST_BOXES = 1 << 16
#: With only one digit, an element of that value would look like a constant.
_FEWEST_RUNS = 2


class Instance(NamedTuple):
    """A new model of the engine's, in its own memory, with nothing loaded yet."""

    model: torch.nn.Module
    #: Takes (name, tensor) pairs, as `load` of `attach` does.
    load: Callable[[Iterable], object]
    #: The engine's post-processing after the load.
    process: Callable[[], object]


class Lost(Exception):
    """The places of the elements cannot be found; the text has the reason."""


class _Numbered:
    """The followed tensors, whose elements are numbered from 1 in one sequence."""

    def __init__(self, tensors: Tensors, chosen: Iterable[int]):
        self.tensors = {i: tensors[i] for i in sorted(chosen)}
        refused = [name for name, dtype, _ in self.tensors.values()
                   if dtype == torch.bool or dtype.itemsize not in INTEGERS]
        if refused:
            raise Lost(f"no numbers can be written in elements of {some(refused)}")
        self.order = list(self.tensors)
        self.first: list[int] = []
        self.total = 0
        for _, _, shape in self.tensors.values():
            self.first.append(self.total)
            self.total += torch.Size(shape).numel()
        widths = {dtype.itemsize for _, dtype, _ in self.tensors.values()}
        self.bits = 8 if 1 in widths else 16
        self.runs = max(_FEWEST_RUNS, -(-self.total.bit_length() // self.bits))

    def _pair(self, i: int, bits: torch.Tensor) -> tuple[str, torch.Tensor]:
        name, dtype, shape = self.tensors[i]
        return name, bits.view(dtype).view(shape)

    def numbers(self, run: int) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields the pairs of a run: this digit of every element's number."""
        for i, first in zip(self.order, self.first):
            _, dtype, shape = self.tensors[i]
            number = torch.arange(first + 1, first + 1 + torch.Size(shape).numel())
            digit = (number >> (self.bits * run)) & ((1 << self.bits) - 1)
            # The narrowest type keeps only the lower bits, and has no others.
            yield self._pair(i, digit.to(INTEGERS[dtype.itemsize]))

    def random_bits(self, i: int) -> torch.Tensor:
        _, dtype, shape = self.tensors[i]
        count = torch.Size(shape).numel()
        generator = torch.Generator().manual_seed(i)
        words = torch.empty(-(-count * dtype.itemsize // 8), dtype=torch.int64)
        words.random_(-(1 << 63), (1 << 63) - 1, generator=generator)
        return words.view(INTEGERS[dtype.itemsize])[:count]

    def random(self) -> Iterable[tuple[str, torch.Tensor]]:
        for i in self.order:
            yield self._pair(i, self.random_bits(i).clone())  # a loader may change its arguments

    def number(self, digits: list[torch.Tensor], random: torch.Tensor) -> torch.Tensor:
        """Returns the number of each element, or 0 where no run has made a difference."""
        number = torch.zeros((), dtype=torch.int64)
        constant = random == digits[0]
        for run, digit in enumerate(digits):
            constant &= digit == digits[0]
            number = number | ((digit.to(torch.int64) & ((1 << self.bits) - 1))
                               << (self.bits * run))
        return number.masked_fill_(constant, 0)


#: An instance's memory by the name of the first tensor in it, without parts that are all zeros.
_Memory = dict[str, tuple[Storage, torch.Tensor]]


def _made(second: Callable[[], Instance], pairs: Iterable[tuple[str, torch.Tensor]]) -> _Memory:
    """Returns a new instance's memory after it has loaded these pairs."""
    instance = second()
    with torch.no_grad():
        for _, parameter in instance.model.named_parameters():
            parameter.data.zero_()  # unloaded memory must be the same each time
        try:
            instance.load(pairs)
            instance.process()
        except Exception as error:  # pylint: disable=broad-except  # foreign code
            raise Lost(f"a second instance of the model failed over numbers: "
                       f"{str(error) or repr(error)}") from error
    memory: _Memory = {}
    for storage in live_storages(instance.model)[0]:
        width = storage.itemsize
        if width not in INTEGERS or storage.keeper.device.type != "cpu":
            continue
        bits = torch.empty(0, dtype=INTEGERS[width]).set_(
            storage.keeper.untyped_storage(), 0, (storage.nbytes // width,), (1,))
        if bool(bits.any()):
            memory[storage.names[0]] = storage, bits
    return memory


def _affected(runs: list[_Memory]) -> Iterable[tuple[str, Storage, list[torch.Tensor]]]:
    """Yields the memory in which the runs have left different bits, with its bits after each
    run."""
    for name in dict.fromkeys(name for memory in runs for name in memory):
        storage, some_bits = next(memory[name] for memory in runs if name in memory)
        bits = [memory[name][1] if name in memory else torch.zeros_like(some_bits)
                for memory in runs]
        if any(b.shape != some_bits.shape or b.dtype != some_bits.dtype for b in bits):
            raise Lost(f"{name} has another shape after each load")
        if not all(torch.equal(b, bits[0]) for b in bits[1:]):
            yield name, storage, bits


def _place(name: str, storage: Storage, live: list[Storage]) -> int:
    """Returns the index of the live storage that corresponds to another instance's storage."""
    for index, mine in enumerate(live):
        if name in mine.names:
            view = next(v for v in storage.views if v[0] == name)
            if mine.nbytes == storage.nbytes and view in mine.views:
                return index
    raise Lost(f"{name} has another shape in a second instance of the model than here")


def _boxes_in(name: str, index: int, width: int, numbered: _Numbered, bits: list[torch.Tensor]
              ) -> list[Box]:
    """Returns one storage's content as boxes of the tensors. Raises Lost if it is not a list of
    boxes."""
    *digits, random = bits
    number = numbered.number(digits, random)
    computed = Lost(f"{name} is computed from the checkpoint after the load, not moved")
    if bool(((number < 0) | (number > numbered.total)).any()):
        raise computed
    there = torch.nonzero(number).flatten()
    still = number == 0
    if any(not torch.equal(random[still], digit[still]) for digit in digits):
        raise computed
    elements = number[there] - 1
    owner = torch.bucketize(elements, torch.tensor(numbered.first), right=True) - 1
    order = torch.argsort(owner, stable=True)
    boxes: list[Box] = []
    at = 0
    for k, count in enumerate(torch.bincount(owner, minlength=len(numbered.first)).tolist()):
        mine, at = order[at:at + count], at + count
        if not count:
            continue
        tensor = numbered.order[k]
        source, places = elements[mine] - numbered.first[k], there[mine]
        if numbered.tensors[tensor][1].itemsize != width or not torch.equal(
                numbered.random_bits(tensor)[source], random[places]):
            raise computed
        found = boxes_of(source, places, _MOST_BOXES)
        if found is None:
            raise Lost(f"{name} holds {numbered.tensors[tensor][0]} in no order that boxes have")
        boxes += [Box(tensor, index, *box) for box in found]
    return boxes


def follow(second: Callable[[], Instance], tensors: Tensors, chosen: Iterable[int],
           live: list[Storage]) -> list[Box]:
    """Returns the boxes of the `chosen` tensors in `live` memory, after the engine's
    post-processing. Raises Lost if one of them cannot be found, or is computed with."""
    numbered = _Numbered(tensors, chosen)
    runs = [_made(second, numbered.numbers(run)) for run in range(numbered.runs)]
    runs.append(_made(second, numbered.random()))
    boxes: list[Box] = []
    for name, storage, bits in _affected(runs):
        boxes += _boxes_in(name, _place(name, storage, live), storage.itemsize, numbered, bits)
    nowhere = {i for i, (_, _, shape) in numbered.tensors.items() if torch.Size(shape).numel()} - {
        box.tensor for box in boxes}
    if nowhere:
        raise Lost("the engine keeps them where deltawire cannot see them after its load, or not "
                   f"at all: {some(tensors[t][0] for t in sorted(nowhere))}")
    return boxes
