"""A vLLM worker as deltawire uses it: its models, its groups, and its own ways to load.

Written for vLLM 0.28 to 0.33 (docs/engine.md has each one's gaps). Failures are `Refused`, with the
reason.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from deltawire.engine import PlanCache
from deltawire.engine._outcome import ANEW, some
from deltawire.engine._ranks import Refused
from deltawire.engine._second import Instance


@dataclass
class Model:
    """A model of the worker, and its loader. `beside`: the answering model, if this one holds it
    and a draft; only the answering model's loader writes their shared memory."""

    module: torch.nn.Module
    load: Callable[[Any], Any]
    config: Any
    is_served: bool
    beside: tuple[torch.nn.Module, Callable[[Any], Any]] | None = None


class Both(torch.nn.Module):
    """The answering model and a draft that is loaded from the same checkpoint."""

    def __init__(self, served: torch.nn.Module, draft: torch.nn.Module):
        super().__init__()
        self.served, self.draft = served, draft

    def load_weights(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Gives each model its tensors; the draft comes last, as in vLLM."""
        first, second = itertools.tee(pairs)
        self.served.load_weights(first)
        self.draft.load_weights(second)


class Engine:
    """One vLLM worker, as a Follower sees it."""

    def __init__(self, worker: Any):
        from vllm.distributed import parallel_state  # pylint: disable=import-outside-toplevel

        self._worker = worker
        self._config = worker.vllm_config
        self._path = getattr(self._config.model_config, "model", None)
        self._both: Both | None = None
        parallel = self._config.parallel_config
        # The ranks of one replica. vLLM's world group has all replicas of a mixture of experts.
        self.group = [get() for get in (
            getattr(parallel_state, name, None)
            for name in ("get_tp_group", "get_pcp_group", "get_pp_group")) if get is not None]
        self.rank = 0
        for group in reversed(self.group):
            self.rank = self.rank * group.world_size + group.rank_in_group
        #: Each replica has a separate server, behind a load balancer.
        self.alone = alone = getattr(parallel, "data_parallel_external_lb", False)
        hybrid = getattr(parallel, "data_parallel_hybrid_lb", False)
        #: The replicas behind this server's address, as far as this worker knows. Replicas of a
        #: dense model do not know of each other.
        self.replicas = 1 if alone else (
            parallel.data_parallel_size_local if hybrid else parallel.data_parallel_size)
        index = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        self.replica = 0 if alone else index % max(self.replicas, 1) if hybrid else index

    def configuration(self) -> contextlib.AbstractContextManager:
        """Returns the context in which vLLM's own loaders must be called."""
        from vllm.config import set_current_vllm_config  # pylint: disable=import-outside-toplevel

        return set_current_vllm_config(self._config)

    def served(self) -> Model:
        """Returns the answering model, with its draft if that is loaded from the same
        checkpoint."""
        module = self._worker.model_runner.get_model()
        if self._both is None and self._draft_of_the_checkpoint() is not None:
            self._both = Both(module, self._draft_of_the_checkpoint())
        if self._both is None:
            return Model(module, module.load_weights, self._config.model_config, True)
        return Model(self._both, self._both.load_weights, self._config.model_config, True,
                     (module, module.load_weights))

    def _draft_of_the_checkpoint(self) -> torch.nn.Module | None:
        draft, speculation = self._draft_module(), self._config.speculative_config
        if draft is None or getattr(speculation, "draft_model_config", None) is None:
            return None
        # A reload of vLLM's own changes the path of the answering model, and not the draft's.
        return draft if speculation.draft_model_config.model == self._path else None

    def draft(self) -> Model | None:
        """Returns the draft model of speculative decoding, if it has a separate checkpoint."""
        module = self._draft_module()
        if module is None or self._draft_of_the_checkpoint() is not None:
            return None
        return Model(module, module.load_weights,
                     self._config.speculative_config.draft_model_config, False)

    def _draft_module(self) -> torch.nn.Module | None:
        runner = self._worker.model_runner
        get = getattr(runner, "get_draft_model", None)
        module = get() if get is not None else getattr(
            getattr(runner, "drafter", None), "model", None)
        return module if isinstance(module, torch.nn.Module) else None

    def refuse_what_cannot_follow(self, model: Model | None) -> None:
        """Refuses servers that hold more state than the parameters of one model."""
        if model is None:
            raise Refused("this server has no draft model of a checkpoint of its own")
        if getattr(self._config.parallel_config, "enable_eplb", False):
            raise Refused("EPLB moves experts' weights while the server runs; "
                          f"{ANEW} without --enable-eplb")
        # After a failed load, vLLM's next load claims success, and leaves parameters without
        # memory.
        lost = [name for name, p in model.module.named_parameters()
                if p.device.type == "meta" != self._worker.device.type]
        if lost:
            raise Refused(f"{ANEW}: {len(lost)} parameters have no memory since a reload of vLLM's "
                          f"own failed: {some(lost)}")

    def why_no_reload(self) -> str:
        """Returns why vLLM's own reload would silently leave wrong weights; "" if it does not."""
        if self._draft_of_the_checkpoint() is not None:
            return f"vLLM's own reload leaves the draft model at older weights; {ANEW}"
        for name, part in self._worker.model_runner.get_model().named_modules():
            experts = part._parameters.get("w13_weight")  # pylint: disable=protected-access
            if experts is not None and experts.device.type == "cpu":
                # It packs them once, at its first load.
                return ("vLLM's own reload gives wrong weights for experts that it packs, as "
                        f"{name}; second_instance follows them in place, else {ANEW}")
            if "A" in part._parameters and type(part).__name__.startswith("Mamba"):
                return (f"vLLM's own reload gives wrong weights for {name}.A, which it computes; "
                        f"loader_tensors follows it in place, else {ANEW}")
        return ""

    def reload(self, directory: str) -> None:
        """Runs vLLM's own load of the whole directory."""
        self._worker.reload_weights(weights_path=directory, is_checkpoint_format=True)

    @torch.no_grad()
    def compute_anew(self, module: torch.nn.Module) -> None:
        """Recomputes, by vLLM's own functions, the state that it derives from weights after its
        load: latent attention keeps both halves of kv_b_proj again, in another order. Also resets
        its cached state of adapters, which depends on the weights."""
        # pylint: disable-next=import-outside-toplevel
        from vllm.model_executor.layers.attention import is_deferred_attention_layer

        dtype = self._config.model_config.dtype
        for part in module.modules():
            if is_deferred_attention_layer(part):
                part.process_weights_after_loading(dtype)
        for whole in [module.served, module.draft] if isinstance(module, Both) else [module]:
            if hasattr(whole, "process_weights_after_loading"):
                whole.process_weights_after_loading()
        reset = getattr(self._worker.model_runner, "reset_lora_state", None)
        if reset is not None:
            reset()
        if self._worker.device.type != "cpu":
            torch.accelerator.synchronize()

    def plans(self, model: Model, plans: str | bool) -> PlanCache | None:
        """Returns the cache of layouts for this rank's place, if the call asks for it."""
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
        """Returns a maker of instances of the served model, beside the serving one."""
        if not model.is_served or model.beside is not None:
            return None
        return second_instance(self._config, self._worker.device)


def second_instance(vllm_config: Any, device: torch.device) -> Callable[[], Instance]:
    """Returns a maker of instances of the model, with vLLM's own post-processing."""
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
