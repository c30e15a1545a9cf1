"""Copies a tensor on a separate thread while the caller's generator makes the next one.

The generator always runs on the caller's thread. At most two tensors are alive: the one being
copied, and the one being made. A copy's error is raised on the caller's thread before the next
tensor is written, with a note that names the tensor; the generator's errors get one, too. If a
generator reuses or frees memory that it has already yielded, and torch can detect that, the error
is found after the copy. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from deltawire._errors import TensorError
from deltawire._tensors import is_torch

_HOW = "make the WeightManager without overlap, or hand over memory that stays as it is"


def is_lazy(tensors: Any) -> bool:
    """Returns whether tensors may be made one by one while they are consumed. In a list or a
    mapping they exist already."""
    return not isinstance(tensors, Collection)


@dataclass(frozen=True)
class _Memory:
    """The address of a torch tensor's bytes, and how often they were changed in place."""

    storage: int
    bytes: int
    offset: int
    changes: int

    @classmethod
    def of(cls, tensor: Any) -> _Memory:
        storage = tensor.untyped_storage()
        return cls(storage.data_ptr(), storage.nbytes(), tensor.storage_offset(), tensor._version)


@dataclass(frozen=True)
class _Running:
    name: str
    tensor: Any
    memory: _Memory
    done: Future[int]


class Overlap:
    """The copies of one offload. A context manager: no copy runs after its end."""

    def __init__(self, on: bool):
        self._on = on
        self._pool: ThreadPoolExecutor | None = None
        self._running: _Running | None = None
        self._name = ""  # the last tensor's
        self.bytes = 0  # finished bytes, of copies that were waited for

    def __enter__(self) -> Overlap:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def taken(self, named: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yields the generator's pairs, and keeps none while the next one is made."""
        while True:
            try:
                pair = [next(named)]
            except StopIteration:
                return
            except Exception as error:
                if self._name:
                    error.add_note(f'raised by the caller\'s generator after "{self._name}"')
                raise
            yield pair.pop()

    def run(self, name: str, tensor: Any, copy: Callable[[], int]) -> None:
        """Runs `copy`, which reads `tensor`: now, or while the caller makes the next tensor. The
        previous copy is done when this returns."""
        self._name = name
        beside = self._on and _may_run_beside(tensor)
        memory = _Memory.of(tensor) if beside else None
        before = self._running
        self.wait()
        if memory is None:
            self.bytes += copy()
            return
        if before is not None and before.memory.storage == memory.storage != 0:
            # Parts of a fused tensor come in the order of their addresses.
            if memory.offset <= before.memory.offset:
                raise TensorError(
                    f'tensor "{name}" lies in memory that tensor "{before.name}" was copied from '
                    f"while the generator went on, and may have filled it anew; {_HOW}",
                    name,
                )
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="deltawire-copy")
        self._running = _Running(name, tensor, memory, self._pool.submit(copy))

    def wait(self) -> None:
        """Returns when the last copy is done."""
        running, self._running = self._running, None
        if running is None:
            return
        failed: Exception | None = None
        try:
            self.bytes += running.done.result()
        except Exception as error:
            error.add_note(f'raised by the copy of "{running.name}"')
            failed = error
        # Check this first: memory that was freed before the copy began makes the copy fail, too.
        if _Memory.of(running.tensor) != running.memory:
            raise TensorError(
                f'tensor "{running.name}" was changed or freed while it was copied, by the '
                f"generator that had handed it over; {_HOW}",
                running.name,
            ) from failed
        if failed is not None:
            raise failed


def _may_run_beside(tensor: Any) -> bool:
    """Returns whether the tensor may be copied beside its generator. Parameters may not: FSDP's and
    ZeRO's contexts free them when a generator goes on. Nor may tensors whose changes cannot be seen
    (other libraries' arrays, inference tensors), nor those on devices other than CUDA's, whose
    streams this library does not know."""
    if not is_torch(tensor) or tensor.device.type not in ("cpu", "cuda"):
        return False
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_inference()
    )
