"""Writes a version beside the trainer, from private copies of its tensors.

A WeightManager has one such write at a time and waits for it before the next call. The copies take
the model's size in host memory, pinned for tensors from CUDA (not run on a device).
"""

from __future__ import annotations

import ctypes
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from deltawire import _core
from deltawire._async import in_thread
from deltawire._errors import DeadlineError, TensorError
from deltawire._megatron import DeviceReader
from deltawire._tensors import DTYPE_BYTES, Source, is_dtensor, is_torch, meta_of, refuse_without_data, source_of
from deltawire._writing import place_in_memory

if TYPE_CHECKING:
    from deltawire._manager import Offloaded, Published

logger = logging.getLogger(__name__)


class Copies:
    """Private memory for the tensors of one version, which the next version uses again."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    def take(self, named: Iterable[tuple[str, Any]], shares: bool, shards: bool = False
             ) -> tuple[list[tuple[str, Any]], list[Any]]:
        """Returns copies of the tensors, and the CUDA events after which the copies are complete.
        The caller may change the tensors when this returns: on CUDA by work of the current streams,
        which runs after the copies. `shares`: all tensors live meanwhile, so shared memory is
        copied once. `shards`: a DTensor's local shard is copied, as a DTensor of the same place."""
        copies: list[tuple[str, Any]] = []
        by_memory: dict[Any, Any] = {}
        streams: dict[Any, None] = {}  # streams with copies
        for name, tensor in named:
            is_shard = is_dtensor(tensor)
            if is_shard and not shards:
                raise TensorError(f'tensor "{name}" is a DTensor; use offload_fsdp, or give its '
                                  "full_tensor()", name)
            if not is_torch(tensor):
                copies.append((name, _copied(name, tensor)))
                continue
            refuse_without_data(name, tensor)
            meta = meta_of(name, tensor)
            local = tensor.to_local() if is_shard else tensor
            local = local.wait() if hasattr(local, "wait") else local
            key = (*place_in_memory(local), meta.shape, meta.dtype)
            if not (shares and local.numel() and key in by_memory):
                copied = self._copy(name, local)
                # from_local would move a host's copy to the device of the mesh.
                by_memory[key] = type(tensor)(copied, tensor._spec, requires_grad=False) if (
                    is_shard) else copied
            copies.append((name, by_memory[key]))
            if local.device.type == "cuda":
                streams[sys.modules["torch"].cuda.current_stream(local.device)] = None
        return copies, [stream.record_event() for stream in streams]

    def _copy(self, name: str, local: Any) -> Any:
        import torch  # pylint: disable=import-outside-toplevel

        on_cuda = local.device.type == "cuda"
        held = self._held.get(name)
        if held is None or held.shape != local.shape or held.dtype != local.dtype:
            held = torch.empty(local.shape, dtype=local.dtype, pin_memory=on_cuda)
            self._held[name] = held
        with torch.no_grad():
            held.copy_(local, non_blocking=on_cuda)
        return held


def copied_params(params: Iterable[tuple[Any, ...]], held: Sequence[Any]
                  ) -> tuple[list[Any], list[Any]]:
    """Copies of a Megatron rank's parameters, and the memory that they are in. `held`: what each of
    `params`, as _core.Megatron takes them, was made from."""
    copies, memory = [], []
    for (chunk, name, dtype, shape, address, device, reader), item in zip(params, held):
        count = DTYPE_BYTES[dtype] * math.prod(shape)
        bytes_ = (ctypes.c_char * max(count, 1))()
        if reader is None and device != _core.HOST_MEMORY:
            reader = DeviceReader(item)
        if reader is None:
            ctypes.memmove(bytes_, address, count)
        elif count:
            reader(0, memoryview(bytes_).cast("B")[:count])
        memory.append(bytes_)
        copies.append((chunk, name, dtype, shape, ctypes.addressof(bytes_), _core.HOST_MEMORY, None))
    return copies, memory


def _copied(name: str, tensor: Any) -> Any:
    """Copies an array or a buffer of another library."""
    source = source_of(name, tensor)
    count = source.element_bytes
    for n in source.shape:
        count *= n
    strides, dense = source.element_bytes, []
    for n in reversed(source.shape):
        dense.insert(0, strides)
        strides *= n
    if source.strides is None or tuple(dense) == tuple(source.strides) or count == 0:
        memory = ctypes.create_string_buffer(count)
        ctypes.memmove(memory, source.address, count)
    elif hasattr(tensor, "__array_interface__"):
        return tensor.copy()
    else:
        try:
            text = memoryview(tensor).tobytes()
        except TypeError:
            raise TensorError(f'tensor "{name}" is a {type(tensor).__name__} with strides, which '
                              "wait=False does not copy; make it dense first", name) from None
        memory = ctypes.create_string_buffer(text, count)
    return Source(ctypes.addressof(memory), source.dtype, source.shape, None, memory)


class Offloading:
    """A version that is written in the background, while the caller may change its tensors.
    Awaitable: `await` gives what `wait` returns. Thread-safe except for `wait`, which uses the
    manager."""

    def __init__(self, version: int, write: Callable[[], Offloaded]):
        self.version = version
        self._write = write
        self._over = threading.Event()
        self._written: Offloaded | None = None
        self._error: BaseException | None = None
        # As no daemon thread, it keeps the program until the version is written or has failed.
        threading.Thread(target=self._run, name="deltawire-offload").start()

    def done(self) -> bool:
        """Returns whether the version is written or has failed."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> Offloaded:
        """Blocks until the version is written; raises what `offload` would have raised.
        DeadlineError after `timeout` seconds."""
        if not self._over.wait(timeout):
            raise DeadlineError(f"version {self.version} is still being written")
        if self._error is not None:
            raise self._error
        assert self._written is not None
        return self._written

    def wait(self, timeout: float | None = None) -> Published:
        """Blocks until the version, or a newer one, is published. `timeout` limits the wait for the
        sender, in seconds."""
        return self.result().wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> Published:
        """Does `wait` beside an event loop. No other call of the manager may run meanwhile."""
        await self.settle_async()
        return await self.result().wait_async(timeout)

    def __await__(self) -> Any:
        return self.wait_async().__await__()

    def settle(self) -> None:
        """Returns when the write is over, successful or not."""
        self._over.wait()

    async def settle_async(self) -> None:
        """Does `settle` beside an event loop."""
        cancelled = threading.Event()

        def settle() -> None:
            while not (self._over.wait(0.1) or cancelled.is_set()):
                pass

        await in_thread(settle, cancelled.set)

    def _run(self) -> None:
        try:
            self._written = self._write()
        except BaseException as error:
            self._error = error
            # Log it even if the program never looks at the handle.
            logger.warning("version %d was not written in the background: %s", self.version, error)
        finally:
            del self._write  # and the copies
            self._over.set()
