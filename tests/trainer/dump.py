"""Copies all that a rank holds of a model, as an exporter finds it: chunk by chunk, wrapped."""
import dataclasses

import torch

from models import persistent_buffers


@dataclasses.dataclass
class RankDump:
    """`tensors`: (chunk, name as named_parameters() says it) -> a copy of the tensor."""

    tp: int
    pp: int
    ep: int
    etp: int
    cp: int
    dp: int
    tensors: dict
    attributes: dict  # same keys -> (tensor_model_parallel, partition_dim, partition_stride)
    layer_numbers: dict  # (chunk, local layer) -> the layer's number in the model, from 0


def unwrapped(module):
    while hasattr(module, "module"):
        module = module.module
    return module


def dump(models, parallel_state):
    tensors, attributes, layer_numbers = {}, {}, {}
    for v, model in enumerate(models):
        for name, parameter in model.named_parameters():
            tensors[v, name] = parameter.detach().clone()
            attributes[v, name] = tuple(
                getattr(parameter, key, default)
                for key, default in (
                    ("tensor_model_parallel", False),
                    ("partition_dim", -1),
                    ("partition_stride", 1),
                )
            )
        for name, buffer in persistent_buffers(model):
            tensors[v, name] = buffer.detach().clone()
        for i, layer in enumerate(unwrapped(model).decoder.layers):
            layer_numbers[v, i] = layer.layer_number - 1
    return RankDump(
        tp=parallel_state.get_tensor_model_parallel_rank(),
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        ep=parallel_state.get_expert_model_parallel_rank(),
        etp=parallel_state.get_expert_tensor_parallel_rank(),
        cp=parallel_state.get_context_parallel_rank(),
        dp=parallel_state.get_data_parallel_rank(),
        tensors=tensors,
        attributes=attributes,
        layer_numbers=layer_numbers,
    )


def gather(models, parallel_state):
    """Every rank's dump on rank 0, None elsewhere. Collective; only for tiny models."""
    own = dump(models, parallel_state)
    rank = torch.distributed.get_rank()
    all_of_them = [None] * torch.distributed.get_world_size() if rank == 0 else None
    torch.distributed.gather_object(own, all_of_them, dst=0)
    return all_of_them
