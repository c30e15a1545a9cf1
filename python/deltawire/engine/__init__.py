"""Updates a running inference engine's weights from one committed version to the next.

    from deltawire.engine import EngineClient

    client = EngineClient("/dev/shm/deltawire/policy")   # a receiver's directory
    client.attach(model, model.load_weights)             # finds where the model keeps each byte
    ...
    if client.prepare():          # everything that can be checked is checked; nothing is written
        client.apply()            # writes what changed; milliseconds

Neither torch nor an engine is imported before `attach` or `PlanCache`. Steps that can fail return
an `Outcome` with a `reason`. After a failure the engine's memory is unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltawire.engine._client import Attached, EngineClient, Outcome
from deltawire.engine._core import Identity

if TYPE_CHECKING:
    from deltawire.engine._plans import PlanCache

__all__ = ["Attached", "EngineClient", "Identity", "Outcome", "PlanCache"]


def __getattr__(name: str) -> Any:
    if name == "PlanCache":
        from deltawire.engine._plans import PlanCache  # pylint: disable=C0415  # it imports torch

        return PlanCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
