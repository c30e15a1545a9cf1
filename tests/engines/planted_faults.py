"""Faults in an engine's own process, while the file that DELTAWIRE_TEST_PLANT names says so.

"refuse": the second rank says that it could not write. "kill": the process dies when it has written an update, before it says so. "loader": the engine's
loader raises when it has loaded a part. "drift": an element of a parameter changes, once, before
the client looks at the memory. This plug-in of the tests is no part of deltawire.
"""

import itertools
import os
import pathlib
import signal

#: So many tensors are loaded before the loader raises.
LOADED = 7


def place() -> pathlib.Path:
    return pathlib.Path(os.environ.get("DELTAWIRE_TEST_PLANT", "/nonexistent"))


def planted() -> str:
    return place().read_text() if place().exists() else ""


def _raising(pairs):
    yield from itertools.islice(pairs, LOADED)
    raise RuntimeError("a planted fault in the loader")


def _plant(model_class) -> None:
    from deltawire.engine import EngineClient

    from deltawire.engine import Outcome

    apply, look, load = EngineClient._apply, EngineClient.look, model_class.load_weights
    whole_apply = EngineClient.apply

    def refusing(client):
        import torch

        if planted() == "refuse" and torch.distributed.get_rank() == 1:
            return Outcome(False, "a planted fault")
        return whole_apply(client)

    def dying(client):
        apply(client)
        if planted() == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def drifting(client, *part):
        if planted() == "drift":
            place().unlink()
            next(client._model.parameters()).data.view(-1)[0] += 1
        return look(client, *part)

    def loading(model, pairs):
        return load(model, _raising(pairs) if planted() == "loader" else pairs)

    EngineClient._apply, EngineClient.look, EngineClient.apply = dying, drifting, refusing
    model_class.load_weights = loading


def register_vllm():
    from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

    if Qwen3ForCausalLM.load_weights.__name__ != "loading":  # vLLM calls this more than once
        _plant(Qwen3ForCausalLM)


def register_sglang():
    from sglang.srt.models.qwen3 import Qwen3ForCausalLM

    _plant(Qwen3ForCausalLM)
