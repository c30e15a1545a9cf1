"""Follows a loader's moves of tensors by their elements' numbers, where shapes do not show them.

The loader runs over tensors whose elements are their own numbers, counted from 1 and written as the
bits of the tensors' own type, 16-bit elements over two runs; its writes go to shadow memory. The
shadow then shows where each element came from; 0 is padding. A last run over random bits must match
the map's prediction, bit for bit, so that a loader that computes is not mistaken for one that
moves.

The tensors have their true types and shapes, so a loader follows the same branches as for the
weights. Live memory is neither read nor written. The cost is three runs of the loader over these
tensors, and at most some 40 bytes of memory for each of their elements, so the caller passes one
group of tensors at a time.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from deltawire.engine._geometry import INTEGERS, Box, Region, boxes_of, first_run, overlap
from deltawire.engine._model import Storage, Unchanged
from deltawire.engine._shadow import Shadow, load_beside
from deltawire.engine._trace import Group, Tensors

#: Larger groups are not followed, because they would need more than a gigabyte or two.
_MOST_ELEMENTS = 1 << 25
#: A map that needs more boxes is a shuffle, not a layout.
_MOST_BOXES = 1 << 16
#: Numbers are written in steps of this many.
_STEP = 1 << 20
#: The first elements in which a row's length is searched.
_LOOK = 1 << 12


class _Group:
    """Tensors whose elements are numbered in one sequence, and the encoding of numbers in their
    bits."""

    def __init__(self, tensors: Tensors, group: Group):
        self.tensors = {i: tensors[i] for i in group.tensors}
        self.first: dict[int, int] = {}
        total = 0
        for i, (_, _, shape) in self.tensors.items():
            self.first[i] = total
            total += torch.Size(shape).numel()
        self.total = total
        widths = {dtype.itemsize for _, dtype, _ in self.tensors.values()}
        self.width = widths.pop() if len(widths) == 1 else 0
        self.runs = -(-max(1, total.bit_length()) // (8 * self.width)) if self.width else 0

    def can_be_numbered(self) -> bool:
        return (self.width in INTEGERS and 0 < self.total <= _MOST_ELEMENTS
                and all(dtype != torch.bool for _, dtype, _ in self.tensors.values()))

    def owner(self, element: torch.Tensor) -> torch.Tensor:
        """Returns the tensors that contain these elements."""
        return torch.bucketize(element, torch.tensor(list(self.first.values())), right=True) - 1

    def _pairs(self, fill: Callable[[torch.Tensor, int], None]) -> dict:
        pairs = {}
        for i, (name, dtype, shape) in self.tensors.items():
            bits = torch.empty(torch.Size(shape).numel(), dtype=INTEGERS[self.width])
            fill(bits, self.first[i])
            pairs[i] = name, bits.view(dtype).view(shape)
        return pairs

    def numbers(self, run: int) -> dict:
        """Returns the pairs of a run: this digit of every element's number."""
        base, shift = 1 << (8 * self.width), 8 * self.width * run

        def fill(bits: torch.Tensor, first: int) -> None:
            at = 0
            while at < len(bits):
                number = first + at + 1
                # A higher digit of wide elements stays constant for long.
                step = 1 << shift if shift >= 16 else _STEP
                n = min(step - number % step, len(bits) - at)
                if shift >= 16:
                    digit = (number >> shift) % base
                    bits[at:at + n].fill_(digit - base if 2 * digit >= base else digit)
                else:
                    # Only the lower bits survive the conversion.
                    bits[at:at + n].copy_(torch.arange(number, number + n) >> shift)
                at += n
        return self._pairs(fill)

    def random(self) -> dict:
        generator = torch.Generator().manual_seed(self.total)

        def fill(bits: torch.Tensor, first: int) -> None:
            del first
            words = torch.empty(-(-bits.nbytes // 8), dtype=torch.int64)
            words.random_(-(1 << 63), (1 << 63) - 1, generator=generator)
            bits.copy_(words.view(bits.dtype)[:len(bits)])
        return self._pairs(fill)


def _number(digits: list[torch.Tensor], width: int) -> torch.Tensor:
    """Returns the numbers with these digits, lowest first."""
    number = torch.zeros((), dtype=torch.int64)
    for run, digit in enumerate(digits):
        digit = digit.to(torch.int64)
        if width < 8:
            digit &= (1 << (8 * width)) - 1
        number = number | (digit << (8 * width * run))
    return number


def _rows(region: Region, digits: list[torch.Tensor], group: _Group) -> tuple | None:
    """Returns (numbers, places, inner dimensions) of the rows' first elements, if the region
    consists of rows of one length and step, and of padding, as far as the lowest digit shows; else
    None."""
    count, stride = region.counts[-1], region.strides[-1]
    look = min(count, _LOOK)
    while True:
        row = _number([d.reshape(-1, count)[0, :look] for d in digits], group.width)
        run, step, _ = first_run(row, torch.arange(look))
        if run < look or look == count:
            break
        look = min(count, look * 16)
    if run == 1 or count % run:
        return None
    digits = [d.reshape(-1, run) for d in digits]
    # Use integers as wide as the digits, so that little memory is read and made.
    moved = torch.tensor(step).to(digits[0].dtype)
    alike = (digits[0][:, 1:] - digits[0][:, :-1] == moved).all(dim=1)
    number = _number([d[:, 0] for d in digits], group.width)
    if not bool((alike | (digits[0] == 0).all(dim=1)).all()):
        return None
    # A row must not span several tensors.
    last = (number + (run - 1) * step).clamp(max=group.total)
    if bool((group.owner(number - 1) != group.owner(last - 1)).logical_and(number > 0).any()):
        return None
    starts = region._replace(counts=(*region.counts[:-1], count // run),
                             strides=(*region.strides[:-1], stride * run))
    return number, _places(starts), ((run, step, stride),)


def _places(region: Region) -> torch.Tensor:
    places = torch.tensor(region.offset)
    for count, stride in zip(region.counts, region.strides):
        places = places.unsqueeze(-1) + torch.arange(count) * stride
    return places.flatten()


def _boxes_at(region: Region, shadows: list[Shadow], group: _Group) -> list[Box] | None:
    """Returns a region's content as boxes of the group's tensors."""
    order = sorted(range(len(region.counts)), key=lambda d: -region.strides[d])
    digits = [shadow.bits(region).permute(order) for shadow in shadows]
    region = region._replace(counts=tuple(region.counts[d] for d in order),
                             strides=tuple(region.strides[d] for d in order))
    rows = _rows(region, digits, group)
    number, places, inner = rows or (
        _number([d.flatten() for d in digits], group.width), _places(region), ())
    if bool((number < 0).any() | (number > group.total).any() | (places.diff() <= 0).any()):
        return None
    if not bool(number.all()):
        there = torch.nonzero(number).flatten()
        number, places = number[there], places[there]
    number = number - 1
    owner = group.owner(number) if len(group.first) > 1 else None
    boxes: list[Box] = []
    for k, (tensor, first) in enumerate(group.first.items()):
        mine = slice(None) if owner is None else owner == k
        found = boxes_of(number[mine] - first, places[mine], _MOST_BOXES, inner)
        if found is None or len(boxes) + len(found) > _MOST_BOXES:
            return None
        boxes += [Box(tensor, region.storage, *box) for box in found]
    return boxes


def _predicted(boxes: Iterable[Box], pairs: dict, shadow: Shadow, group: _Group) -> bool:
    """Returns whether the boxes predict the loader's result from these tensors."""
    predicted = Shadow(shadow.storages)
    bits = {i: tensor.view(-1).view(INTEGERS[group.width]) for i, (_, tensor) in pairs.items()}
    for box in boxes:
        source = Region(0, box.src_offset, box.counts, box.src_strides, group.width)
        if source.end() > len(bits[box.tensor]):
            return False
        to = Region(box.storage, box.dst_offset, box.counts, box.dst_strides, group.width)
        predicted.bits(to).copy_(
            bits[box.tensor].as_strided(box.counts, box.src_strides, box.src_offset))
    return all(torch.equal(predicted.bits(r), shadow.bits(r)) for r in shadow.regions)


def _run(model: torch.nn.Module, load: Callable[[Iterable], object], storages: list[Storage],
         pairs: dict) -> Shadow | None:
    """Returns the loader's result from these pairs, or None if it fails or leaves something
    behind."""
    unchanged = Unchanged(model)
    try:
        with unchanged:
            shadow = load_beside(load, storages, pairs)
    except Exception:  # pylint: disable=broad-except  # foreign code, strange values
        return None
    return None if unchanged.findings else shadow


def _read(shadows: list[Shadow], traced: Group, group: _Group) -> list[Box] | None:
    """Returns the map that runs over all digits show."""
    regions = list(shadows[0].regions)
    if (any(s.regions != shadows[0].regions for s in shadows)
            or not set(traced.regions) <= set(regions)
            or any(r.width != group.width for r in regions)
            or any(overlap(a, b) for i, a in enumerate(regions) for b in regions[:i])):
        return None
    boxes: list[Box] = []
    for region in regions:
        found = _boxes_at(region, shadows, group)
        if found is None:
            return None
        boxes += found
    return boxes


def follow(model: torch.nn.Module, load: Callable[[Iterable], object], tensors: Tensors,
           storages: list[Storage], traced: Group) -> list[Box] | None:
    """Returns the boxes of a traced group's tensors, or None if the loader does more than move
    their elements."""
    group = _Group(tensors, traced)
    if (not traced.by_shapes or not group.can_be_numbered()
            or any(r.width != group.width for r in traced.regions)):
        return None
    shadows = []
    for run in range(group.runs):
        shadow = _run(model, load, storages, group.numbers(run))
        if shadow is None:
            return None
        shadows.append(shadow)
    boxes = _read(shadows, traced, group)
    if boxes is None:
        return None
    regions = list(shadows[0].regions)
    shadows.clear()
    pairs = group.random()
    # Pass copies, because the loader may change its arguments.
    shadow = _run(model, load, storages, {i: (n, t.clone()) for i, (n, t) in pairs.items()})
    if (shadow is None or list(shadow.regions) != regions
            or not _predicted(boxes, pairs, shadow, group)):
        return None
    return boxes
