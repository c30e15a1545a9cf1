"""Imports what the tests of the trainer's side need, and runs one collective with it."""

import tempfile

import megatron.core.distributed  # noqa: F401
import megatron.core.models.gpt.gpt_model  # noqa: F401
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: F401

with tempfile.TemporaryDirectory() as folder:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    value = torch.ones(2, 2) @ torch.ones(2, 2)
    torch.distributed.all_reduce(value)
    assert value.sum() == 8
    torch.distributed.destroy_process_group()
