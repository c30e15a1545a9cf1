"""Finds where a running engine keeps each byte of a checkpoint, by watching its own loader.

The loader runs once over tensors that have shapes and no data (torch's ``meta`` device), while a
dispatch mode sees every operation. A copy from a view of such a tensor into a view of a live
parameter is recorded as a strided box, and is not carried out: the parameters stay unchanged.
Clones are followed. Tensors that the loader computes with (a cast, a negated exponential, a
quantized block), or moves in ways that the trace does not follow, are reported in groups.

A box is in elements, relative to the first element of the HF tensor and of the parameter's storage.
No weights are read or written; each operation of the loader costs about 20 microseconds.
`Trace.problems` has the failures; a trace is never partial.
"""
from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from deltawire.engine._geometry import (
    MAX_DIMS,
    Box,
    Moved,
    Region,
    collapse,
    overlap,
    region_of,
    unrolled,
    whole,
)
from deltawire.engine._model import Storage, Unchanged, live_storages
from deltawire.engine._operations import is_view, returned, tensors_in, written_by
from deltawire.engine._outcome import some
from deltawire.engine._threads import Alone
from deltawire.engine._ways import Steps

aten = torch.ops.aten

#: A checkpoint's tensors: (name, dtype, shape), in its order.
Tensors = list[tuple[str, torch.dtype, tuple[int, ...]]]
#: The limit of traces that go on without a tensor at which the loader stopped.
_RESTARTS = 32


class Group(NamedTuple):
    """Tensors that the loader treats together, in a way that boxes cannot express."""

    tensors: tuple[int, ...]
    why: str
    #: The regions that it writes for them, as far as the trace could follow.
    regions: tuple[Region, ...]
    #: False if it reads a value, so that it cannot run over other values.
    by_shapes: bool


@dataclasses.dataclass
class Trace:
    storages: list[Storage]
    boxes: list[Box] = dataclasses.field(default_factory=list)
    groups: list[Group] = dataclasses.field(default_factory=list)
    #: The way of each known group, by its tensors. Groups of one way have one map.
    ways: dict[tuple[int, ...], Hashable] = dataclasses.field(default_factory=dict)
    #: Reasons for which the trace is incomplete: "NAME: what happened".
    problems: list[str] = dataclasses.field(default_factory=list)


class _Refused(RuntimeError):
    """An operation that cannot be followed. It ends the load."""


class _Origin(NamedTuple):
    """The origin of a storage's elements. `moved` is None if they were computed."""

    tensors: frozenset[int]
    moved: Moved | None
    why: str
    step: int = -1  # the step of `_Watch.steps` that made it; -1: a checkpoint's tensor


class _Write(NamedTuple):
    """The loader's effect on a region of live memory. Without boxes and tensors: a constant."""

    region: Region
    tensors: frozenset[int]
    boxes: tuple[Box, ...]
    why: str


#: Operations that return the same values in other memory.
_CLONES = {aten.clone.default, aten._to_copy.default}
_FILLS = {aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}


class _Watch(TorchDispatchMode):
    def __init__(self, storages: list[Storage], live: dict[int, int], dummies: dict):
        super().__init__()
        self.storages, self.live = storages, live
        #: By storage. The weak reference keeps the handle from being reused.
        self.origins: dict[int, tuple[StorageWeakRef, _Origin]] = {}
        self.writes: list[_Write] = []
        self.steps = Steps(self._described)
        self.refused: dict[int, str] = {}
        self.current = -1
        self.itemsizes = {i: dummy.element_size() for i, dummy in dummies.items()}
        for i, dummy in dummies.items():
            self._comes_from(dummy, _Origin(frozenset({i}), whole(i, dummy.numel()), ""))

    def _comes_from(self, tensor: torch.Tensor, origin: _Origin) -> None:
        storage = tensor.untyped_storage()
        self.origins[storage._cdata] = (StorageWeakRef(storage), origin)

    def _origin(self, tensor: torch.Tensor) -> _Origin | None:
        found = self.origins.get(tensor.untyped_storage()._cdata)
        return found[1] if found else None

    def _described(self, tensor: torch.Tensor) -> tuple[str, int] | None:
        """Describes a tensor's storage for `Steps`; None for a constant."""
        origin, live = self._origin(tensor), self._live(tensor)
        if origin is not None:
            return ("made", origin.step) if origin.step >= 0 else ("given", min(origin.tensors))
        return ("live", live) if live is not None else None

    def kept(self) -> set[int]:
        """Returns the checkpoint's tensors with derived tensors that still exist."""
        return set().union(*(
            origin.tensors for there, origin in self.origins.values() if not there.expired()))

    def _live(self, tensor: torch.Tensor) -> int | None:
        return self.live.get(tensor.untyped_storage()._cdata) if tensor.numel() else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        written = written_by(func, args, kwargs)
        if written and not any(w.numel() for w in written):
            return returned(func, written)
        if any(self._live(w) is not None for w in written):
            self._written(func, args, kwargs, written)
            return returned(func, written)
        inputs = list(tensors_in((*args, *kwargs.values())))
        origins = [o for o in map(self._origin, inputs) if o is not None]
        if not origins or is_view(func):
            return func(*args, **kwargs)
        if func in _CLONES and kwargs.get("dtype") in (None, args[0].dtype):
            return self._clone(args[0], kwargs.get("memory_format"))
        return self._computed(func, args, kwargs, written, origins)

    def _written(self, func, args, kwargs, written) -> None:
        """Records an operation that would write to live memory."""
        if func is aten.copy_.default:
            self._copied(args[0], args[1])
            if not self.writes[-1].boxes:
                self.steps.add(self.writes[-1].tensors, func, args, kwargs)
            return
        inputs = [t for t in tensors_in((*args, *kwargs.values()))]
        origins = [o for o in map(self._origin, inputs) if o is not None]
        if func in _FILLS and not origins:
            self._note(args[0], frozenset(), (), "a constant")
            return
        tensors = frozenset().union(*(o.tensors for o in origins)) or frozenset({self.current})
        for at in written:
            if self._live(at) is not None:
                self._note(at, tensors, (), f"{func} writes to a live parameter")
        self.steps.add(tensors, func, args, kwargs)

    def _note(self, at, tensors, boxes, why) -> None:
        if -1 in tensors:
            self.refused[-1] = f"before the first tensor: {why}"
            raise _Refused(why)
        if at.numel():
            self.writes.append(_Write(region_of(self._live(at), at), tensors, boxes, why))

    def _copied(self, dst, src) -> None:
        src = src.expand(dst.shape)
        name = self.storages[self._live(dst)].named()
        origin = self._origin(src)
        if origin is None:
            self._note(dst, frozenset({self.current}), (),
                       f"a copy into {name} from memory that is no checkpoint's")
        elif origin.moved is None:
            self._note(dst, origin.tensors, (), origin.why)
        elif src.dtype != dst.dtype:
            self._note(dst, origin.tensors, (), f"{name}: a cast from {src.dtype} to {dst.dtype}")
        elif not self._same_elements(origin.moved, src):
            self._note(dst, origin.tensors, (), f"{name}: its bits are taken as {src.dtype}")
        else:
            boxes = self._boxes(origin.moved, dst, src)
            why = "" if boxes else "its memory is too crooked for boxes"
            self._note(dst, origin.tensors, boxes or (), why)

    def _same_elements(self, moved: Moved, view) -> bool:
        """Returns whether strides of the view count the tensor's elements."""
        return view.element_size() == self.itemsizes[moved.tensor]

    def _boxes(self, moved: Moved, dst, src) -> tuple[Box, ...] | None:
        found = moved.steps(src.storage_offset(), zip(src.shape, src.stride(), dst.stride()))
        places = found and unrolled(found[1])
        if not places:
            return None
        boxes = []
        for place, dims in places:
            counts, src_strides, dst_strides = collapse(*(zip(*dims) if dims else ((), (), ())))
            if len(counts) > MAX_DIMS:
                return None
            boxes.append(Box(moved.tensor, self._live(dst), counts, found[0], src_strides,
                             dst.storage_offset() + place, dst_strides))
        return tuple(boxes)

    def _clone(self, source, memory_format):
        made = torch.clone(source.to("meta"),
                           memory_format=memory_format or torch.preserve_format)
        origin = self._origin(source)
        moved = origin.moved
        if moved is not None:
            moved = moved.clone(source, made) if self._same_elements(moved, source) else None
        why = origin.why or "it is cloned in a way that the trace cannot follow"
        step = self.steps.add(origin.tensors, aten.clone.default, (source,),
                              {"memory_format": memory_format})
        self._comes_from(made, _Origin(origin.tensors, moved, "" if moved else why, step))
        return made

    def _computed(self, func, args, kwargs, written, origins):
        """Records an operation that computes new values from the checkpoint's."""
        tensors = frozenset().union(*(o.tensors for o in origins))
        why = next((o.why for o in origins if o.why), "") or (
            f"{func} computes with the checkpoint's values")
        origin = _Origin(tensors, None, why, self.steps.add(tensors, func, args, kwargs))
        for at in written:
            # It overwrites the loader's own memory, whose former content no longer counts.
            self._comes_from(at, origin)
        if written:
            return returned(func, written)
        try:
            made = func(*map(_to_meta, args), **{k: _to_meta(v) for k, v in kwargs.items()})
        except (NotImplementedError, RuntimeError) as error:
            if func is not aten._local_scalar_dense.default and not isinstance(
                    error, NotImplementedError):
                raise
            for t in tensors:
                self.refused[t] = f"{func} wants the checkpoint's values"
            raise _Refused(str(error)) from error
        for result in tensors_in([made]):
            if self._origin(result) is None:
                self._comes_from(result, origin)
        return made


def _to_meta(value):
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "meta" else value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_meta, value))
    return torch.device("meta") if isinstance(value, torch.device) else value


def _run(model, load: Callable[[Iterable], object], tensors: Tensors, skip: Iterable[int],
         result: Trace, live: dict[int, int]) -> _Watch:
    """Runs one load without the tensors of `skip`. `refused` has the reason for its end."""
    dummies = {i: torch.empty(shape, dtype=dtype, device="meta")
               for i, (_, dtype, shape) in enumerate(tensors) if i not in skip}
    watch = _Watch(result.storages, live, dummies)

    def pairs():
        for i, dummy in dummies.items():
            watch.current = i
            yield tensors[i][0], dummy

    unchanged = Unchanged(model)
    try:
        with unchanged, watch, Alone():
            load(pairs())
    except _Refused:
        pass
    except Exception as error:  # pylint: disable=broad-except
        # The loader is foreign code: whatever it raises is a reason, not a failure of ours.
        watch.refused.setdefault(watch.current, str(error) or repr(error))
    # Named attributes of the model were restored. Anything else that the loader has kept, at any
    # depth, would stay old.
    dummies.clear()
    result.problems = list(unchanged.findings)
    kept = watch.kept()
    if kept:
        gc.collect()
        kept = watch.kept()
    if kept:
        names = some(tensors[i][0] for i in sorted(kept))
        result.problems.append(
            f"the loader keeps weights in memory that is not the model's: {names}")
    return watch


class _Joined:
    """Tensors that belong together, and why."""

    def __init__(self):
        self._parent: dict[int, int] = {}
        self.why: dict[int, str] = {}

    def root(self, i: int) -> int:
        while self._parent.setdefault(i, i) != i:
            i = self._parent[i]
        return i

    def join(self, tensors: Iterable[int], why: str) -> None:
        first = None
        for t in tensors:
            self.why.setdefault(t, why)
            first = self.root(t) if first is None else first
            self._parent[self.root(t)] = first

    def groups(self) -> list[tuple[int, ...]]:
        by_root: dict[int, list[int]] = {}
        for t in sorted(self._parent):
            by_root.setdefault(self.root(t), []).append(t)
        return [tuple(g) for g in by_root.values()]


def _pairs_that_touch(writes: list[_Write]):
    """Yields (earlier, later) of writes whose spans overlap, except for two boxes or two
    constants."""
    by_storage: dict[int, list[tuple[int, int]]] = {}
    for i, write in enumerate(writes):
        # Use bytes: one storage may have views whose elements have different widths.
        begin = write.region.offset * write.region.width
        by_storage.setdefault(write.region.storage, []).append((begin, i))
    for starts in by_storage.values():
        open_ones: list[int] = []
        for begin, i in sorted(starts):
            open_ones = [j for j in open_ones
                         if writes[j].region.end() * writes[j].region.width > begin]
            for j in open_ones:
                a, b = writes[min(i, j)], writes[max(i, j)]
                if not (a.boxes and b.boxes) and (a.tensors or b.tensors):
                    yield a, b
            open_ones.append(i)


def _settle(watch: _Watch, result: Trace) -> None:
    """Sorts the writes into boxes, and groups of tensors that are more than boxes."""
    joined = _Joined()
    mixed: set[int] = set()  # tensors of unordered writes to the same places
    for write in watch.writes:
        if write.tensors and not write.boxes:
            joined.join(sorted(write.tensors), write.why)
    for a, b in _pairs_that_touch(watch.writes):
        if a.tensors and overlap(a.region, b.region):
            why = b.why or a.why
            mixed |= a.tensors | b.tensors
            joined.join(sorted(a.tensors | b.tensors),
                        why if b.tensors else "a constant is written over a part of it")
    grouped = {t for group in joined.groups() for t in group}
    for write in watch.writes:
        if not write.tensors & grouped:
            result.boxes.extend(write.boxes)
    for group in joined.groups():
        regions = dict.fromkeys(w.region for w in watch.writes if w.tensors & set(group))
        result.groups.append(Group(group, joined.why[group[0]], tuple(regions), True))
        if not mixed & set(group):
            result.ways[group] = watch.steps.way(
                group, [(w.region, w.boxes) for w in watch.writes if w.tensors & set(group)])


def trace(model: torch.nn.Module, load: Callable[[Iterable], object], tensors: Tensors) -> Trace:
    """Runs `load(pairs)` over dataless tensors and returns the copies that it would have made.

    `model`'s parameters are neither written nor replaced: a loader that assigns a new `param.data`
    is undone and reported."""
    storages, live = live_storages(model)
    result = Trace(storages)
    skip: dict[int, str] = {}
    for _ in range(_RESTARTS):
        watch = _run(model, load, tensors, skip, result, live)
        if not watch.refused or -1 in watch.refused:
            break
        for t, why in watch.refused.items():
            skip[t] = why
            if tensors[t][2] in ((), (1,)):
                # If the loader reads one number's value, it also reads those of its like.
                skip.update({i: why for i, other in enumerate(tensors)
                             if other[1:] == tensors[t][1:]})
    if watch.refused:
        result.problems += [f"{tensors[t][0]}: {why}" if t >= 0 else why
                            for t, why in {**skip, **watch.refused}.items()]
        return result
    _settle(watch, result)
    result.groups += [Group((t,), why, (), False) for t, why in skip.items()]
    return result
