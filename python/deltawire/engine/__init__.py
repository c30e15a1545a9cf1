"""Brings the weights of a running inference engine from one committed version to the next.

    from deltawire.engine import EngineClient

    client = EngineClient("/dev/shm/deltawire/policy")   # a receiver's directory
    client.attach(model, model.load_weights)             # finds where the model keeps each byte
    ...
    if client.prepare():          # everything that can be checked is checked; nothing is written
        client.apply()            # writes what changed; milliseconds

Neither torch nor an engine is imported before `attach`. What can fail answers with an `Outcome`,
whose `reason` says why; the engine's memory is then what it was before.
"""

from deltawire.engine._client import Attached, EngineClient, Outcome
from deltawire.engine._core import Identity

__all__ = ["Attached", "EngineClient", "Identity", "Outcome"]
