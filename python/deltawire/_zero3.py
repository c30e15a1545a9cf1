"""DeepSpeed ZeRO-3: gathers a partitioned module's parameters, some at a time, on all ranks.

DeepSpeed leaves a placeholder without elements in the module for each parameter, with its true
shape in `ds_shape`. A gather is a collective: every rank gathers the same parameters in order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from deltawire._errors import Error
from deltawire._names import NOT_MERGED, is_of_base, unmerged
from deltawire._tensors import TensorMeta, dtype_name, meta_of


def is_partitioned(module: Any) -> bool:
    return any(hasattr(p, "ds_id") for p in module.parameters())


def layout(module: Any) -> tuple[list[TensorMeta], dict[str, str]]:
    """Returns the whole tensors, and second names of parameters with their first."""
    metas: list[TensorMeta] = []
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in _tensors(module):
        if first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
        elif hasattr(tensor, "ds_shape"):
            shape = tuple(int(n) for n in tensor.ds_shape)
            metas.append(TensorMeta(name, dtype_name(tensor.dtype, name), shape))
        else:
            metas.append(meta_of(name, tensor))
    return metas, tied


def gathered(module: Any, bucket_bytes: int) -> Iterator[tuple[str, Any]]:
    """Yields each parameter, and each saved buffer, whole. Parameters of about `bucket_bytes` are
    gathered at once. Run it on every rank, to the end."""
    bucket: list[tuple[str, Any]] = []
    size = 0
    seen: set[int] = set()
    for name, tensor in _tensors(module):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not hasattr(tensor, "ds_id"):
            yield name, tensor.detach()
            continue
        bytes_of = int(getattr(tensor, "ds_numel", 0)) * tensor.element_size()
        if bucket and size + bytes_of > bucket_bytes:
            yield from _whole(bucket)
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += bytes_of
    if bucket:
        yield from _whole(bucket)


def _whole(bucket: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    try:
        from deepspeed.zero import (  # pylint: disable=import-outside-toplevel
            GatheredParameters,
        )
    except ImportError as error:
        raise Error(f"the module is partitioned, and deepspeed cannot be imported: {error}"
                    ) from error
    with GatheredParameters([tensor for _, tensor in bucket]):
        for name, tensor in bucket:
            yield name, tensor.detach()


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields tensors by the names of the state dict, or of a PEFT model's base."""
    layer = unmerged(module)
    if layer:
        raise Error(NOT_MERGED.format(layer))
    saved = module.state_dict(keep_vars=True)
    for name, tensor in saved.items():
        if layer is None or is_of_base(name):
            yield name, tensor


def _group() -> Any:
    torch = sys.modules.get("torch")
    there = torch is not None and torch.distributed.is_available()
    return torch.distributed if there and torch.distributed.is_initialized() else None


def rank() -> int:
    """Returns this process's rank in the job, or 0 without one."""
    group = _group()
    return 0 if group is None else group.get_rank()


def agree(failure: str) -> str:
    """Returns the first rank's text on every rank: why it failed, or ""."""
    group = _group()
    if group is None or group.get_world_size() == 1:
        return failure
    said = [failure]
    group.broadcast_object_list(said, src=0)
    return said[0]
