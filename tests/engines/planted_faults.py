"""Faults in an engine's own process, while the file that DELTAWIRE_TEST_PLANT names says so.

"refuse": the second rank says that it could not write. "kill": the process dies when it has written
an update, before it says so; "kill one": only the second rank's. "memory": the second rank has none
left to prepare in. "slow": whatever the second rank does takes 0.1 s longer. "loader": the engine's
loader raises when it has loaded a part. "drift": an element of a parameter changes, once, before
the client looks at the memory. This plug-in of the tests is no part of deltawire.
"""

import itertools
import os
import pathlib
import signal
import time

SLOW_S = 0.1
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
    prepare, whole_apply = EngineClient._prepare, EngineClient.apply

    def planted_in_second(fault):
        import torch

        return planted() == fault and torch.distributed.get_rank() == 1

    def delay():
        if planted_in_second("slow"):
            time.sleep(SLOW_S)

    def refusing(client):
        delay()
        if planted_in_second("refuse"):
            return Outcome(False, "a planted fault")
        return whole_apply(client)

    def preparing(client):
        delay()
        update = prepare(client)
        if planted_in_second("memory"):
            raise MemoryError("a planted lack of memory")
        return update

    def dying(client):
        apply(client)
        if planted() == "kill" or planted_in_second("kill one"):
            os.kill(os.getpid(), signal.SIGKILL)

    def drifting(client, *part):
        delay()
        if planted() == "drift":
            place().unlink()
            next(client._model.parameters()).data.view(-1)[0] += 1
        return look(client, *part)

    def loading(model, pairs):
        return load(model, _raising(pairs) if planted() == "loader" else pairs)

    EngineClient._apply, EngineClient.look, EngineClient.apply = dying, drifting, refusing
    EngineClient._prepare = preparing
    model_class.load_weights = loading


def register_vllm():
    from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

    if Qwen3ForCausalLM.load_weights.__name__ != "loading":  # vLLM calls this more than once
        _plant(Qwen3ForCausalLM)


def register_sglang():
    from sglang.srt.models.qwen3 import Qwen3ForCausalLM

    _plant(Qwen3ForCausalLM)
