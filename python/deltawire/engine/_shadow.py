"""Runs an engine's loader over tensors with data: beside the live memory, or in it.

Both are modes of torch for the thread that enters them, so a loader must not start another one
(`_threads.py`). They do not see writes that bypass torch, or that come from threads that the loader
started earlier.
"""
from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deltawire.engine._geometry import Region, region_of
from deltawire.engine._model import Storage
from deltawire.engine._operations import is_view, tensors_in, written_by
from deltawire.engine._threads import Alone


def zero_pages(nbytes: int) -> torch.UntypedStorage:
    """Returns memory full of zeros, which takes room only where it is written."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8).untyped_storage()


class _Live(TorchDispatchMode):
    """A mode that knows which tensors are in live memory."""

    def __init__(self, storages: list[Storage]):
        super().__init__()
        self.storages = storages
        self._index = {tensor.untyped_storage()._cdata: i for i, s in enumerate(storages)
                       for tensor in (s.keeper, *s.others)}

    def _live(self, tensor) -> int | None:
        if not isinstance(tensor, torch.Tensor) or not tensor.numel():
            return None
        return self._index.get(tensor.untyped_storage()._cdata)

    def _written(self, func, args, kwargs) -> Iterable[tuple[Region, torch.Tensor]]:
        for tensor in written_by(func, args, kwargs):
            index = self._live(tensor)
            if index is not None:
                yield region_of(index, tensor), tensor


class Shadow(_Live):
    """A mode in which live memory is neither written nor read: each storage has a shadow, zero at
    first."""

    def __init__(self, storages: list[Storage]):
        super().__init__(storages)
        self._memory: dict[int, torch.UntypedStorage] = {}
        #: The written regions, in order, and the tensors that were being loaded meanwhile.
        self.regions: dict[Region, set[int]] = {}
        self.current = -1

    def memory(self, storage: int) -> torch.UntypedStorage:
        if storage not in self._memory:
            self._memory[storage] = zero_pages(self.storages[storage].nbytes)
        return self._memory[storage]

    def bits(self, region: Region) -> torch.Tensor:
        """Returns the shadow of a region, as integers."""
        return region.bits(self.memory(region.storage))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if is_view(func):
            return func(*args, **kwargs)
        for region, _ in self._written(func, args, kwargs):
            self.regions.setdefault(region, set()).add(self.current)
        stands_for: dict[int, torch.Tensor] = {}
        out = func(*(self._swap(a, stands_for) for a in args),
                   **{k: self._swap(v, stands_for) for k, v in kwargs.items()})
        return _swap_back(out, stands_for)

    def _swap(self, value, stands_for):
        if isinstance(value, (list, tuple)) and any(True for _ in tensors_in(value)):
            return type(value)(self._swap(v, stands_for) for v in value)
        index = self._live(value)
        if index is None:
            return value
        shadow = torch.empty(0, dtype=value.dtype).set_(
            self.memory(index), value.storage_offset(), value.shape, value.stride())
        stands_for[id(shadow)] = shadow, value
        return shadow


def _swap_back(value, stands_for):
    if isinstance(value, (list, tuple)):
        return type(value)(_swap_back(v, stands_for) for v in value)
    return stands_for[id(value)][1] if id(value) in stands_for else value


class Kept(_Live):
    """A mode in which the loader writes to live memory, but only to known places, whose old content
    is kept."""

    def __init__(self, storages: list[Storage], known: Iterable[Region]):
        super().__init__(storages)
        self._known = set(known)
        self._old: dict[Region, torch.Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not is_view(func):
            for region, _ in self._written(func, args, kwargs):
                self._keep(region)
        return func(*args, **kwargs)

    def _keep(self, region: Region) -> None:
        if region in self._old:
            return
        storage = self.storages[region.storage]
        if region not in self._known:
            raise RuntimeError(f"the loader writes to other parts of {storage.named()} than at the "
                               "attach")
        self._old[region] = region.bits(storage.keeper.untyped_storage()).clone()

    def put_back(self) -> None:
        """Restores live memory to its old content."""
        # Regions may overlap, so restore the oldest one last.
        for region, old in reversed(self._old.items()):
            region.bits(self.storages[region.storage].keeper.untyped_storage()).copy_(old)
        self._old = {}


def load_beside(load: Callable[[Iterable], object], storages: list[Storage],
                pairs: dict[int, tuple[str, torch.Tensor]],
                shadow: Shadow | None = None) -> Shadow:
    """Runs `load` over the (name, tensor) pairs, by the tensors' index, in their order."""
    shadow = shadow or Shadow(storages)

    def told():
        for shadow.current, pair in pairs.items():
            yield pair

    with shadow, Alone():
        load(told())
    return shadow
