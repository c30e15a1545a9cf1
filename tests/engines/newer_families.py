"""Tiny models of more families than policy.py has, for layouts_test.py."""

from __future__ import annotations

import json
import pathlib

import torch
import transformers
from policy import LATENT, SHAPE
from safetensors.torch import save_file


def nemotron_h() -> torch.nn.Module:
    """Mamba, attention and a dense layer, by a pattern; vLLM computes -exp(A_log). No experts: a CPU
    has no kernel for theirs, which have no gate."""
    config = transformers.NemotronHConfig(
        vocab_size=512, hidden_size=256, hybrid_override_pattern="M*-", intermediate_size=512,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128, ssm_state_size=64,
        mamba_num_heads=8, mamba_head_dim=64, n_groups=2, chunk_size=64)
    return transformers.NemotronHForCausalLM(config)


def granite_4() -> torch.nn.Module:
    """Mamba and attention, each with experts that one tensor holds; vLLM computes -exp(A_log)."""
    config = transformers.GraniteMoeHybridConfig(
        vocab_size=512, hidden_size=256, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
        shared_intermediate_size=256, layer_types=["linear_attention", "full_attention"],
        mamba_n_heads=8, mamba_n_groups=1, mamba_d_state=64, mamba_chunk_size=64,
        max_position_embeddings=512)
    return transformers.GraniteMoeHybridForCausalLM(config)


def gemma_4() -> torch.nn.Module:
    """Some layers' values are their keys, and experts stand beside a dense part. No checkpoint has the
    router's root_size."""
    config = transformers.Gemma4TextConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128, global_head_dim=256,
        num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 2,
        hidden_size_per_layer_input=64, vocab_size_per_layer_input=512, enable_moe_block=True,
        num_experts=4, top_k_experts=2, moe_intermediate_size=128, max_position_embeddings=512)
    return transformers.Gemma4ForCausalLM(config)


def qwen3_omni() -> torch.nn.Module:
    """The thinker: a language model of experts, a vision tower and an audio encoder."""
    thinker = dict(
        text_config=dict(SHAPE, moe_intermediate_size=128, num_experts=4, num_experts_per_tok=2),
        vision_config=dict(depth=2, hidden_size=128, intermediate_size=256, num_heads=2,
                           out_hidden_size=256, num_position_embeddings=64, image_size=128,
                           apply_vit_abs_pos_embed=True,
                           deepstack_visual_indexes=[0]),
        audio_config=dict(num_mel_bins=32, encoder_layers=1, encoder_attention_heads=2,
                          encoder_ffn_dim=256, d_model=128, output_dim=256,
                          max_source_positions=100, downsample_hidden_size=32))
    return transformers.Qwen3OmniMoeForConditionalGeneration(
        transformers.Qwen3OmniMoeConfig(thinker_config=thinker, enable_audio_output=False))


class Step35(torch.nn.Module):
    """Step-3.5 by the names and shapes of its checkpoints, since transformers lacks its code: each head
    has a gate, and the router is in fp32 and has a bias."""

    def __init__(self):
        super().__init__()
        hidden, heads, groups, head, experts = 256, 4, 2, 128, 4
        wide, dim = 512, 128
        self.config = dict(
            architectures=["Step3p5ForCausalLM"], model_type="step3p5", hidden_size=hidden,
            intermediate_size=wide, num_attention_heads=heads, num_attention_groups=groups,
            num_hidden_layers=2, vocab_size=512, moe_num_experts=experts, moe_top_k=2,
            moe_intermediate_size=dim, share_expert_dim=wide, head_dim=head, rope_theta=10000.0,
            use_head_wise_attn_gate=True, moe_layers_enum="1", max_position_embeddings=512,
            layer_types=["full_attention", "sliding_attention"], sliding_window=128,
            moe_router_activation="sigmoid", tie_word_embeddings=False, torch_dtype="bfloat16",
            bos_token_id=1, eos_token_id=2)
        shapes = {"model.embed_tokens.weight": (512, hidden), "lm_head.weight": (512, hidden),
                  "model.norm.weight": (hidden,)}
        for layer in range(2):
            at = f"model.layers.{layer}."
            shapes |= {at + name + ".weight": shape for name, shape in {
                "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (heads * head, hidden),
                "self_attn.k_proj": (groups * head, hidden),
                "self_attn.v_proj": (groups * head, hidden),
                "self_attn.o_proj": (hidden, heads * head), "self_attn.g_proj": (heads, hidden),
                "self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}.items()}
            dense = at + ("mlp" if layer == 0 else "share_expert")
            shapes |= {f"{dense}.{part}_proj.weight": (wide, hidden) for part in ("gate", "up")}
            shapes[f"{dense}.down_proj.weight"] = (hidden, wide)
        shapes |= {f"{at}moe.{part}_proj.weight": (experts, dim, hidden)
                   for part in ("gate", "up")}
        shapes |= {at + "moe.down_proj.weight": (experts, hidden, dim),
                   at + "moe.gate.weight": (experts, hidden), at + "moe.router_bias": (experts,)}
        self.weights = {name: 0.02 * torch.randn(shape) for name, shape in shapes.items()}

    def save_pretrained(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        save_file({name: value if name.endswith((".gate.weight", "router_bias")) else
                   value.to(torch.bfloat16) for name, value in self.weights.items()},
                  folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config))


def step_35() -> torch.nn.Module:
    return Step35()


#: For configurations without a head_dim.
HEADS_OF_THE_WIDTH = {key: value for key, value in SHAPE.items() if key != "head_dim"} | dict(
    num_attention_heads=2, num_key_value_heads=2)


def olmoe() -> torch.nn.Module:
    return transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
        **HEADS_OF_THE_WIDTH | dict(intermediate_size=128), num_experts=4, num_experts_per_tok=2))


def minimax_m2() -> torch.nn.Module:
    return transformers.MiniMaxM2ForCausalLM(transformers.MiniMaxM2Config(
        **SHAPE | dict(intermediate_size=128), num_local_experts=4, num_experts_per_tok=2,
        rotary_dim=64, scoring_func="sigmoid", use_routing_bias=True))


def glm4_flash() -> torch.nn.Module:
    """GLM-4.7-Flash: latent attention and experts."""
    shape = {name: value for name, value in LATENT.items() if name != "rope_parameters"}
    return transformers.Glm4MoeLiteForCausalLM(transformers.Glm4MoeLiteConfig(
        **shape, q_lora_rank=128, n_group=1, topk_group=1))


def exaone_4() -> torch.nn.Module:
    return transformers.Exaone4ForCausalLM(transformers.Exaone4Config(
        **SHAPE, sliding_window=128, sliding_window_pattern=2))


def ernie_45_moe() -> torch.nn.Module:
    return transformers.Ernie4_5_MoeForCausalLM(transformers.Ernie4_5_MoeConfig(
        **SHAPE, moe_intermediate_size=128, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
        moe_layer_start_index=1, moe_layer_end_index=1))


def seed_oss() -> torch.nn.Module:
    return transformers.SeedOssForCausalLM(transformers.SeedOssConfig(**SHAPE))


def olmo_3() -> torch.nn.Module:
    return transformers.Olmo3ForCausalLM(transformers.Olmo3Config(
        **HEADS_OF_THE_WIDTH, sliding_window=128))


NEWER_MODELS = {make.__name__: make for make in (
    nemotron_h, granite_4, step_35, gemma_4, qwen3_omni, olmoe, olmo_3, minimax_m2, glm4_flash,
    exaone_4, ernie_45_moe, seed_oss)}
