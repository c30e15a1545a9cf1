"""NOT vLLM and NOT SGLang: modules with the names of what deltawire's plug-ins import of them, and
ranks that are threads of this process. tests/engines has the real engines.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

LIMIT_S = 60.0


class Ranks:
    """A group of ranks, as engines' GroupCoordinators are: each thread of `run` is one."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self.cpu_group = self
        self._own = threading.local()
        self._barrier = threading.Barrier(world_size)
        self._said: list[Any] = [None] * world_size

    @property
    def rank_in_group(self) -> int:
        return self._own.rank

    @property
    def is_last_rank(self) -> bool:
        return self.rank_in_group == self.world_size - 1

    def enter(self, rank: int) -> None:
        """Makes the calling thread one of the ranks: `rank`, modulo their number."""
        self._own.rank = rank % self.world_size

    def gather(self, found: list, value: Any) -> None:
        self._said[self.rank_in_group] = value
        self._barrier.wait(LIMIT_S)
        found[:] = self._said
        self._barrier.wait(LIMIT_S)

    def run(self, step: Callable[[int], Any]) -> list[Any]:
        """What `step(rank)` returns on each rank, or the exception that it raises."""
        results: list[Any] = [None] * self.world_size

        def one(rank: int) -> None:
            self._own.rank = rank
            try:
                results[rank] = step(rank)
            except Exception as error:  # pylint: disable=broad-except
                results[rank] = error

        threads = [threading.Thread(target=one, args=(r,)) for r in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


#: The ranks of the test that runs; both engines' stand-ins ask for them.
ranks = Ranks(1)


def start(world_size: int) -> Ranks:
    """New ranks for a test."""
    global ranks  # pylint: disable=global-statement
    ranks = Ranks(world_size)
    return ranks


def _gather(found: list, value: Any, group: Ranks) -> None:
    group.gather(found, value)


#: What an executor's thread has as its groups; others have `ranks`.
here = threading.local()


def _group(name: str) -> Callable[[], Any]:
    def get() -> Any:
        groups = getattr(here, "groups", {"get_tp_group": ranks})
        return groups.get(name) or Group()

    return get


class Group(types.SimpleNamespace):
    """One of an engine's other groups, of this rank alone."""

    rank_in_group, world_size, is_last_rank = 0, 1, True


_Info = typing.TypeVar("_Info")
_Update = typing.TypeVar("_Update")


class WeightTransferEngine(typing.Generic[_Info, _Update]):
    """As in vLLM: a worker's end, which the requests are handed to."""

    def __init__(self, model: torch.nn.Module):
        self.model, self.device = model, torch.device("cpu")
        self.parallel_config = types.SimpleNamespace(
            enable_expert_parallel=False, data_parallel_rank=0, data_parallel_size=1)
        self.model_config = types.SimpleNamespace(quantization=None, dtype=torch.bfloat16)
        self._default_model, self._default_model_config = self.model, self.model_config

    def set_weight_update_target(self, model: torch.nn.Module, model_config: Any) -> None:
        self.model, self.model_config = model, model_config

    def reset_weight_update_target(self) -> None:
        self.set_weight_update_target(self._default_model, self._default_model_config)

    def parse_update_info(self, update_info: dict) -> Any:
        return self.update_info_cls(**update_info)


#: As many replies of one rank can wait, as in vLLM's ring in shared memory.
RING = 10


class WorkerBase:
    """As in vLLM: what a plug-in adds its method to."""


class Worker(WorkerBase):
    """As vLLM's, with its own session calls, which raise on every rank, and its own load."""

    def __init__(self, rank: int, model: torch.nn.Module, draft: torch.nn.Module | None = None,
                 replica: int = 0, replicas: int = 1, ranks_of_replica: int = 1):
        self.rank, self.device = rank, torch.device("cpu")
        self.parallel_config = types.SimpleNamespace(
            enable_expert_parallel=False, enable_eplb=False, data_parallel_rank=replica,
            data_parallel_index=replica, data_parallel_size=replicas,
            data_parallel_size_local=replicas, world_size=ranks_of_replica)
        self.vllm_config = types.SimpleNamespace(
            parallel_config=self.parallel_config, speculative_config=types.SimpleNamespace(
                draft_model_config=types.SimpleNamespace(model="/models/policy", quantization=None)),
            model_config=types.SimpleNamespace(
                model="/models/policy", quantization=None, dtype=torch.bfloat16))
        self.model_runner = types.SimpleNamespace(
            get_model=lambda: model, get_draft_model=lambda: draft, resets=0)
        self.model_runner.reset_lora_state = self._reset_lora_state
        self.loads: Callable[[str], None] = lambda path: None  # what a reload does
        self.steps: list[int] = []  # of the model, that this rank has taken
        self._active = False

    def _reset_lora_state(self) -> None:
        self.model_runner.resets += 1

    def reload_weights(self, weights_path: str, is_checkpoint_format: bool) -> None:
        assert is_checkpoint_format
        self.loads(weights_path)

    def execute_model(self, step: int) -> str:
        self.steps.append(step)
        return f"tokens of step {step} by rank {self.rank}"

    def finish_weight_update(self) -> None:
        if not self._active:
            raise RuntimeError(
                "finish_weight_update called without a matching start_weight_update.")
        self._active = False


class Executor:
    """As vLLM's MultiprocExecutor: one queue of calls for each rank, a ring of replies for each,
    and replies that are read in the ranks' order until one of them is a failure. A context
    manager."""

    def __init__(self, workers: list[Worker], groups: Callable[[int], dict[str, Any]]):
        """`groups`: what vLLM's functions of these names return on a rank; Ranks among them learn
        their own `rank_in_group` by `enter`."""
        self.workers = workers
        self._calls: list[queue.Queue] = [queue.Queue() for _ in workers]
        self.replies: list[queue.Queue] = [queue.Queue(RING) for _ in workers]
        self._threads = [threading.Thread(target=self._run, args=(i, groups(i)), daemon=True)
                         for i in range(len(workers))]

    def __enter__(self) -> Executor:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        for calls in self._calls:
            calls.put(None)
        for replies in self.replies:  # a rank may wait for a place in its ring
            with contextlib.suppress(queue.Empty):
                while True:
                    replies.get_nowait()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _run(self, rank: int, groups: dict[str, Any]) -> None:
        here.groups = groups
        for group in groups.values():
            if isinstance(group, Ranks):
                group.enter(rank)
        while (call := self._calls[rank].get()) is not None:
            method, kwargs, reply_rank = call
            try:
                reply = True, getattr(self.workers[rank], method)(**kwargs)
            except Exception as error:  # pylint: disable=broad-except
                reply = False, str(error)
            if reply_rank in (None, rank):
                self.replies[rank].put(reply)

    def collective_rpc(self, method: str, reply_rank: int | None = None, limit: float = LIMIT_S,
                       **kwargs: Any) -> list[Any]:
        """`reply_rank`: of the only rank that replies, as for a model's steps. Raises RuntimeError
        at the first failure, and queue.Empty where a rank says nothing for so long."""
        for calls in self._calls:
            calls.put((method, kwargs, reply_rank))
        found = []
        for rank, replies in enumerate(self.replies):
            if reply_rank in (None, rank):
                done, result = replies.get(timeout=limit)
                if not done:
                    raise RuntimeError(f"Worker failed with error '{result}', please check")
                found.append(result)
        return found


class Runner:
    """As in SGLang: a model, and the hooks around a write."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.model_config = types.SimpleNamespace(dtype=torch.bfloat16, quantization=None)
        self.spec_algorithm = types.SimpleNamespace(is_none=lambda: True)
        self.eplb_manager = None
        self.weight_updater = self
        self.writes: list[str] = []
        self.fail_at = ""  # "begin" or "end": the next of these calls raises

    def get_model(self) -> torch.nn.Module:
        return self.model

    def get_model_runner(self) -> Runner:
        return self

    def _assert_weight_cache_inactive(self, who: str) -> None:
        assert who == "deltawire"

    def begin_weight_update(self) -> None:
        self._at("begin")

    def end_weight_update(self, run_post_load: bool) -> None:
        assert run_post_load
        if hasattr(self.model, "post_load_weights"):
            self.model.post_load_weights()
        self._at("end")

    def _at(self, where: str) -> None:
        self.writes.append(where)
        if where == self.fail_at:
            self.fail_at = ""
            raise RuntimeError(f"planted at the {where}")


def _module(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)


def _parallel() -> Any:
    return types.SimpleNamespace(
        tp_group=ranks, tp_rank=ranks.rank_in_group, tp_size=ranks.world_size, pp_rank=0, pp_size=1,
        moe_ep_rank=0, moe_ep_size=1, attn_dp_rank=0, attn_dp_size=1)


#: What a plug-in has told the server's metrics.
gauges: list[int] = []
#: As SGLang's server was started.
speculation = types.SimpleNamespace(speculative_draft_model_path=None)


def install() -> None:
    """Puts the stand-ins where imports find them, in the place of installed engines too."""
    torch.distributed.all_gather_object = _gather
    _module("vllm", __version__="0.0+stand-in")
    _module("vllm.distributed")
    _module("vllm.distributed.parallel_state", get_world_group=lambda: ranks, **{
        name: _group(name) for name in ("get_tp_group", "get_pcp_group", "get_pp_group")})
    _module("vllm.config", set_current_vllm_config=contextlib.nullcontext)
    _module("vllm.v1")
    _module("vllm.v1.worker")
    _module("vllm.v1.worker.worker_base", WorkerBase=WorkerBase)
    _module("vllm.distributed.weight_transfer")
    _module("vllm.distributed.weight_transfer.base", WeightTransferEngine=WeightTransferEngine,
            WeightTransferInitInfo=object, WeightTransferUpdateInfo=object)
    _module("vllm.distributed.weight_transfer.factory", WeightTransferEngineFactory=(
        types.SimpleNamespace(_registry={"deltawire": None})))
    _module("prometheus_client", Gauge=lambda *_: types.SimpleNamespace(set=gauges.append))
    _module("vllm.model_executor")
    _module("vllm.model_executor.layers")
    _module("vllm.model_executor.layers.attention",
            is_deferred_attention_layer=lambda m: hasattr(m, "process_weights_after_loading"))
    _module("sglang", __version__="0.0+stand-in")
    _module("sglang.srt")
    _module("sglang.srt.runtime_context", get_parallel=_parallel, get_spec=lambda: speculation,
            get_model=lambda: types.SimpleNamespace(model_path="/models/policy"))
    _module("sglang.srt.model_executor")
    _module("sglang.srt.model_executor.model_runner_components")
    _module("sglang.srt.model_executor.model_runner_components.weight_updater",
            _unsupported_derived_weight_cache_error=lambda model: None)
    _module("sglang.srt.model_loader")
    _module("sglang.srt.model_loader.utils",
            set_default_torch_dtype=lambda dtype: contextlib.nullcontext())
