"""Tensors that an engine's loader computes with: the loader itself updates them, whole.

`prove` runs the loader over the held version's tensors beside the live memory. The result must
equal the live memory, whatever was in the target before. `apply` runs it over new tensors, in live
memory, and only where it wrote during `prove`; `put_back` undoes that. An update costs the tensors
of a changed group whole, twice the bytes that the loader writes for them, and its time. Errors are
reasons as text; live memory is then unchanged.
"""
from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from deltawire.engine._geometry import Box, Region, overlap
from deltawire.engine._model import REPLACED, Change, ListChange, Snapshot, Storage, Unchanged
from deltawire.engine._outcome import some
from deltawire.engine._shadow import Kept, Shadow, load_beside
from deltawire.engine._threads import Alone
from deltawire.engine._trace import Group, Tensors

#: Groups are proven together up to this number of bytes of their tensors.
_TOGETHER = 64 << 20


class ByLoader:
    def __init__(self, model: torch.nn.Module, load: Callable[[Iterable], object],
                 tensors: Tensors, storages: list[Storage], groups: list[Group]):
        self._model, self._load = model, load
        self._tensors, self._storages, self._groups = tensors, storages, groups
        self._regions: dict[Region, None] = {}
        self._kept: Kept | None = None
        self._changes: list[Change | ListChange] = []

    @property
    def names(self) -> list[str]:
        return [self._tensors[t][0] for g in self._groups for t in g.tensors]

    def all(self) -> list[int]:
        """Returns all its tensors, in the checkpoint's order."""
        return sorted(t for g in self._groups for t in g.tensors)

    def concerned(self, changed: Iterable[int]) -> list[int]:
        """Returns the tensors that must be loaded if these have changed, in the checkpoint's
        order."""
        changed = set(changed)
        return sorted(t for g in self._groups if changed & set(g.tensors) for t in g.tensors)

    def read(self, tensors: Iterable[int], read: Callable[[int, int, int], None]) -> dict:
        """Returns (name, tensor) by index. `read` fills memory: (tensor, address, bytes)."""
        pairs = {}
        for t in tensors:
            name, dtype, shape = self._tensors[t]
            # Allocate new memory, because a loader may change its arguments.
            value = torch.empty(shape, dtype=dtype)
            read(t, value.data_ptr(), value.nbytes)
            pairs[t] = name, value
        return pairs

    def _batches(self) -> Iterable[list[Group]]:
        batch, size = [], 0
        for group in self._groups:
            bytes_ = sum(torch.Size(self._tensors[t][2]).numel() * self._tensors[t][1].itemsize
                         for t in group.tensors)
            if batch and size + bytes_ > _TOGETHER:
                yield batch
                batch, size = [], 0
            batch.append(group)
            size += bytes_
        if batch:
            yield batch

    def prove(self, boxes: Iterable[Box], read: Callable[[int, int, int], None]) -> str:
        """Returns why the loader's result from the held version's tensors differs from live memory,
        or "". `boxes`: of all other tensors, whose memory it must not change. Raises
        `deltawire.Error` if the held version can no longer be read."""
        found: dict[Region, None] = {}
        for batch in self._batches():
            why = self._repeat(batch, read, found)
            if why:
                return why
        by_storage: dict[int, list[Region]] = {}
        for region in found:
            by_storage.setdefault(region.storage, []).append(region)
        for box in boxes:
            place = Region(box.storage, box.dst_offset, box.counts, box.dst_strides,
                           self._tensors[box.tensor][1].itemsize)
            if any(overlap(region, place) for region in by_storage.get(box.storage, ())):
                return (f"{self._storages[box.storage].named()}: its load also writes where "
                        f"{self._tensors[box.tensor][0]} is")
        self._regions = found
        return ""

    def repeats(self, read: Callable[[int, int, int], None]) -> str:
        """Does the same without boxes, at any later time."""
        return next(filter(None, (self._repeat(b, read, {}) for b in self._batches())), "")

    def _repeat(self, batch: list[Group], read, found: dict[Region, None]) -> str:
        tensors = sorted(t for g in batch for t in g.tensors)
        first, second = Shadow(self._storages), Shadow(self._storages)
        why = self._beside(first, self.read(tensors, read))
        if not why:
            for region in first.regions:
                second.bits(region).fill_(-1)
            # Read again: the loader may have changed its arguments.
            why = self._beside(second, self.read(tensors, read))
        if why:
            return f"{self._named(batch)}: {why}"
        found.update(dict.fromkeys(first.regions))
        return self._judge(batch, first, second) or self._idle(batch, first, read)

    def _beside(self, shadow: Shadow, pairs: dict) -> str:
        """Loads `pairs`, and empties them, into `shadow`. Returns why that proves nothing, or
        ""."""
        given = {name: StorageWeakRef(tensor.untyped_storage()) for name, tensor in pairs.values()}
        unchanged = Unchanged(self._model)
        try:
            with unchanged:
                load_beside(self._load, self._storages, pairs, shadow)
        except Exception as error:  # pylint: disable=broad-except  # foreign code
            return str(error) or repr(error)
        pairs.clear()
        if not all(there.expired() for there in given.values()):
            gc.collect()
        kept = [name for name, there in given.items() if not there.expired()]
        if kept:
            return f"the loader keeps {some(kept)} in memory that is not the model's"
        return unchanged.findings[0] if unchanged.findings else ""

    def _named(self, batch: list[Group]) -> str:
        return ", ".join(self._tensors[t][0] for g in batch for t in g.tensors)

    def _judge(self, batch: list[Group], first: Shadow, second: Shadow) -> str:
        """Compares two loads, over zeros and over ones, with live memory."""
        if list(first.regions) != list(second.regions):
            return f"{self._named(batch)}: two loads of the same do not write to the same places"
        for group in batch:
            if not set(group.regions) <= set(first.regions):
                return f"{self._named([group])}: with values it is loaded elsewhere than without"
        for region in first.regions:
            live = region.bits(self._storages[region.storage].keeper.untyped_storage())
            over_zeros, over_ones = first.bits(region), second.bits(region)
            untouched = (over_zeros == 0) & (over_ones == -1)
            right = (over_zeros == live) & (over_ones == live)
            if not bool((untouched | right).all()):
                names = [g for g in batch if region in g.regions] or batch
                return (f"{self._named(names)}: loading it again does not give what "
                        f"{self._storages[region.storage].named()} holds")
        return ""

    def _idle(self, batch: list[Group], load: Shadow, read) -> str:
        """Returns a reason if the loader reads a tensor's value and then does not use it: another
        time the value might go anywhere."""
        for group in batch:
            if group.by_shapes or any(set(group.tensors) & w for w in load.regions.values()):
                continue
            # Load the group alone: a loader may read all tensors before it writes.
            alone = Shadow(self._storages)
            why = self._beside(alone, self.read(group.tensors, read))
            if why or not alone.regions:
                why = why or "the loader looks at it and writes nothing"
                return f"{self._named([group])}: {why}"
        return ""

    def apply(self, pairs: dict) -> str:
        """Loads (name, tensor) pairs into live memory. Returns the reason if it did not, or ""."""
        before = Snapshot(self._model)
        kept = Kept(self._storages, self._regions)
        why = ""
        try:
            with torch.no_grad(), kept, Alone():
                self._load(iter(pairs.values()))
        except Exception as error:  # pylint: disable=broad-except  # foreign code
            why = f"the loader failed: {error or repr(error)}"
        except BaseException:  # e.g. Ctrl-C; the memory is still whole
            self._settle(before, kept)
            self.put_back()
            raise
        why = self._settle(before, kept) or why
        if why:
            self.put_back()
        return why

    def _settle(self, before: Snapshot, kept: Kept) -> str:
        """Records a load's changes. Returns why they cannot stay, or ""."""
        self._kept, self._changes = kept, before.changes()
        replaced = before.put_memory_back()
        return REPLACED if replaced or any(c.registered for c in self._changes) else ""

    def put_back(self) -> None:
        """Restores live memory, and the attributes that the loader has set, to their state before
        the last `apply`."""
        if self._kept is not None:
            for change in self._changes:
                change.undo()
            with torch.no_grad():
                self._kept.put_back()
        self.forget()

    def forget(self) -> None:
        """Frees the memory that `put_back` would need."""
        self._kept, self._changes = None, []
