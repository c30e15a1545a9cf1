"""What deltawire asks of a vLLM worker: its models, its groups, and its own ways to load.

Read with vLLM 0.28 to 0.33 (docs/engine.md has what each one lacks). Owner: the worker's Follower.
Errors: `Refused`, with the reason.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from deltawire.engine import PlanCache
from deltawire.engine._outcome import ANEW, some
from deltawire.engine._ranks import Refused
from deltawire.engine._second import Instance


@dataclass
class Model:
    """A model of the worker, and how it is loaded. `beside`: the model that answers, where this one
    holds it and a draft: what the draft shares with it is only the answering model's to write."""

    module: torch.nn.Module
    load: Callable[[Any], Any]
    config: Any
    is_served: bool
    beside: tuple[torch.nn.Module, Callable[[Any], Any]] | None = None


class Engine:
    """One vLLM worker, as a Follower sees it."""

    def __init__(self, worker: Any):
        from vllm.distributed import parallel_state  # pylint: disable=import-outside-toplevel

        self._worker = worker
        self._config = worker.vllm_config
        parallel = self._config.parallel_config
        # The ranks of one replica. vLLM's world group has all replicas of a mixture of experts.
        self.group = [get() for get in (
            getattr(parallel_state, name, None)
            for name in ("get_tp_group", "get_pcp_group", "get_pp_group")) if get is not None]
        self.rank = 0
        for group in reversed(self.group):
            self.rank = self.rank * group.world_size + group.rank_in_group
        alone = getattr(parallel, "data_parallel_external_lb", False)
        hybrid = getattr(parallel, "data_parallel_hybrid_lb", False)
        #: Behind this server's address, as far as this worker knows: replicas of a dense model do
        #: not know of each other.
        self.replicas = 1 if alone else (
            parallel.data_parallel_size_local if hybrid else parallel.data_parallel_size)
        index = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        self.replica = 0 if alone else index % max(self.replicas, 1) if hybrid else index

    def configuration(self) -> contextlib.AbstractContextManager:
        """In which vLLM's own loaders expect to be called."""
        from vllm.config import set_current_vllm_config  # pylint: disable=import-outside-toplevel

        return set_current_vllm_config(self._config)

    def served(self) -> Model:
        """The model that answers."""
        module = self._worker.model_runner.get_model()
        return Model(module, module.load_weights, self._config.model_config, True)

    def draft(self) -> Model | None:
        """The draft model of speculative decoding, if there is one."""
        runner = self._worker.model_runner
        get = getattr(runner, "get_draft_model", None)
        module = get() if get is not None else getattr(
            getattr(runner, "drafter", None), "model", None)
        if not isinstance(module, torch.nn.Module):
            return None
        return Model(module, module.load_weights,
                     self._config.speculative_config.draft_model_config, False)

    def refuse_what_cannot_follow(self, model: Model | None) -> None:
        """Servers in which the parameters of one model are not all of the truth."""
        if model is None:
            raise Refused("this server has no draft model")
        if getattr(self._config.parallel_config, "enable_eplb", False):
            raise Refused("EPLB moves experts' weights while the server runs; "
                          f"{ANEW} without --enable-eplb")
        # After a load of vLLM's own that raised, its next one says that it is done, and leaves
        # parameters without memory.
        lost = [name for name, p in model.module.named_parameters()
                if p.device.type == "meta" != self._worker.device.type]
        if lost:
            raise Refused(f"{ANEW}: {len(lost)} parameters have no memory since a reload of vLLM's "
                          f"own failed: {some(lost)}")

    def refuse_corrupting_reload(self) -> None:
        """Models that vLLM's reload leaves with wrong weights, and says nothing."""

    def reload(self, directory: str) -> None:
        """vLLM's own load of the whole directory."""
        self._worker.reload_weights(weights_path=directory, is_checkpoint_format=True)

    @torch.no_grad()
    def compute_anew(self, module: torch.nn.Module) -> None:
        """What vLLM has computed from weights after its load, by vLLM's own functions: latent
        attention keeps both halves of kv_b_proj once more, in another order. And what it caches of
        adapters, which lie over the weights."""
        # pylint: disable-next=import-outside-toplevel
        from vllm.model_executor.layers.attention import is_deferred_attention_layer

        dtype = self._config.model_config.dtype
        for part in module.modules():
            if is_deferred_attention_layer(part):
                part.process_weights_after_loading(dtype)
        if hasattr(module, "process_weights_after_loading"):
            module.process_weights_after_loading()
        reset = getattr(self._worker.model_runner, "reset_lora_state", None)
        if reset is not None:
            reset()
        if self._worker.device.type != "cpu":
            torch.accelerator.synchronize()

    def plans(self, model: Model, plans: str | bool) -> PlanCache | None:
        """The cache of layouts of this rank's place, where it is asked for."""
        if not plans:
            return None
        import vllm  # pylint: disable=import-outside-toplevel

        parallel = self._config.parallel_config
        names = ("tp", "pp") if len(self.group) == 2 else ("tp", "pcp", "pp")
        layout = [f"{name} {group.rank_in_group}/{group.world_size}"
                  for name, group in zip(names, self.group)]
        layout += [f"ep {'on' if parallel.enable_expert_parallel else 'off'}",
                   f"dp {parallel.data_parallel_rank}/{parallel.data_parallel_size}",
                   f"quantization {model.config.quantization}"]
        return PlanCache("vllm", vllm.__version__, ", ".join(layout),
                         None if plans is True else plans)

    def second(self, model: Model) -> Callable[[], Instance] | None:
        """Makes instances of the served model beside the one that serves."""
        return second_instance(self._config, self._worker.device) if model.is_served else None


def second_instance(vllm_config: Any, device: torch.device) -> Callable[[], Instance]:
    """Makes instances of the model, with vLLM's own post-processing, beside the one that serves."""
    # pylint: disable=import-outside-toplevel  # seldom needed
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import (
        initialize_model,
        process_weights_after_loading,
    )
    from vllm.utils.torch_utils import set_default_torch_dtype

    # A model's layers are entered in its configuration by their names, each name once.
    config = copy.copy(vllm_config)
    model_config = config.model_config

    def make() -> Instance:
        config.compilation_config = copy.copy(vllm_config.compilation_config)
        config.compilation_config.static_forward_context = {}
        config.compilation_config.static_all_moe_layers = []
        with set_default_torch_dtype(model_config.dtype), device:
            model = initialize_model(vllm_config=config, model_config=model_config)

        def load(pairs: Any) -> None:
            with set_current_vllm_config(config), set_default_torch_dtype(model_config.dtype):
                model.load_weights(pairs)

        def process() -> None:
            with set_current_vllm_config(config), set_default_torch_dtype(model_config.dtype), (
                    device):
                process_weights_after_loading(model, model_config, device)

        return Instance(model, load, process)

    return make
