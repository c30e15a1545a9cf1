"""Checks in each version that tied tensors are still equal.

Unregistered tensors may be copies of registered ones, and several names may have been registered as
one tensor. A framework that gathers shards gives a tied tensor separate memory. So the bytes are
compared with those that this process has already written of the version. Not thread-safe.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

from deltawire import _core
from deltawire._errors import ExtraTensorError, TensorError
from deltawire._fsdp import Place
from deltawire._tensors import TensorMeta, is_dtensor, is_torch, torch_dtype
from deltawire._writing import place_in_memory

#: A model has few ties. Without a limit, a stream of another model would be kept as a whole.
_HELD = 4
_HEAD = 512  # elements
_SLICE = 1 << 22  # elements compared at once, in host memory


class Ties:
    """The ties of one version. `written`: names of tensors in the sender's memory, growing with the
    stream. `firsts`: names of tensors that had second names when they were registered."""

    def __init__(
        self,
        offload: _core.Offload | None,
        metas: Sequence[TensorMeta],
        written: set[str],
        firsts: Collection[str] = (),
    ):
        self._offload, self._metas, self._written = offload, metas, written
        self._held: list[tuple[str, Any]] = []  # came before their original
        # Each one's place, once it was given, with the tensor that must still exist.
        self._firsts: dict[str, tuple[Any, weakref.ref[Any]] | None] = dict.fromkeys(firsts)
        self._tied_held: list[tuple[str, str, Any, Place]] = []  # as _held

    def wrote(self, name: str, tensor: Any, local: Any) -> None:
        """Records that the stream has given a registered tensor, of which `local` is here."""
        if name in self._firsts and is_torch(local):
            self._firsts[name] = (place_in_memory(local), weakref.ref(tensor))

    def check_tied(
        self, name: str, first: str, tensor: Any, place: Callable[[str, Any], tuple[Place, int]]
    ) -> None:
        """Raises TensorError unless `tensor`, a second name of `first`, equals it, or may do so
        once the stream has given it. REQUIRES: no copy runs."""
        where, _ = place(name, tensor)
        if not where.writes:
            return  # another rank compares its replica
        if not is_torch(tensor):
            raise _apart(name, first)
        local = tensor.to_local() if is_dtensor(tensor) else tensor
        if first in self._written:
            self._compare_tied(name, first, local, where)
        else:  # the memory may hold another tensor later in the stream
            self._tied_held.append((name, first, local.detach().to("cpu", copy=True), where))

    def _compare_tied(self, name: str, first: str, local: Any, where: Place) -> None:
        import torch  # pylint: disable=import-outside-toplevel

        known = self._firsts.get(first)
        if known is not None and known[1]() is not None and known[0] == place_in_memory(local):
            return
        index = next(i for i, meta in enumerate(self._metas) if meta.name == first)
        meta = self._metas[index]
        assert self._offload is not None  # this rank writes
        address, size = self._offload.memory(index)
        if size == 0 or local.numel() == 0:
            return
        memory = (ctypes.c_char * size).from_address(address)
        there = torch.frombuffer(memory, dtype=torch_dtype(meta.dtype)).reshape(meta.shape)
        for part, place in where.parts(local):
            self._compare(name, first, part, _block(there, place))

    def _compare(self, name: str, first: str, local: Any, there: Any) -> None:
        import torch  # pylint: disable=import-outside-toplevel

        if tuple(local.shape) != tuple(there.shape):
            raise _apart(name, first)
        rows = max(1, _SLICE * local.shape[0] // local.numel()) if local.dim() > 0 else 1
        for at in range(0, local.shape[0] if local.dim() > 0 else 1, rows):
            here, part = (t[at : at + rows] if local.dim() > 0 else t for t in (local, there))
            here = here.detach().to(part.dtype).cpu().contiguous()
            if not torch.equal(_bits(here), _bits(part.contiguous())):
                raise _apart(name, first)

    def check(self, name: str, tensor: Any) -> None:
        """Raises ExtraTensorError unless it is a copy, or may be one of a later tensor."""
        # Vectors are often equal by chance, such as norms that begin as ones.
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
        """Checks the rest after the stream. Raises as `check` and `check_tied`."""
        for name, first, local, where in self._tied_held:
            if first in self._written:
                self._compare_tied(name, first, local, where)
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
        """Compares as it would be written: after a cast to the registered dtype, if both are
        floats."""
        import torch  # pylint: disable=import-outside-toplevel

        wanted = _TORCH_FLOATS.get(meta.dtype)
        if wanted is None or not tensor.is_floating_point():
            return False
        assert self._offload is not None
        address, size = self._offload.memory(index)
        if size == 0:
            return False
        there = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
        here = tensor.detach().reshape(-1)
        for part in (here[:_HEAD], here):  # tensors of one shape mostly differ early
            given = part.to(dtype=getattr(torch, wanted)).cpu().contiguous().view(torch.uint8)
            if not torch.equal(there[: given.numel()], given):
                return False
        return True


_TORCH_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _block(tensor: Any, where: Place) -> Any:
    for dim, start in enumerate(where.start):
        tensor = tensor.narrow(dim, start, where.shape[dim])
    return tensor


def _bits(tensor: Any) -> Any:
    import torch  # pylint: disable=import-outside-toplevel

    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def _apart(name: str, first: str) -> TensorError:
    return TensorError(
        f'tensor "{name}" was registered as another name of "{first}", and is not equal to it any '
        "more; register the model again with both (replace=True), or leave one out",
        name,
    )


def _extra(name: str) -> ExtraTensorError:
    return ExtraTensorError(
        f'tensor "{name}" is not registered, and it is no copy of a registered tensor (as a tied '
        "one would be): its model has another layout than the one that is published",
        name,
    )
