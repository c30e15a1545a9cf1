"""Writes one tensor into the sender's memory, and derives a model's layout from named tensors."""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from deltawire import _core, _zero3
from deltawire._casts import may_cast
from deltawire._device import has_cuda, say_way
from deltawire._errors import DTypeError, Error, ShapeError, TensorError
from deltawire._fsdp import Place
from deltawire._names import is_module, tensors_of
from deltawire._pinning import PinnedHalves
from deltawire._tensors import (
    TensorMeta,
    dtype_name,
    is_cuda,
    is_dtensor,
    is_torch,
    meta_of,
    refuse_without_data,
    shape_text,
    source_of,
    torch_dtype,
)

NamedTensors = (
    Mapping[str, Any] | Iterable[tuple[str, Any]] | Callable[[], Iterable[tuple[str, Any]]]
)


def check(meta: TensorMeta, tensor: Any, casts: bool = False) -> str:
    """Raises unless the tensor is as registered or, with `casts`, may be cast to that. Returns its
    dtype."""
    refuse_without_data(meta.name, tensor)
    given = meta_of(meta.name, tensor)
    if given.shape != meta.shape:
        how = (
            "if DeepSpeed ZeRO-3 has partitioned the model, call offload_zero3(module, version)"
            if given.shape == (0,)
            else "register again with replace=True if the model has changed"
        )
        raise ShapeError(
            f'tensor "{meta.name}" has shape {shape_text(given.shape)}, registered is '
            f"{shape_text(meta.shape)}; {how}",
            meta.name,
        )
    if given.dtype != meta.dtype and not (casts and may_cast(given.dtype, meta.dtype)):
        how = (
            "these are not cast one to the other, so cast it yourself"
            if casts
            else f'cast it, have it cast (register with dtype="{meta.dtype}")'
        )
        raise DTypeError(
            f'tensor "{meta.name}" is {given.dtype}, registered is {meta.dtype}; {how}, or '
            "register again with replace=True",
            meta.name,
        )
    return given.dtype


def copy(
    offload: _core.Offload,
    index: int,
    meta: TensorMeta,
    tensor: Any,
    where: Place,
    share: int,
    halves: PinnedHalves | None = None,
) -> int:
    """Copies a tensor, or this rank's block of it, into its place, in the registered dtype. Returns
    the bytes there."""
    return copy_settled(offload, index, meta, settled(tensor), where, share, halves)


def settled(tensor: Any) -> Any:
    """Returns the tensor, or its local shard, when all work on it that this thread has queued is
    done: another thread, and the library, know nothing of torch's streams."""
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if hasattr(local, "wait"):  # an AsyncCollectiveTensor
        local = local.wait()
    if is_cuda(local) and local.device.type == "cuda":
        sys.modules["torch"].cuda.current_stream(local.device).synchronize()
    return local


def copy_settled(
    offload: _core.Offload,
    index: int,
    meta: TensorMeta,
    local: Any,
    where: Place,
    share: int,
    halves: PinnedHalves | None,
) -> int:
    """Does the same for a tensor that `settled` has returned, on any thread."""
    cast = is_torch(local) and dtype_name(local.dtype, meta.name) != meta.dtype
    if is_cuda(local) and cast:  # before the transfer, so that it moves no extra bytes
        local = settled(local.detach().to(torch_dtype(meta.dtype)))
    if is_cuda(local) or cast:
        copied = copy_by_device(offload, index, local, where, share)
        if copied is not None:
            return copied
        copied = copy_by_torch(offload, index, meta, local, where, halves)
        if share == _core.SHARE_BLOCK:
            offload.mark_block(index, list(where.start), list(where.shape))
        else:
            offload.mark_written([index], share)
        return copied
    source = source_of(meta.name, local)
    if source.dtype != meta.dtype:
        raise DTypeError(
            f'tensor "{meta.name}" is {source.dtype}, registered is {meta.dtype}; only torch '
            "tensors are cast: cast it, or hand it over as a torch tensor",
            meta.name,
        )
    start = where.start if len(where.start) == len(source.shape) else None
    offload.write(
        index, source.address, source.element_bytes, source.shape, source.strides, start, share,
        _core.HOST_MEMORY,
    )
    count = source.element_bytes
    for n in source.shape:
        count *= n
    return count


def copy_by_device(
    offload: _core.Offload, index: int, local: Any, where: Place, share: int
) -> int | None:
    """Makes a CUDA device write its tensor into the place, which is pinned. Returns the bytes, or
    None, after one warning, if that fails; then nothing is marked."""
    if not on_our_cuda(local):
        return None
    width = local.element_size()
    start = where.start if len(where.start) == local.dim() else None
    try:
        offload.write(
            index, local.data_ptr(), width, list(local.shape), [s * width for s in local.stride()],
            start, share, local.device.index,
        )
    except Error as error:
        offload.check()  # raises if the offload is over
        warn_once(str(error))
        return None
    return local.numel() * width


def on_our_cuda(local: Any) -> bool:
    """Returns whether the tensor is on a device that the library's own CUDA code can use."""
    if not is_cuda(local) or local.device.type != "cuda":
        return False
    say_way()
    return has_cuda()


@functools.cache
def warn_once(reason: str) -> None:
    warnings.warn(
        f"tensors on a device are copied by torch, over memory that is not pinned: {reason}",
        stacklevel=2,
    )


def copy_by_torch(
    offload: _core.Offload,
    index: int,
    meta: TensorMeta,
    local: Any,
    where: Place,
    halves: PinnedHalves | None = None,
) -> int:
    """Copies a tensor on any other device, or of another dtype in host memory, with torch, which
    casts it on the way. If the memory is not pinned, the copy goes through torch's own staging."""
    import torch

    if not is_cuda(local):
        source_of(meta.name, local)  # refuses tensors without dense memory
    if local.numel() == 0:
        return 0
    address, size = offload.memory(index)
    memory = (ctypes.c_char * size).from_address(address)
    place = torch.frombuffer(memory, dtype=torch_dtype(meta.dtype)).reshape(meta.shape)
    for dim, start in enumerate(where.start):
        place = place.narrow(dim, start, where.shape[dim])
    with torch.no_grad():  # each returns when the bytes are there
        if is_cuda(local) and local.device.type == "cuda" and halves is not None:
            halves.copy(offload, place, local)
        else:
            place.copy_(local)
    return local.numel() * place.element_size()


def pairs_of(named: Any) -> Iterator[tuple[str, Any]]:
    if is_module(named):
        named = tensors_of(named)
    if is_source(named):
        named = named()
    if isinstance(named, Mapping):
        named = named.items()
    return iter(named)


def is_source(named: Any) -> bool:
    """Returns whether it makes the named tensors when it is called."""
    return callable(named) and not isinstance(named, Mapping) and not is_module(named)


def twice(named: NamedTensors) -> NamedTensors:
    """Refuses an iterator that can be read only once: registering would use up its tensors."""
    if isinstance(named, Iterator):
        raise Error(
            "a generator cannot register the model and then be written; call register first, or "
            "give a mapping, a list or a callable that makes the generator"
        )
    return named


def metas_and_ties(tensors: Any) -> tuple[list[TensorMeta], dict[str, str], set[str]]:
    """Returns the entries' metas, second names of tensors by name in the model, and names whose
    dtype is kept: entries that are not tensors, and arrays that are not torch's."""
    if is_module(tensors) and _zero3.is_partitioned(tensors):
        return *_zero3.layout(tensors), set()
    metas: list[TensorMeta] = []
    said: set[str] = set()
    tied: dict[str, str] = {}
    places: dict[int, list[tuple[TensorMeta, Any]]] = {}
    for entry in pairs_of(tensors):
        if isinstance(entry, TensorMeta) or len(entry) == 3:
            metas.append(TensorMeta.of(entry))
            said.add(metas[-1].name)
            continue
        name, tensor = entry
        meta = meta_of(name, tensor)
        if not is_torch(tensor):
            said.add(name)  # never cast
        first = _same_memory(places, meta, tensor)
        if first is None:
            metas.append(meta)
        else:
            tied[name] = first
    # A state dict has placeholders without the attributes that would tell their owner.
    empty = [m.name for m in metas if m.shape == (0,) and m.name not in said]
    if empty and 2 * len(empty) > len(metas):
        raise TensorError(
            f'tensor "{empty[0]}" is empty, as are {len(empty) - 1} of the other {len(metas) - 1}: '
            "if DeepSpeed ZeRO-3 has partitioned the model, call offload_zero3(module, version) on "
            "every rank",
            empty[0],
        )
    return [_named_as_saved(m, tied) for m in metas] if tied else metas, tied, said


def _named_as_saved(meta: TensorMeta, tied: dict[str, str]) -> TensorMeta:
    """Chooses the first of a tensor's names that is not a head's: loaders derive the head from the
    embedding, and not vice versa. Changes `tied`."""
    names = [meta.name, *(name for name, first in tied.items() if first == meta.name)]
    if len(names) == 1:
        return meta
    kept = min(names, key=lambda name: "lm_head" in name.split("."))
    if kept != meta.name:
        del tied[kept]
        tied.update({name: kept for name in names if name != kept})
    return TensorMeta(kept, meta.dtype, meta.shape)


def _same_memory(
    places: dict[int, list[tuple[TensorMeta, Any]]], meta: TensorMeta, tensor: Any
) -> str | None:
    """Returns the name of an earlier tensor that has this one's memory, or None."""
    if not is_torch(tensor):
        return None
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if local.numel() == 0 or (address := local.data_ptr()) == 0:
        return None
    if address not in places:
        places[address] = [(meta, weakref.ref(tensor))]
        return None
    # An address proves nothing if it was freed meanwhile: the earlier tensor must still exist.
    places[address] = [p for p in places[address] if p[1]() is not None]
    for first, held in places[address]:
        other = held()
        if other is None or (first.shape, first.dtype) != (meta.shape, meta.dtype):
            continue
        if place_in_memory(other.to_local() if is_dtensor(other) else other) == (
                place_in_memory(local)):
            return first.name
    places[address].append((meta, weakref.ref(tensor)))
    return None


def place_in_memory(local: Any) -> tuple[Any, ...]:
    """Returns equal values for torch tensors, or shards, of one shape and dtype that are the same
    memory, read in the same way."""
    return (local.data_ptr(), local.device, tuple(local.stride()), local.is_conj(), local.is_neg())


def json_text(config: Any) -> str:
    if isinstance(config, Mapping):
        return json.dumps(dict(config), indent=2)
    with open(config, encoding="utf-8") as file:
        return file.read()
