"""Recognizes groups of tensors that an engine's loader treats alike.

The layers of a model are loaded alike. If the trace saw the same operations, with the same numbers
and with constants of the same bytes, in the same order and on memory of the same geometry, the
loader is one function of its tensors. So the map of one layer applies to the others. A step that is
not a mere copy costs some 20 microseconds. A step that cannot be recognized is unlike all others.
"""
from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from deltawire.engine._geometry import Box, Region
    from deltawire.engine._trace import Group

#: Larger constants are not compared.
_MOST_BYTES = 1 << 22


class _Step(NamedTuple):
    tensors: frozenset[int]
    func: str
    arguments: tuple


class _Seen(NamedTuple):
    """An argument: a view of memory, which `kind` and `index` identify."""

    kind: str
    index: Hashable
    geometry: tuple


class Steps:
    def __init__(self, describe: Callable[[torch.Tensor], tuple[str, int] | None]):
        """`describe`: ("given", tensor), ("made", step) or ("live", storage); None for others."""
        self._describe = describe
        self._steps: list[_Step] = []

    def add(self, tensors: frozenset[int], func, args, kwargs) -> int:
        """Records an operation on data from the checkpoint's `tensors`, before it runs; returns its
        number."""
        arguments = (*map(self._seen, args),
                     *((name, self._seen(value)) for name, value in sorted(kwargs.items())))
        self._steps.append(_Step(tensors, str(func), arguments))
        return len(self._steps) - 1

    def _seen(self, value) -> Hashable:
        if isinstance(value, (list, tuple)):
            return tuple(map(self._seen, value))
        if not isinstance(value, torch.Tensor):
            return repr(value)
        kind, index = self._describe(value) or ("constant", _digest(value))
        return _Seen(kind, index, (tuple(value.shape), value.stride(), value.storage_offset(),
                                   str(value.dtype), value.device.type))

    def way(self, group: tuple[int, ...], writes: Iterable[tuple[Region, tuple[Box, ...]]]
            ) -> Hashable:
        """Returns the way of a group of tensors, in terms of their places in the group. `writes`:
        to live memory."""
        return _Way(group).told(self._steps, writes)


class _Way:
    """Replaces numbers of tensors, steps and storages by the order of their first use."""

    def __init__(self, group: tuple[int, ...]):
        self._group = set(group)
        self._places: dict[tuple[str, Hashable], int] = {
            ("given", t): i for i, t in enumerate(group)}

    def told(self, steps: Iterable[_Step], writes: Iterable[tuple[Region, tuple[Box, ...]]]
             ) -> Hashable:
        way = []
        for number, step in enumerate(steps):
            if step.tensors & self._group:
                way.append((step.func, tuple(map(self._placed, step.arguments))))
                self._places["made", number] = len(way)
        for region, boxes in writes:
            way.append((self._moved(region), tuple(
                self._moved(box)._replace(tensor=self._place("given", box.tensor))
                for box in boxes)))
        return tuple(way)

    def _place(self, kind: str, index: Hashable) -> int:
        return self._places.setdefault((kind, index), len(self._places))

    def _moved(self, there):
        return there._replace(storage=self._place("live", there.storage))

    def _placed(self, argument: Hashable) -> Hashable:
        if isinstance(argument, _Seen):
            if argument.kind == "constant":
                return argument
            return argument._replace(index=self._place(argument.kind, argument.index))
        if isinstance(argument, tuple):
            return tuple(map(self._placed, argument))
        return argument


def moved(boxes: Iterable[Box], one: Group, other: Group) -> list[Box] | None:
    """Returns the boxes of one group as those of another, of the same way; None if they contain
    more than the way does."""
    tensors = dict(zip(one.tensors, other.tensors))
    storages = dict(zip(_storages(one), _storages(other)))
    if not all(box.tensor in tensors and box.storage in storages for box in boxes):
        return None
    return [box._replace(tensor=tensors[box.tensor], storage=storages[box.storage])
            for box in boxes]


def _storages(group: Group) -> list[int]:
    return list(dict.fromkeys(region.storage for region in group.regions))


def _digest(value: torch.Tensor) -> Hashable:
    """Returns a digest of a constant's bytes, unlike any other if they cannot be read."""
    if value.device.type != "cpu" or value.nbytes > _MOST_BYTES:
        return object()
    dense = value.detach().contiguous()
    return hashlib.sha256(ctypes.string_at(dense.data_ptr(), dense.nbytes)).digest()
