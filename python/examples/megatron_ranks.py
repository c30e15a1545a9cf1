"""Megatron: every rank writes its shards into the sender of its machine, without a gather.

    torchrun --nproc-per-node 2 megatron_ranks.py

A Llama of two layers, cut by tensor parallelism, on a CPU. Yours is built by your training script.
"""

import json
import os
import pathlib
import tempfile

import deltawire
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

HF = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
      "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": False,
      "torch_dtype": "bfloat16"}  # the config.json of the checkpoint that the run starts from

dist.init_process_group("gloo")  # "nccl" on GPUs
rank, world = dist.get_rank(), dist.get_world_size()
parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
config = TransformerConfig(
    num_layers=2, hidden_size=64, ffn_hidden_size=96, num_attention_heads=4, num_query_groups=2,
    kv_channels=16, normalization="RMSNorm", gated_linear_unit=True, add_bias_linear=False,
    activation_func=torch.nn.functional.silu, use_cpu_initialization=True, bf16=True,
    params_dtype=torch.bfloat16, tensor_model_parallel_size=world, persist_layer_norm=False,
    bias_activation_fusion=False, gradient_accumulation_fusion=False)
model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=256,
                 max_sequence_length=64, position_embedding_type="rope",
                 share_embeddings_and_output_weights=False).bfloat16()

with tempfile.TemporaryDirectory() as hf:
    (pathlib.Path(hf) / "config.json").write_text(json.dumps(HF))
    weights = deltawire.WeightManager(
        os.environ.get("DELTAWIRE_ENDPOINT", "/dev/shm/deltawire"), "policy", rank, world)
    for step in range(1, 5):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.01)  # stands for the optimizer's step
        weights.offload_megatron([model], parallel_state, hf, step)
        done = weights.wait_published(step)
        if rank == 0:
            print(f"step {done.version}: {done.delta_bytes} of {done.model_bytes} bytes", flush=True)
dist.destroy_process_group()
