"""What can go wrong, by what to do about it."""

from __future__ import annotations


class Error(RuntimeError):
    """Anything that deltawire refuses or cannot do. `code`: the status's name, e.g. "ABORTED"."""

    code = "UNKNOWN"


class UnavailableError(Error):
    """Nobody answers at the endpoint, or the daemon there is stopping."""

    code = "UNAVAILABLE"


class DeadlineError(Error):
    """No answer within the time-out."""

    code = "DEADLINE_EXCEEDED"


class AbandonedError(Error):
    """What was begun is over for all: an offload, as a rank died, hung or gave up (offload again); or
    a sync, as a receiver could not (its message says which)."""

    code = "ABORTED"


class RefusedError(Error):
    """The daemon's state does not allow it: another layout, an old version, missing tensors."""

    code = "FAILED_PRECONDITION"


class CheckpointError(RefusedError):
    """The directory `hf_dir` is not there, not whole, or has files that the sender refuses."""


class TensorError(Error):
    """A tensor does not fit what was registered. `tensor`: its name (the first of several)."""

    code = "INVALID_ARGUMENT"

    def __init__(self, message: str, tensor: str = ""):
        super().__init__(message)
        self.tensor = tensor


class MissingTensorError(TensorError):
    """A registered tensor was neither given nor declared unchanged."""


class ExtraTensorError(TensorError):
    """A tensor was given that is not registered, or was given before."""


class ShapeError(TensorError):
    """A tensor has another shape than the registered one."""


class DTypeError(TensorError):
    """A tensor has another dtype than the registered one, or one that safetensors does not know."""


_NAMES = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}
_CLASSES = {4: DeadlineError, 9: RefusedError, 10: AbandonedError, 14: UnavailableError}


def from_status(code: int, message: str) -> Error:
    """The exception for a code of the C ABI."""
    if code in _CLASSES:
        return _CLASSES[code](message)
    error = Error(message)
    error.code = _NAMES.get(code, "UNKNOWN")
    return error


def told(error: BaseException) -> str:
    """What other processes are told of an error. Its text may hold what UTF-8 does not have, such
    as a file name's stray bytes."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
