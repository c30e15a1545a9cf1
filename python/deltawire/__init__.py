"""Writes a trainer's weights, version by version, into the deltawire sender's shared memory.

    import deltawire

    weights = deltawire.WeightManager("/dev/shm/deltawire", model="policy")
    for step in range(1, steps + 1):
        train()
        weights.offload(model.state_dict().items(), version=step)

Takes torch tensors of every dtype, numpy arrays, and any object with DLPack or the buffer protocol.
Imports neither torch nor numpy.
"""

from deltawire._attempt import draw_attempt
from deltawire._background import Offloading
from deltawire._core import __version__
from deltawire._errors import (
    AbandonedError,
    CheckpointError,
    DeadlineError,
    DTypeError,
    Error,
    ExtraTensorError,
    MissingTensorError,
    RefusedError,
    ShapeError,
    TensorError,
    UnavailableError,
)
from deltawire._megatron import Gather
from deltawire._manager import Offloaded, Published, WeightManager
from deltawire._progress import Progress
from deltawire._tensors import TensorMeta

__all__ = [
    "AbandonedError",
    "CheckpointError",
    "DTypeError",
    "DeadlineError",
    "Error",
    "ExtraTensorError",
    "Gather",
    "MissingTensorError",
    "Offloaded",
    "Offloading",
    "Progress",
    "Published",
    "RefusedError",
    "ShapeError",
    "TensorError",
    "TensorMeta",
    "UnavailableError",
    "WeightManager",
    "__version__",
    "draw_attempt",
]
