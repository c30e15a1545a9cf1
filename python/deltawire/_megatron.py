"""A Megatron trainer's parameters and position, for WeightManager.offload_megatron.

It imports nothing of megatron: it only reads the caller's models and parallel_state.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltawire import _core
from deltawire._device import has_cuda, say_way
from deltawire._errors import Error, TensorError
from deltawire._tensors import is_cuda, meta_of, source_of

# Fields of a model's config (TransformerConfig), by the name of a parallel config.
_CONFIG = {
    "first_stage_layers": "num_layers_in_first_pipeline_stage",
    "last_stage_layers": "num_layers_in_last_pipeline_stage",
    "account_for_embedding": "account_for_embedding_in_pipeline_split",
    "account_for_loss": "account_for_loss_in_pipeline_split",
    "glu_interleave": "moe_mlp_glu_interleave_size",
    "shared_glu_interleave": "moe_shared_expert_glu_interleave_size",
    "mla_down_fusion": "mla_down_proj_fusion",
}
# Stored in another form than plans know, so refused rather than exported wrongly.
_REFUSED = {
    "gtp_weight_remat_size": "weights are cut once more",
    "expert_gtp_weight_remat_size": "expert weights are cut once more",
    "moe_single_grouped_weight": "all local experts are one parameter",
    "fp8_param": "parameters are quantised",
    "fp4_param": "parameters are quantised",
}


@dataclass(frozen=True)
class Gather:
    """The meeting of ranks that share no memory with the sender, by files in a directory that all
    see.

    `job`: a word for this group of ranks, new for each meeting. `interface` or `address`: where to
    listen; neither: the address that the host's name resolves to. Plain TCP, for the trainer's own
    network. `bucket_bytes`: a rank has at most two such buckets; "auto": 512 MiB, or less if little
    memory is free. `root`: the rank that has the sender. `timeout`: seconds that a rank waits for
    the others. `kind`: "gloo", or "nccl" between devices (ranks still meet over Gloo), then with
    `device`, this rank's CUDA device; None: torch's current one.
    """

    rendezvous: str
    job: str
    interface: str = ""
    address: str = ""
    bucket_bytes: int | str = 512 << 20
    root: int = 0
    timeout: float = 120.0
    kind: str = "gloo"
    device: int | None = None

    def bucket_size(self) -> int:
        if self.bucket_bytes == "auto":
            return _core.BUCKET_AUTO
        if isinstance(self.bucket_bytes, str):
            raise Error(f'bucket_bytes is "{self.bucket_bytes}": give a number, or "auto"')
        return self.bucket_bytes

    def kind_number(self) -> int:
        kinds = {"gloo": _core.COLLECTIVE_GLOO, "nccl": _core.COLLECTIVE_NCCL}
        if self.kind not in kinds:
            raise Error(f'kind is "{self.kind}": give {" or ".join(kinds)}')
        return kinds[self.kind]

    def cuda_device(self) -> int:
        torch = sys.modules.get("torch")
        if self.device is not None:
            return self.device
        if self.kind == "nccl" and torch is not None and torch.cuda.is_available():
            return torch.cuda.current_device()
        return 0


@dataclass(frozen=True)
class Live:
    """A parameter or persistent buffer of one model chunk."""

    chunk: int
    name: str
    tensor: Any


def live_tensors(models: Any) -> Iterator[Live]:
    """Yields all parameters and persistent buffers of the model chunks, wrapped or not."""
    chunks = models if isinstance(models, Sequence) else [models]
    for chunk, model in enumerate(chunks):
        for name, parameter in model.named_parameters():
            yield Live(chunk, name, parameter)
        seen = set()
        for prefix, module in model.named_modules():
            transient = getattr(module, "_non_persistent_buffers_set", ())
            for name, buffer in getattr(module, "_buffers", {}).items():
                full = f"{prefix}.{name}" if prefix else name
                if buffer is None or name in transient or full in seen:
                    continue
                seen.add(full)
                yield Live(chunk, full, buffer)


def unwrapped(model: Any) -> Any:
    """Returns the model below Megatron's wrappers (DDP, Float16Module), which keep it in
    `.module`."""
    while hasattr(model, "module") and hasattr(model.module, "named_parameters"):
        model = model.module
    return model


def parallel_config(models: Any, parallel_state: Any) -> dict[str, Any]:
    """Returns the plan's parallel config, from parallel_state and the models' own config."""
    first = unwrapped(models[0] if isinstance(models, Sequence) else models)
    config = getattr(first, "config", None)
    state = parallel_state
    out: dict[str, Any] = {
        "tp": state.get_tensor_model_parallel_world_size(),
        "pp": state.get_pipeline_model_parallel_world_size(),
        "vpp": len(models) if isinstance(models, Sequence) else 1,
        "cp": state.get_context_parallel_world_size(),
        "ep": state.get_expert_model_parallel_world_size(),
        "etp": state.get_expert_tensor_parallel_world_size(),
        "dp": state.get_data_parallel_world_size(),
    }
    for key, name in _CONFIG.items():
        value = getattr(config, name, None)
        if value:
            out[key] = value
    for name, why in _REFUSED.items():
        value = getattr(config, name, None)
        if value and value != 1 or value is True:
            raise Error(f"{name} is {value}: {why}, which is not taken apart yet; switch it off")
    layout = getattr(config, "pipeline_model_parallel_layout", None)
    if layout is not None:
        out["layout"] = layout_text(layout)
    padded = getattr(first, "vocab_size", None) or getattr(
        getattr(first, "language_model", None), "vocab_size", None
    )
    if padded:
        out["padded_vocab"] = int(padded)
    core = getattr(sys.modules.get("megatron.core"), "__version__", None)
    if isinstance(core, str) and re.match(r"0\.\d+(\.|$)", core):
        out["core_version"] = ".".join(core.split(".")[:2])
    out["spec"] = "te" if _has_te(models) else "local"
    return out


def layout_text(layout: Any) -> str:
    """Returns a pipeline layout as text: a string unchanged, stages as lists of layer names by
    letter."""
    text = getattr(layout, "input_data", layout)
    if isinstance(text, str):
        return text
    stages = getattr(layout, "layout", text)
    letters = {"embedding": "E", "decoder": "t", "transformer": "t", "mtp": "m", "loss": "L"}
    if stages and stages[0] and isinstance(stages[0][0], (list, tuple)):
        # [pipeline rank][virtual stage], the form in which Megatron keeps a parsed layout.
        stages = [rank[v] for v in range(len(stages[0])) for rank in stages]
    return "|".join(
        "".join(letters[str(getattr(layer, "name", layer)).lower()] for layer in stage)
        for stage in stages
    )


def _has_te(models: Any) -> bool:
    """Returns whether TransformerEngine built the layers: its fused norms are parameters of
    linears."""
    chunks = models if isinstance(models, Sequence) else [models]
    return any(
        name.endswith(".layer_norm_weight") for model in chunks for name, _ in model.named_parameters()
    )


def job_rank(parallel_state: Any, config: Mapping[str, Any]) -> int:
    """Returns this process's rank in the job, in the plan's order, checked against the expert
    groups."""
    state = parallel_state
    tp, cp, dp = config["tp"], config["cp"], config["dp"]
    rank = state.get_tensor_model_parallel_rank() + tp * (
        state.get_context_parallel_rank()
        + cp
        * (
            state.get_data_parallel_rank()
            + dp * state.get_pipeline_model_parallel_rank()
        )
    )
    etp, ep = config["etp"], config["ep"]
    inside = rank % (tp * cp * dp)
    expected = (inside % etp, inside // etp % ep)
    found = (state.get_expert_tensor_parallel_rank(), state.get_expert_model_parallel_rank())
    if expected != found:
        raise Error(
            f"rank {rank}: expert tensor and expert ranks are {found}, and {expected} by the order "
            "tp-cp-ep-dp-pp, the only one that is known; initialise Megatron with that order"
        )
    return rank


def check_place(manager_rank: int, manager_world: int, rank: int, writers: Sequence[int]) -> None:
    """Raises unless the manager was made for this rank's place among those that write to a
    sender."""
    if rank not in writers:
        raise Error(f"rank {rank} is none of node_ranks; give the job's ranks on this node")
    here, count = list(writers).index(rank), len(writers)
    if (manager_rank, manager_world) != (here, count):
        raise Error(
            f"the manager is rank {manager_rank} of {manager_world}; this is rank {here} of {count} "
            "that write to the sender: make it with that rank and world (see node_ranks)"
        )


def check_root(manager_rank: int, manager_world: int, rank: int) -> None:
    """Raises if a gather's root would write a version that waits for ranks that never come."""
    if (manager_rank, manager_world) != (0, 1):
        raise Error(
            f"the manager is rank {manager_rank} of {manager_world}, and rank {rank} alone writes "
            "what the others give it (gather): make its manager without rank and world"
        )


class Sources:
    """The bytes of live tensors, row-major. It keeps them alive.

    Tensors on a CUDA device are passed as device memory if the library has CUDA. Otherwise, as on
    other devices, torch copies their bytes to the host when the library asks for them.
    """

    def __init__(self, live: Iterator[Live]):
        self.params: list[Any] = []  # in the form of _core.Megatron
        self.held: list[Any] = []
        devices = set()
        for item in live:
            tensor = _contiguous(item)
            address, device, reader = 0, _core.HOST_MEMORY, None
            if not is_cuda(tensor):
                source = source_of(item.name, tensor)
                address, dtype, shape = source.address, source.dtype, source.shape
                self.held.append(source)
            else:
                meta = meta_of(item.name, tensor)
                dtype, shape = meta.dtype, meta.shape
                if tensor.device.type == "cuda":
                    say_way()
                if tensor.device.type == "cuda" and has_cuda():
                    address, device = tensor.data_ptr(), tensor.device.index
                    devices.add(tensor.device)
                else:
                    reader = DeviceReader(tensor)
                self.held.append(tensor)
            self.params.append((item.chunk, item.name, dtype, shape, address, device, reader))
        for device in devices:
            # The library's work is not in torch's streams.
            sys.modules["torch"].cuda.current_stream(device).synchronize()


class DeviceReader:
    """A function that copies some bytes of a contiguous torch tensor, on any device, to host
    memory."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def __call__(self, offset: int, to: memoryview) -> None:
        import torch

        flat = self._tensor.detach().reshape(-1).view(torch.uint8)
        torch.frombuffer(to, dtype=torch.uint8).copy_(flat[offset : offset + len(to)])


def _contiguous(item: Live) -> Any:
    tensor = item.tensor
    if hasattr(tensor, "placements"):
        raise TensorError(
            f"{item.name} is a DTensor (Megatron-FSDP): use offload_fsdp for such models", item.name
        )
    if hasattr(tensor, "is_contiguous") and not tensor.is_contiguous():
        tensor = tensor.detach().contiguous()
    return tensor
