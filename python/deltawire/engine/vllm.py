"""vLLM's plug-in `deltawire`: a server's workers apply a receiver's commits, in place.

vLLM finds it by the entry point `vllm.general_plugins`. It adds one method to vLLM's workers, which
the server forwards calls to (VLLM_SERVER_DEV_MODE=1), and changes nothing else of vLLM:

    POST /collective_rpc {"method": "deltawire_call", "kwargs": {"call": "prepare", "nonce": ...}}

docs/engine.md has the calls and their answers; `_vllm_follower` makes them. vLLM's own session of a
weight transfer returns only exceptions, after which its executor takes unread replies for answers
of later calls. So the backend `deltawire` only explains that.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("vllm.deltawire")  # vLLM shows what its own loggers say

BACKEND = "deltawire"
#: The metric that a receiver looks for in the server's /metrics before it makes a call, because a
#: worker without `deltawire_call` raises. Its value is the calls' version.
METRIC, CALLS = "deltawire_plugin_calls", 1


def register() -> None:
    """Registers the plug-in. vLLM calls this entry point in every process, more than once. If vLLM
    lacks something that the calls need, it does nothing, and the server starts as without it."""
    # pylint: disable=import-outside-toplevel
    try:
        from vllm.distributed.parallel_state import (  # noqa: F401  # pylint: disable=unused-import
            get_pp_group,
            get_tp_group,
        )
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
        from vllm.model_executor.layers.attention import (  # noqa: F401
            is_deferred_attention_layer,  # pylint: disable=unused-import
        )
        from vllm.v1.worker.worker_base import WorkerBase
    except ImportError as error:
        logger.warning("deltawire: this vLLM cannot be updated in place, only by reloads: %s", error)
        return
    WorkerBase.deltawire_call = deltawire_call
    _tell_metrics()
    # pylint: disable-next=protected-access  # there is no public way to ask
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "deltawire.engine._vllm_backend", "DeltawireEngine")


def deltawire_call(worker: Any, call: str = "", nonce: str = "", **options: Any) -> dict[str, Any]:
    """A method of vLLM's workers, for `/collective_rpc`. It never raises: otherwise vLLM would not
    read the other ranks' answers, and take them for those of later calls."""
    try:
        # pylint: disable-next=import-outside-toplevel  # the HTTP process needs neither
        from deltawire.engine._vllm_engine import Engine
        from deltawire.engine._vllm_follower import Follower

        follower = vars(worker).get("_deltawire_follower")
        if follower is None:
            follower = worker._deltawire_follower = Follower(Engine(worker))
        return follower.answer(call, nonce, options)
    except Exception as error:  # pylint: disable=broad-except
        logger.exception("deltawire: unexpected")
        return {"nonce": nonce, "rank": worker.rank, "ok": False,
                "ranks": worker.parallel_config.world_size, "replicas": 1, "engine": "",
                "reason": str(error) or repr(error), "drifted": False, "anew": False,
                "corrupts": False, "held": None, "untaken": []}


def _tell_metrics() -> None:
    from prometheus_client import Gauge  # pylint: disable=import-outside-toplevel  # vLLM's own

    try:
        Gauge(METRIC, "The version of the calls that deltawire's plug-in answers").set(CALLS)
    except ValueError:
        pass  # it exists already
