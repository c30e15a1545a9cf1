"""Tiny models of each family: the config of `transformers`, and megatron-core's options for it.

Widths are uneven on purpose (no two tensors' sides are alike where they can differ), so that a
tensor in the wrong place or the wrong way round has the wrong shape or the wrong values.
"""
import dataclasses
from typing import Any, Callable

THETA = 10000.0
ROPE = {"rope_type": "default", "rope_theta": THETA}
SIZES = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=8, max_position_embeddings=64)
# The trainer pads it to a multiple of PAD_TO * TP, so that an export has rows to cut off.
VOCABULARY = 93
PAD_TO = 8


@dataclasses.dataclass(frozen=True)
class Names:
    """The parts of the HF names in which families with experts differ."""

    router: str = "mlp.gate"
    expert: str = "mlp.experts.{e}.{part}"
    parts: tuple = ("gate_proj", "up_proj", "down_proj")
    shared: str = "mlp.shared_experts"
    packed: bool = False  # gpt-oss: all experts in one tensor, gate and up interleaved


@dataclasses.dataclass(frozen=True)
class Family:
    config: Callable[[], Any]  # the config of transformers
    options: Callable[[Any], dict]  # from that, fields of megatron-core's TransformerConfig
    names: Names = Names()
    mla: bool = False
    replicated_down: bool = False  # MLA's down projections whole on every rank, as with TE
    model_options: dict = dataclasses.field(default_factory=dict)  # of GPTModel

    @property
    def moe(self):
        return "num_moe_experts" in self.options(self.config())


def _base(hf, **more):
    options = dict(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
        ffn_hidden_size=hf.intermediate_size,
        layernorm_epsilon=hf.rms_norm_eps,
    )
    options.update(more)
    return options


def _experts(hf, count, width, topk, **more):
    return dict(
        num_moe_experts=count, moe_ffn_hidden_size=width, moe_router_topk=topk, **more
    )


def _mla(hf, **more):
    # MLA has a key of its own for every head, and its head widths are not kv_channels.
    options = _base(
        hf,
        num_query_groups=hf.num_attention_heads,
        kv_channels=hf.v_head_dim,
        q_lora_rank=hf.q_lora_rank,
        kv_lora_rank=hf.kv_lora_rank,
        qk_head_dim=hf.qk_nope_head_dim,
        qk_pos_emb_head_dim=hf.qk_rope_head_dim,
        v_head_dim=hf.v_head_dim,
        qk_layernorm=True,
        rope_type="rope",
        rotary_base=THETA,
        # The attention's scale depends on this even where rope_type is not "yarn".
        rotary_scaling_factor=1.0,
        moe_layer_freq=[int(i >= hf.first_k_dense_replace) for i in range(hf.num_hidden_layers)],
        moe_shared_expert_intermediate_size=hf.moe_intermediate_size * hf.n_shared_experts,
        **_experts(hf, hf.n_routed_experts, hf.moe_intermediate_size, hf.num_experts_per_tok),
    )
    options.update(more)
    return options


def _sigmoid_router(hf):
    grouped = hf.n_group > 1
    return dict(
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_num_groups=hf.n_group if grouped else None,
        moe_router_group_topk=hf.topk_group if grouped else None,
        moe_router_topk_scaling_factor=hf.routed_scaling_factor,
        moe_router_load_balancing_type="none",
    )


def _common(**more):
    # `transformers` uses 1e-6 for MLA's inner norms, whatever the config says.
    return dict(
        SIZES, vocab_size=VOCABULARY, rope_parameters=dict(ROPE), rms_norm_eps=1e-6, **more
    )


def llama(**more):
    from transformers import LlamaConfig

    values = dict(intermediate_size=96, num_key_value_heads=4, tie_word_embeddings=False)
    values.update(more)
    return LlamaConfig(**_common(**values))


def mistral():
    from transformers import MistralConfig

    return MistralConfig(
        **_common(
            intermediate_size=96, num_key_value_heads=4, head_dim=16, sliding_window=None,
            tie_word_embeddings=False,
        )
    )


def qwen2():
    from transformers import Qwen2Config

    return Qwen2Config(
        **_common(intermediate_size=96, num_key_value_heads=4, tie_word_embeddings=True)
    )


def qwen3(tied=False):
    from transformers import Qwen3Config

    return Qwen3Config(
        **_common(
            intermediate_size=96, num_key_value_heads=4, head_dim=16, tie_word_embeddings=tied
        )
    )


def qwen3_moe():
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        **_common(
            intermediate_size=96, num_key_value_heads=4, head_dim=16, tie_word_embeddings=False,
            num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=True,
            decoder_sparse_step=1, mlp_only_layers=[1],
        )
    )


def _qwen3_moe_options(hf):
    return _base(
        hf,
        qk_layernorm=True,
        moe_layer_freq=[int(i not in hf.mlp_only_layers) for i in range(hf.num_hidden_layers)],
        **_experts(hf, hf.num_experts, hf.moe_intermediate_size, hf.num_experts_per_tok),
    )


def qwen2_moe():
    from transformers import Qwen2MoeConfig

    return Qwen2MoeConfig(
        **_common(
            intermediate_size=96, num_key_value_heads=4, tie_word_embeddings=False, num_experts=8,
            num_experts_per_tok=3, moe_intermediate_size=48, shared_expert_intermediate_size=80,
            norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
        )
    )


def _qwen2_moe_options(hf):
    return _base(
        hf,
        add_qkv_bias=True,
        moe_shared_expert_intermediate_size=hf.shared_expert_intermediate_size,
        moe_shared_expert_gate=True,
        moe_router_pre_softmax=True,
        **_experts(hf, hf.num_experts, hf.moe_intermediate_size, hf.num_experts_per_tok),
    )


def mixtral():
    from transformers import MixtralConfig

    return MixtralConfig(
        **_common(
            intermediate_size=48, num_key_value_heads=4, head_dim=16, tie_word_embeddings=False,
            num_local_experts=8, num_experts_per_tok=3, sliding_window=None,
        )
    )


def _mixtral_options(hf):
    return _base(
        hf, **_experts(hf, hf.num_local_experts, hf.intermediate_size, hf.num_experts_per_tok)
    )


_MLA_SIZES = dict(
    intermediate_size=96, num_key_value_heads=8, kv_lora_rank=24, qk_nope_head_dim=12,
    qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
    moe_intermediate_size=48, first_k_dense_replace=1, tie_word_embeddings=False,
)


def deepseek_v2():
    from transformers import DeepseekV2Config

    return DeepseekV2Config(
        **_common(
            **_MLA_SIZES, q_lora_rank=None, n_shared_experts=2, norm_topk_prob=False,
            topk_method="greedy", routed_scaling_factor=1.5, n_group=1, topk_group=1,
        )
    )


def deepseek_v3(mtp=0):
    from transformers import DeepseekV3Config

    return DeepseekV3Config(
        **_common(
            **dict(_MLA_SIZES, num_experts_per_tok=4), q_lora_rank=40, n_shared_experts=1,
            norm_topk_prob=True, n_group=4, topk_group=2, routed_scaling_factor=2.5,
            num_nextn_predict_layers=mtp,
        )
    )


def moonlight():
    from transformers import DeepseekV3Config

    return DeepseekV3Config(
        **_common(
            **_MLA_SIZES, q_lora_rank=None, n_shared_experts=2, norm_topk_prob=True, n_group=1,
            topk_group=1, routed_scaling_factor=2.446, num_nextn_predict_layers=0,
        )
    )


def glm4_moe():
    from transformers import Glm4MoeConfig

    return Glm4MoeConfig(
        **dict(
            _common(
                intermediate_size=96, num_key_value_heads=4, head_dim=16, attention_bias=True,
                use_qk_norm=True, num_nextn_predict_layers=1, n_routed_experts=8,
                num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=48,
                first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True,
                routed_scaling_factor=1.5, tie_word_embeddings=False,
            ),
            rope_parameters=dict(ROPE, partial_rotary_factor=0.5),
        )
    )


def _glm4_moe_options(hf):
    return _base(
        hf,
        add_qkv_bias=True,
        qk_layernorm=True,
        moe_layer_freq=[int(i >= hf.first_k_dense_replace) for i in range(hf.num_hidden_layers)],
        moe_shared_expert_intermediate_size=hf.moe_intermediate_size * hf.n_shared_experts,
        **_experts(hf, hf.n_routed_experts, hf.moe_intermediate_size, hf.num_experts_per_tok),
        mtp_num_layers=hf.num_nextn_predict_layers,
        **_sigmoid_router(hf),
    )


def gpt_oss():
    from transformers import GptOssConfig

    return GptOssConfig(
        **_common(
            intermediate_size=48, num_key_value_heads=4, head_dim=16, num_local_experts=8,
            num_experts_per_tok=3, sliding_window=5, attention_bias=True,
            layer_types=["sliding_attention", "full_attention"] * 2, tie_word_embeddings=False,
        )
    )


def _gpt_oss_options(hf):
    from megatron.core.fusions.fused_bias_geglu import quick_gelu

    return _base(
        hf,
        add_bias_linear=True,
        add_qkv_bias=True,
        softmax_type="learnable",
        # `transformers` counts the token itself in its window, megatron-core only those before it.
        window_size=(hf.sliding_window - 1, 0),
        window_attn_skip_freq=[1, 0] * (hf.num_hidden_layers // 2),
        activation_func=quick_gelu,
        glu_linear_offset=1.0,
        activation_func_clamp_value=7.0,
        **_experts(hf, hf.num_local_experts, hf.intermediate_size, hf.num_experts_per_tok),
    )


def few_groups():
    """Fewer KV groups than four TP ranks: a rank's rows of the fused QKV end inside a group."""
    return llama(num_key_value_heads=2, head_dim=12)


FAMILIES = {
    "llama": Family(llama, _base),
    "llama-few-groups": Family(few_groups, _base),
    "mistral": Family(mistral, _base),
    "qwen2": Family(qwen2, lambda hf: _base(hf, add_qkv_bias=True)),
    "qwen3": Family(qwen3, lambda hf: _base(hf, qk_layernorm=True)),
    "qwen3-tied": Family(lambda: qwen3(tied=True), lambda hf: _base(hf, qk_layernorm=True)),
    "qwen3-moe": Family(qwen3_moe, _qwen3_moe_options),
    "qwen2-moe": Family(qwen2_moe, _qwen2_moe_options, Names(shared="mlp.shared_expert")),
    "mixtral": Family(
        mixtral,
        _mixtral_options,
        Names(
            router="block_sparse_moe.gate",
            expert="block_sparse_moe.experts.{e}.{part}",
            parts=("w1", "w3", "w2"),
        ),
    ),
    "deepseek-v2": Family(
        deepseek_v2,
        lambda hf: _mla(
            hf, moe_router_pre_softmax=True, moe_router_topk_scaling_factor=hf.routed_scaling_factor
        ),
        mla=True,
    ),
    "deepseek-v3": Family(deepseek_v3, lambda hf: _mla(hf, **_sigmoid_router(hf)), mla=True),
    "deepseek-v3-replicated": Family(
        deepseek_v3,
        lambda hf: _mla(hf, **_sigmoid_router(hf)),
        mla=True,
        replicated_down=True,
    ),
    # `transformers` leaves out the MTP layers behind the last one, so only bytes are compared.
    "deepseek-v3-mtp": Family(
        lambda: deepseek_v3(mtp=1),
        lambda hf: _mla(hf, **_sigmoid_router(hf), mtp_num_layers=hf.num_nextn_predict_layers),
        mla=True,
    ),
    "moonlight": Family(moonlight, lambda hf: _mla(hf, **_sigmoid_router(hf)), mla=True),
    "glm-4.5": Family(
        glm4_moe, _glm4_moe_options, model_options=dict(rotary_percent=0.5)
    ),
    "gpt-oss": Family(
        gpt_oss, _gpt_oss_options, Names(router="mlp.router", expert="mlp.experts", packed=True)
    ),
}

# What cannot be run here, and why; printed by the long test.
NOT_ON_CPU = {
    "Qwen3-Next, Qwen3.5": "the gated delta net needs the fla and causal-conv1d kernels",
    "Gemma 1 to 3": "their norms multiply by 1 + w, which megatron-core's torch norm refuses",
    "GLM-4 dense": "megatron-core's layer has no norm behind attention and MLP",
    "what MTP layers give": "transformers leaves them out; only their bytes are compared",
    "TEGroupedMLP": "transformer-engine needs CUDA; experts here are SequentialMLP's",
    "GroupedMLP": "its constructor asserts grouped_gemm, which is built with CUDA",
    "the names of the fused norms": "linear_qkv.layer_norm_weight is transformer-engine's",
    "sequence parallelism": "megatron-core's torch norm refuses it; it changes no stored weight",
    "context parallelism in attention": "ranks are laid out, attention is whole",
}
