"""Tells whether tensors that are not registered are copies of registered ones, in one version.

A framework that gathers shards gives a tied tensor memory of its own, so the bytes are compared,
with those that this process has already written of the version. Not thread-safe.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from deltawire import _core
from deltawire._errors import ExtraTensorError
from deltawire._tensors import TensorMeta, is_dtensor, is_torch

#: A model has few ties; a stream that is of another model would else be held as a whole.
_HELD = 4
_HEAD = 512  # elements


class Ties:
    """`written`: names of what is in the sender's memory; it grows while the stream goes on."""

    def __init__(self, offload: _core.Offload, metas: Sequence[TensorMeta], written: set[str]):
        self._offload, self._metas, self._written = offload, metas, written
        self._held: list[tuple[str, Any]] = []  # came before the tensor that they are a copy of

    def check(self, name: str, tensor: Any) -> None:
        """Raises ExtraTensorError unless it is a copy, or may be one of what is to come."""
        # Vectors are often equal by chance, as norms that begin as ones.
        if is_torch(tensor) and not is_dtensor(tensor) and tensor.dim() > 1:
            shape = tuple(tensor.shape)
            if self._is_copy(tensor):
                return
            to_come = any(m.shape == shape and m.name not in self._written for m in self._metas)
            if to_come and len(self._held) < _HELD:
                self._held.append((name, tensor.detach().to("cpu", copy=True)))
                return
        raise _extra(name)

    def finish(self) -> None:
        """After the stream. Raises as `check`."""
        for name, tensor in self._held:
            if not self._is_copy(tensor):
                raise _extra(name)

    def _is_copy(self, tensor: Any) -> bool:
        shape = tuple(tensor.shape)
        return any(
            meta.name in self._written and meta.shape == shape and self._same(index, meta, tensor)
            for index, meta in enumerate(self._metas)
        )

    def _same(self, index: int, meta: TensorMeta, tensor: Any) -> bool:
        """As it would be written: after a cast to the registered dtype, if both are floats."""
        import torch  # pylint: disable=import-outside-toplevel

        wanted = _TORCH_FLOATS.get(meta.dtype)
        if wanted is None or not tensor.is_floating_point():
            return False
        address, size = self._offload.memory(index)
        if size == 0:
            return False
        there = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
        here = tensor.detach().reshape(-1)
        for part in (here[:_HEAD], here):  # tensors of one shape mostly differ at once
            given = part.to(dtype=getattr(torch, wanted)).cpu().contiguous().view(torch.uint8)
            if not torch.equal(there[: given.numel()], given):
                return False
        return True


_TORCH_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _extra(name: str) -> ExtraTensorError:
    return ExtraTensorError(
        f'tensor "{name}" is not registered, and it is no copy of a registered tensor (as a tied '
        "one would be): its model has another layout than the one that is published",
        name,
    )
