"""NOT vLLM and NOT SGLang: modules with the names of what deltawire's plug-ins import of them, and
ranks that are threads of this process. tests/engines has the real engines.
"""

from __future__ import annotations

import contextlib
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


class Group(types.SimpleNamespace):
    """One of an engine's other groups, of this rank alone."""

    rank_in_group, world_size = 0, 1


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


#: As SGLang's server was started.
speculation = types.SimpleNamespace(speculative_draft_model_path=None)


def install() -> None:
    """Puts the stand-ins where imports find them, in the place of installed engines too."""
    torch.distributed.all_gather_object = _gather
    _module("vllm", __version__="0.0+stand-in")
    _module("vllm.distributed")
    _module("vllm.distributed.parallel_state", get_world_group=lambda: ranks,
            get_tp_group=lambda: ranks, get_pp_group=Group)
    _module("vllm.distributed.weight_transfer")
    _module("vllm.distributed.weight_transfer.base", WeightTransferEngine=WeightTransferEngine,
            WeightTransferInitInfo=object, WeightTransferUpdateInfo=object)
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
