"""Megatron-Core's HybridModel (Mamba, attention, experts, feed-forwards) without TransformerEngine and mamba_ssm.

As te_stand_ins.py: modules that hold parameters and compute nothing, every size from mcore's own code. Raises
ImportError before the version that has it.
"""

import contextlib
import functools
import types
from unittest import mock

import torch
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend
from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.ssm import mamba_context_parallel, mamba_mixer
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import multi_token_prediction as mtp
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.moe import moe_layer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (MoETransformerLayer, TransformerLayer,
                                                         TransformerLayerSubmodules)

from .parallel import padded_vocab
from .te_stand_ins import Linear, NormColumnLinear, Provider, empty


class GatedNorm(torch.nn.Module):
    def __init__(self, width, **_):
        super().__init__()
        self.weight = empty(width)


def stack(grouped):
    """hybrid_layer_specs.hybrid_stack_spec, of stand-ins."""
    mixer = ModuleSpec(module=mamba_mixer.MambaMixer, submodules=mamba_mixer.MambaMixerSubmodules(
        in_proj=NormColumnLinear, out_proj=RowParallelLinear))
    attention = ModuleSpec(
        module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(linear_qkv=NormColumnLinear, core_attention=DotProductAttention,
                                           linear_proj=RowParallelLinear))
    dense = functools.partial(MLP.as_mlp_submodule, submodules=MLPSubmodules(
        linear_fc1=NormColumnLinear, linear_fc2=RowParallelLinear))
    moe = get_moe_module_spec_for_backend(Provider(), num_experts=8, moe_grouped_gemm=grouped)
    ahead = ModuleSpec(module=mtp.MultiTokenPredictionLayer, submodules=mtp.MultiTokenPredictionLayerSubmodules(
        enorm=WrappedTorchNorm, hnorm=WrappedTorchNorm, eh_proj=ColumnParallelLinear, mtp_model_layer=None,
        layer_norm=WrappedTorchNorm))
    return ModuleSpec(module=hybrid_block.HybridStack, submodules=hybrid_block.HybridStackSubmodules(
        mamba_layer=ModuleSpec(module=MambaLayer, submodules=MambaLayerSubmodules(mixer=mixer)),
        attention_layer=ModuleSpec(module=TransformerLayer,
                                   submodules=TransformerLayerSubmodules(self_attention=attention)),
        mlp_layer=ModuleSpec(module=MLPLayer, submodules=TransformerLayerSubmodules(mlp=dense)),
        moe_layer=ModuleSpec(module=MoETransformerLayer, submodules=TransformerLayerSubmodules(
            pre_mlp_layernorm=WrappedTorchNorm, mlp=moe)),
        mtp_block_spec=ModuleSpec(
            module=mtp.MultiTokenPredictionBlock,
            submodules=mtp.MultiTokenPredictionBlockSubmodules(layer_specs=[ahead]))))


def can_build(model, x):
    """What HybridModel takes: no virtual stages without | in the pattern, taps and biases of its own."""
    plain = x.vpp == 1 and not (x.layout or x.account_for_embedding or x.account_for_loss)
    return x.spec == "te" and plain and x.minor >= 19 and model.conv_bias and model.mamba_taps == 4


def build(model, x, stage):
    """The model of one pipeline stage; parallel_state is there."""
    config = TransformerConfig(
        num_layers=model.layers, hidden_size=model.hidden, num_attention_heads=model.heads,
        num_query_groups=model.groups, kv_channels=model.head_dim, ffn_hidden_size=model.ffn,
        gated_linear_unit=False, add_bias_linear=False, normalization="RMSNorm", bias_dropout_fusion=False,
        tensor_model_parallel_size=x.tp, pipeline_model_parallel_size=x.pp, expert_model_parallel_size=x.ep,
        expert_tensor_parallel_size=x.etp, num_layers_in_first_pipeline_stage=x.first_stage_layers or None,
        num_layers_in_last_pipeline_stage=x.last_stage_layers or None, pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16, bf16=True, use_cpu_initialization=True, is_hybrid_model=True,
        mtp_num_layers=model.mtp_layers or None, mamba_num_heads=model.mamba_heads,
        mamba_num_groups=model.mamba_groups, mamba_state_dim=model.mamba_state,
        mamba_head_dim=model.mamba_width // model.mamba_heads, num_moe_experts=model.experts,
        moe_ffn_hidden_size=model.expert_ffn, moe_grouped_gemm=x.experts == "grouped",
        moe_router_load_balancing_type="none", moe_router_topk=2, moe_router_enable_expert_bias=True,
        moe_router_score_function="sigmoid", moe_shared_expert_intermediate_size=model.shared_ffn or None,
        moe_latent_size=model.latent, moe_token_dispatcher_type="alltoall")
    pattern = "/".join([model.pattern] + [model.mtp_pattern] * model.mtp_layers)
    with contextlib.ExitStack() as patches:
        tracker = types.SimpleNamespace(fork=contextlib.nullcontext)
        for patch in (
                mock.patch.multiple(mamba_mixer, HAVE_MAMBA_SSM=True, HAVE_EINOPS=True, ExtendedRMSNorm=GatedNorm,
                                    get_cuda_rng_tracker=lambda: tracker),
                mock.patch.object(mamba_context_parallel, "HAVE_EINOPS", True),
                mock.patch.object(hybrid_block, "TENorm", WrappedTorchNorm),
                mock.patch.multiple(moe_layer, HAVE_TE=True, TELinear=Linear)):
            patches.enter_context(patch)
        return HybridModel(config, stack(x.experts == "grouped"), vocab_size=padded_vocab(model.vocab, x),
                           max_sequence_length=16, hybrid_layer_pattern=pattern, pre_process=stage == 0,
                           post_process=stage == x.pp - 1, share_embeddings_and_output_weights=bool(model.tied))
