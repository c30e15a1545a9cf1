"""The client of one engine rank: attach once, then prepare and apply for each version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from deltawire import Error
from deltawire.engine import _core

#: Names of torch's dtypes by those of safetensors.
_TORCH_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
#: So many names are spelt out in a reason.
_NAMED = 5


@dataclass
class Outcome:
    """Whether a step was done. It is truthy when it was; else `reason` says why not."""

    ok: bool
    reason: str = ""
    seconds: float = 0.0
    #: Of `prepare`: what the update is.
    update: _core.UpdateInfo | None = None

    def __bool__(self) -> bool:
        return self.ok


@dataclass
class Attached(Outcome):
    """What `attach` found of the engine's memory."""

    boxes: int = 0
    mapped_bytes: int = 0
    #: (parameter, bytes) that the checkpoint does not have: padding, or what the loader computes.
    unmapped: list[tuple[str, int]] = field(default_factory=list)
    trace_seconds: float = 0.0


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


class EngineClient:
    """One rank's weights and the receiver's directory that they follow. Not thread-safe."""

    def __init__(self, directory: str, threads: int = 1):
        """`directory`: of one model, written by a receiver on this machine that has committed a
        version. `threads`: for comparing, decoding and writing; 0: one per core. Raises
        `deltawire.Error` when the directory is not a receiver's."""
        self._weights = _core.EngineWeights(str(directory), threads)
        self._keep: list[Any] = []

    @property
    def held(self) -> _core.Identity:
        """What the engine's memory is; false while that is not known."""
        return self._weights.held

    @property
    def committed(self) -> _core.Identity:
        """What the receiver has committed; false when nothing is."""
        return self._weights.committed

    def wait(self, known: _core.Identity, seconds: float) -> _core.Identity:
        """Returns what is committed once it is not `known`. Raises `deltawire.DeadlineError`."""
        return self._weights.wait_for_other(known, seconds)

    def attach(self, model: Any, load: Callable[[Iterable], Any]) -> Attached:
        """Finds where `model` keeps each element, and proves it.

        `load` is the engine's own loader: it takes (name, tensor) pairs. It runs once over tensors
        without data, under a watch that lets nothing be written. The map is then read backwards:
        the committed buffer must equal the live parameters bit by bit, or the model is refused.
        """
        import torch  # pylint: disable=import-outside-toplevel

        from deltawire.engine import _trace  # pylint: disable=import-outside-toplevel

        begin = time.perf_counter()
        tensors = [(name, getattr(torch, _TORCH_DTYPES[dtype]), tuple(shape))
                   for name, dtype, shape in self._weights.tensors]
        found = _trace.trace(model, load, tensors)
        traced = time.perf_counter() - begin
        result = Attached(False, boxes=len(found.boxes), trace_seconds=traced)

        def refuse(reason: str) -> Attached:
            result.reason = reason
            result.seconds = time.perf_counter() - begin
            return result

        if found.problems:
            return refuse("the loader cannot be followed: " + _some(found.problems))
        on_device = [s.names[0] for s in found.storages if s.keeper.device.type != "cpu"]
        if on_device:
            return refuse("parameters that are not in this machine's memory: " + _some(on_device))
        missing = [t[0] for t in _missing(found, tensors)]
        storages = [(", ".join(s.names), s.keeper.untyped_storage().data_ptr(),
                     s.keeper.untyped_storage().nbytes()) for s in found.storages]
        try:
            self._weights.bind(storages, [tuple(box) for box in found.boxes])
            compared = self._weights.adopt()
        except Error as error:
            return refuse(str(error))
        result.mapped_bytes = compared.bytes
        result.unmapped = self._weights.unmapped
        if compared.different:
            return refuse(
                f"{len(compared.different)} tensors have other bytes in the engine than in "
                f"{compared.identity}: it moves or changes them after loading, or it loaded "
                f"another version: {_some(compared.different)}")
        if missing and not result.mapped_bytes:
            return refuse("the engine holds none of the checkpoint's tensors")
        self._keep = [s.keeper for s in found.storages]
        result.ok = True
        result.seconds = time.perf_counter() - begin
        return result

    def prepare(self) -> Outcome:
        """Makes the way from `held` to what is committed ready, and checks all of it. Writes
        nothing. An update to what is held already is one too, without changes."""
        return self._do(self._weights.prepare)

    def apply(self) -> Outcome:
        """Writes what `prepare` made ready; the engine must not compute meanwhile."""
        return self._do(self._weights.apply)

    def rollback(self) -> Outcome:
        """Makes the memory what it was before the last `apply`."""
        return self._do(self._weights.rollback)

    def check(self) -> Outcome:
        """Compares the digests of the engine's memory with those of `held`. Reads every byte;
        chunks that other ranks have a part of are not judged here."""
        begin = time.perf_counter()
        try:
            found, _ = self._weights.check()
        except Error as error:
            return Outcome(False, str(error), time.perf_counter() - begin)
        if found.different:
            return Outcome(False, "the engine's memory has drifted in " + _some(found.different),
                           time.perf_counter() - begin)
        return Outcome(True, "", time.perf_counter() - begin)

    @staticmethod
    def _do(call: Callable[[], Any]) -> Outcome:
        begin = time.perf_counter()
        try:
            update = call()
        except Error as error:
            return Outcome(False, str(error), time.perf_counter() - begin)
        return Outcome(True, "", time.perf_counter() - begin, update)


def _missing(found: Any, tensors: list) -> list:
    """Tensors of which nothing is in this engine's memory."""
    seen = {box.tensor for box in found.boxes}
    return [t for i, t in enumerate(tensors) if i not in seen]
