"""The exceptions, by the remedy."""

from __future__ import annotations


class Error(RuntimeError):
    """Any failure or refusal of deltawire. `code`: the status's name, e.g. "ABORTED"."""

    code = "UNKNOWN"


class UnavailableError(Error):
    """No daemon answers at the endpoint, or it is stopping."""

    code = "UNAVAILABLE"


class DeadlineError(Error):
    """No answer within the time-out."""

    code = "DEADLINE_EXCEEDED"


class AbandonedError(Error):
    """The work is over for all: an offload, because a rank died, hung or abandoned it (offload
    again); or a sync, because a receiver failed (the message says which)."""

    code = "ABORTED"


class RefusedError(Error):
    """The daemon's state does not allow it: another layout, an old version, missing tensors."""

    code = "FAILED_PRECONDITION"


class CheckpointError(RefusedError):
    """The directory `hf_dir` is missing, incomplete, or has files that the sender refuses."""


class TensorError(Error):
    """A tensor does not fit the registered layout. `tensor`: its name (the first of several)."""

    code = "INVALID_ARGUMENT"

    def __init__(self, message: str, tensor: str = ""):
        super().__init__(message)
        self.tensor = tensor


class MissingTensorError(TensorError):
    """A registered tensor was neither given nor declared unchanged."""


class ExtraTensorError(TensorError):
    """A given tensor is not registered, or was given before."""


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
    """Returns the exception for a code of the C ABI."""
    if code in _CLASSES:
        return _CLASSES[code](message)
    error = Error(message)
    error.code = _NAMES.get(code, "UNKNOWN")
    return error


def told(error: BaseException) -> str:
    """Returns an error's text for other processes. It may contain text that UTF-8 cannot encode,
    such as a file name's stray bytes."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
