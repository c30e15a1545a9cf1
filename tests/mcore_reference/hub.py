"""The tensors of a published HF checkpoint: names, shapes and dtypes as in the hub's files.

hf_tensors(config, hub) gives name -> (shape, dtype), dtype "BF16" or "F32". HubFile holds what
config.json does not tell but the file's own index does.
"""

from dataclasses import dataclass

from .model import (BOTH, CSA, DENSE, FULL, GDN, MAMBA, MLA, MOE, NOTHING, PACKED_APART, PACKED_IN_OUT,
                    PACKED_INTERLEAVED, PACKED_OUT_IN,
                    SEPARATE, SEPARATE_MIXTRAL, VISION_PREFIX, Model)


# Model types whose published MTP layers may repeat the embedding and the head.
MTP_COPIES = ("step3p5", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa")


@dataclass(frozen=True)
class HubFile:
    lists_tied_head: bool = False  # lm_head.weight is in the file though tied
    mtp_copies: bool = False  # DeepSeek kind: the MTP layer repeats embed_tokens and the head
    packed: bool = True  # Qwen3.5-MoE, Qwen3-VL-MoE: packed experts; False: one tensor an expert and projection
    mtp_packed: bool = False  # with packed: the MTP block's experts are packed too (Qwen3.6)
    gdn_fp32: bool = False  # A_log, dt_bias and the GDN norm are F32
    resaved: bool = False  # Qwen3-VL-MoE: packed as transformers 5 saves it, rows and columns as in mcore
    unused_keys: bool = False  # Gemma 4: layers that share keys list some of their own, too


def random_hub_file(config, rng):
    coin = lambda: rng.random() < 0.5
    return HubFile(coin(), coin(), rng.random() < 0.7, coin(), coin(), resaved=coin(),
                   unused_keys=Model(config).kind == "gemma4_dense" and coin())


def hf_tensors(config, hub=HubFile()):
    m = Model(config)
    out = {}
    for name, shape in _language(m, hub):
        dtype = _dtype(m, hub, name)
        name = m.published(name)
        assert name not in out, name
        out[name] = (tuple(shape), dtype)
    for name, shape in _vision(m):
        out[name] = (tuple(shape), "BF16")
    return out


def _dtype(m, hub, name):
    if name.endswith("e_score_correction_bias"):
        return "F32"
    if m.csa and name.endswith(("attn_sink", ".ape", "_fn", "_base", "_scale")):
        return "F32"
    fp32_names = ("mamba.A_log", "mamba.D", "mamba.dt_bias", "linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm.weight")
    return "F32" if hub.gdn_fp32 and name.endswith(fp32_names) else "BF16"


def _language(m, hub):
    yield f"{m.hf_prefix}embed_tokens.weight", [m.vocab, m.hidden]
    yield f"{m.hf_prefix}norm.weight", [m.hidden]
    if m.norm_bias:
        yield f"{m.hf_prefix}norm.bias", [m.hidden]
    if m.layer_width:
        yield f"{m.hf_prefix}embed_tokens_per_layer.weight", [m.layer_vocab, m.layers * m.layer_width]
        yield f"{m.hf_prefix}per_layer_model_projection.weight", [m.layers * m.layer_width, m.hidden]
        yield f"{m.hf_prefix}per_layer_projection_norm.weight", [m.layer_width]
    if m.csa:
        yield from _streams_head(m, "")
    if not m.tied or hub.lists_tied_head:
        yield "lm_head.weight", [m.vocab, m.hidden]
    for layer in range(m.layers + m.mtp_layers * m.mtp_inner):
        yield from _block(m, hub, layer)
    if m.mtp_layers and m.qwen_mtp:
        yield "mtp.fc.weight", [m.hidden, 2 * m.hidden]
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            yield f"mtp.{name}.weight", [m.hidden]
    elif m.mtp_layers:
        for k in range(m.mtp_layers):
            prefix = m.hf_layer(m.layers + k * m.mtp_inner)
            if m.csa:
                yield prefix + "e_proj.weight", [m.hidden, m.hidden]
                yield prefix + "h_proj.weight", [m.hidden, m.hidden]
                yield from _streams_head(m, prefix)
            else:
                yield prefix + "eh_proj.weight", [m.hidden, 2 * m.hidden]
            for name in ("enorm", "hnorm"):
                yield f"{prefix}{name}.weight", [m.hidden]
            yield m.hf_layer(m.layers + (k + 1) * m.mtp_inner - 1) + "shared_head.norm.weight", [m.hidden]
            if hub.mtp_copies and m.model_type in MTP_COPIES:
                if m.kind != "step3p5":
                    yield prefix + "embed_tokens.weight", [m.vocab, m.hidden]
                yield prefix + "shared_head.head.weight", [m.vocab, m.hidden]


def _streams_head(m, prefix):
    yield prefix + "hc_head_fn", [m.streams, m.streams * m.hidden]
    yield prefix + "hc_head_base", [m.streams]
    yield prefix + "hc_head_scale", [1]


def _streams(m, prefix):
    """DeepSeek-V4's hyper-connections."""
    mixed = (2 + m.streams) * m.streams
    for name in ("hc_attn", "hc_ffn"):
        yield f"{prefix}{name}_fn", [mixed, m.streams * m.hidden]
        yield f"{prefix}{name}_base", [mixed]
        yield f"{prefix}{name}_scale", [3]


def _csa(m, layer):
    ratio, windows = m.ratio(layer), 2 if m.ratio(layer) == 4 else 1
    yield "wq_a.weight", [m.q_lora, m.hidden]
    yield "q_norm.weight", [m.q_lora]
    yield "wq_b.weight", [m.heads * m.head_dim, m.q_lora]
    yield "wkv.weight", [m.head_dim, m.hidden]
    yield "kv_norm.weight", [m.head_dim]
    yield "wo_a.weight", [m.out_rank, m.heads * m.head_dim // m.out_groups]
    yield "wo_b.weight", [m.hidden, m.out_rank]
    yield "attn_sink", [m.heads]
    if ratio == 4:
        yield "indexer.wq_b.weight", [m.index_heads * m.index_dim, m.q_lora]
        yield "indexer.weights_proj.weight", [m.index_heads, m.hidden]
    for own, dim in (("", m.head_dim), ("indexer.", m.index_dim)):
        if ratio == 4 or (ratio and not own):
            yield own + "compressor.wkv.weight", [windows * dim, m.hidden]
            yield own + "compressor.wgate.weight", [windows * dim, m.hidden]
            yield own + "compressor.ape", [ratio, windows * dim]
            yield own + "compressor.norm.weight", [dim]


def _block(m, hub, layer):
    prefix, m = m.hf_layer(layer), m.at(layer)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if m.gemma_norms or m.kind == "gemma4_dense":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if m.glm4_norms:
        norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
    if m.post_norms:
        norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
    if m.kind == "gemma4_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm", "pre_feedforward_layernorm_2",
                  "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"]
        yield prefix + "router.scale", [m.hidden]
        yield prefix + "router.per_expert_scale", [m.experts]
    if m.gemma4:
        yield prefix + "layer_scalar", [1]
    if m.layer_width:
        yield prefix + "per_layer_input_gate.weight", [m.layer_width, m.hidden]
        yield prefix + "per_layer_projection.weight", [m.hidden, m.layer_width]
        yield prefix + "post_per_layer_input_norm.weight", [m.hidden]
    if m.attention(layer) == NOTHING:
        norms.remove("input_layernorm")
    if m.mlp(layer) == NOTHING:
        norms.remove("post_attention_layernorm")
    for norm in norms:
        yield f"{prefix}{norm}.weight", [m.hidden]
        if m.norm_bias:
            yield f"{prefix}{norm}.bias", [m.hidden]
    if m.csa:
        yield from _streams(m, prefix)
    kind = m.attention(layer)
    for one in (FULL, MAMBA) if kind == BOTH else (kind,):
        attention = {FULL: lambda m: _full_attention(m, hub), MLA: _mla, GDN: _gdn, MAMBA: _mamba, NOTHING: lambda m: (),
                     CSA: lambda m: _csa(m, layer)}[one]
        where = prefix + {GDN: "linear_attn.", MAMBA: "mamba."}.get(one, "self_attn.")
        for name, shape in attention(m):
            yield where + name, shape
    if m.indexer(layer):
        yield where + "indexer.wq_b.weight", [m.index_heads * m.index_dim, m.q_lora]
        yield where + "indexer.wk.weight", [m.index_dim, m.hidden]
        yield where + "indexer.k_norm.weight", [m.index_dim]
        yield where + "indexer.k_norm.bias", [m.index_dim]
        yield where + "indexer.weights_proj.weight", [m.index_heads, m.hidden]
    if m.mlp(layer) == DENSE:
        for name, shape in _dense_mlp(m):
            yield f"{prefix}mlp.{name}", shape
    elif m.mlp(layer) == MOE:
        for name, shape in _moe(m, hub, layer):
            yield f"{prefix}{m.moe_name}.{name}", shape


def _full_attention(m, hub):
    q_rows = m.heads * m.head_dim * (2 if m.gated_attention else 1)
    kv_rows = m.groups * m.head_dim
    projections = (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", m.groups * m.v_head_dim))
    no_keys = m.shares_keys and not hub.unused_keys
    if m.keys_only or no_keys:
        projections = projections[:1 if no_keys else 2]
    if m.fused_qkv:
        projections = (("qkv", q_rows + 2 * kv_rows),)
    for name, rows in projections:
        yield name + ".weight", [rows, m.hidden]
        if m.qkv_bias:
            yield name + ".bias", [rows]
    if m.head_gate:
        yield "g_proj.weight", [m.heads, m.hidden]
    yield "o_proj.weight", [m.hidden, m.heads * m.v_head_dim]
    if m.o_bias:
        yield "o_proj.bias", [m.hidden]
    if m.qk_norm:
        yield "q_norm.weight", [q_rows if m.wide_norms else m.head_dim]
    if m.qk_norm and not no_keys:
        yield "k_norm.weight", [kv_rows if m.wide_norms else m.head_dim]
    if m.sinks:
        yield "sinks", [m.heads]


def _mla(m):
    q_rows = m.heads * (m.nope + m.rope)
    if m.q_lora is None:
        yield "q_proj.weight", [q_rows, m.hidden]
    else:
        yield "q_a_proj.weight", [m.q_lora, m.hidden]
        yield "q_a_layernorm.weight", [m.q_lora]
        yield "q_b_proj.weight", [q_rows, m.q_lora]
    yield "kv_a_proj_with_mqa.weight", [m.kv_lora + m.rope, m.hidden]
    yield "kv_a_layernorm.weight", [m.kv_lora]
    yield "kv_b_proj.weight", [m.heads * (m.nope + m.v_dim), m.kv_lora]
    yield "o_proj.weight", [m.hidden, m.heads * m.v_dim]


def _gdn(m):
    keys, values = m.gdn_k_heads * m.gdn_k_dim, m.gdn_v_heads * m.gdn_v_dim
    if m.kind == "qwen3_next":
        yield "in_proj_qkvz.weight", [2 * keys + 2 * values, m.hidden]
        yield "in_proj_ba.weight", [2 * m.gdn_v_heads, m.hidden]
    else:
        yield "in_proj_qkv.weight", [2 * keys + values, m.hidden]
        yield "in_proj_z.weight", [values, m.hidden]
        yield "in_proj_b.weight", [m.gdn_v_heads, m.hidden]
        yield "in_proj_a.weight", [m.gdn_v_heads, m.hidden]
    yield "conv1d.weight", [2 * keys + values, 1, m.gdn_kernel]
    yield "A_log", [m.gdn_v_heads]
    yield "dt_bias", [m.gdn_v_heads]
    yield "norm.weight", [m.gdn_v_dim]
    yield "out_proj.weight", [m.hidden, values]


def _mamba(m):
    yield "in_proj.weight", [2 * m.mamba_width + 2 * m.mamba_states + m.mamba_heads, m.hidden]
    yield "conv1d.weight", [m.mamba_width + 2 * m.mamba_states, 1, m.mamba_taps]
    if m.conv_bias:
        yield "conv1d.bias", [m.mamba_width + 2 * m.mamba_states]
    for name in ("A_log", "D", "dt_bias"):
        yield name, [m.mamba_heads]
    if m.mamba_norm:
        yield "norm.weight", [m.mamba_width]
    yield "out_proj.weight", [m.hidden, m.mamba_width]


def _dense_mlp(m):
    if m.fused_dense_gate_up:
        yield "gate_up_proj.weight", [2 * m.ffn, m.hidden]
        yield "down_proj.weight", [m.hidden, m.ffn]
        return
    for name, rows, columns in (("gate_proj", m.ffn, m.hidden), ("up_proj", m.ffn, m.hidden),
                                ("down_proj", m.hidden, m.ffn)):
        if name == "gate_proj" and not m.glu:
            continue
        yield name + ".weight", [rows, columns]
        if m.mlp_bias:
            yield name + ".bias", [rows]


def _moe(m, hub, layer):
    experts, hidden, ffn = m.experts, m.hidden, m.expert_ffn
    router = "router" if m.kind == "gpt_oss" else "gate"
    yield router + ".weight", [experts, hidden]
    if m.kind == "gpt_oss":
        yield "router.bias", [experts]
    if m.correction_bias:
        yield "gate.e_score_correction_bias", [1, experts] if m.kind == "ernie4_5_moe" else [experts]
    if m.latent:
        yield "fc1_latent_proj.weight", [m.latent, hidden]
        yield "fc2_latent_proj.weight", [hidden, m.latent]
    form = m.expert_form
    if form == PACKED_OUT_IN and m.kind not in ("granitemoehybrid", "gemma4_text") and not (hub.packed and (layer < m.layers or hub.mtp_packed)):
        form = SEPARATE
    if form == PACKED_IN_OUT and m.model_type == "qwen3_vl_moe" and (hub.resaved or not hub.packed):
        form = PACKED_OUT_IN if hub.packed else SEPARATE
    if form in (SEPARATE, SEPARATE_MIXTRAL):
        gate, up, down = (("w1", "w3", "w2") if form == SEPARATE_MIXTRAL
                          else ("gate_proj", "up_proj", "down_proj"))
        for e in range(experts):
            if m.glu:
                yield f"experts.{e}.{gate}.weight", [ffn, m.expert_width]
            yield f"experts.{e}.{up}.weight", [ffn, m.expert_width]
            yield f"experts.{e}.{down}.weight", [m.expert_width, ffn]
    elif form == PACKED_APART:
        for name, shape in (("gate_proj", [ffn, hidden]), ("up_proj", [ffn, hidden]), ("down_proj", [hidden, ffn])):
            yield "experts." + name, [experts, *shape]
    elif form == PACKED_OUT_IN:
        yield "experts.gate_up_proj", [experts, 2 * ffn, hidden]
        yield "experts.down_proj", [experts, hidden, ffn]
    else:
        assert form in (PACKED_IN_OUT, PACKED_INTERLEAVED)
        yield "experts.gate_up_proj", [experts, hidden, 2 * ffn]
        yield "experts.down_proj", [experts, ffn, hidden]
        if form == PACKED_INTERLEAVED:
            yield "experts.gate_up_proj_bias", [experts, 2 * ffn]
            yield "experts.down_proj_bias", [experts, hidden]
    if m.shared_ffn and m.fused_dense_gate_up:  # under the names of a dense MLP
        yield "gate_up_proj.weight", [2 * m.shared_ffn, hidden]
        yield "down_proj.weight", [hidden, m.shared_ffn]
    elif m.shared_ffn:
        if m.glu:
            yield m.shared_name + ".gate_proj.weight", [m.shared_ffn, hidden]
        yield m.shared_name + ".up_proj.weight", [m.shared_ffn, hidden]
        yield m.shared_name + ".down_proj.weight", [hidden, m.shared_ffn]
        if m.shared_gate:
            yield "shared_expert_gate.weight", [1, hidden]


def _vision(m):
    """Stand-ins for the vision part: they pass through unchanged, so only the names must be awkward.

    A vision MLP has an fc1 too, which is no gate/up pair, and a fused qkv in another order.
    """
    if m.has_tower:
        yield from (_gated_tower if m.gated_tower else _tower)(m, "model.visual.")
        return
    for prefix in VISION_PREFIX.get(m.model_type, {}):
        if prefix == "multi_modal_projector." and m.has_projector:
            yield prefix + "mm_input_projection_weight", [m.vision["hidden_size"], m.hidden]
            yield prefix + "mm_soft_emb_norm.weight", [m.vision["hidden_size"]]
            continue
        if prefix in ("multi_modal_projector.", "mm_projector."):
            yield prefix + "mm_input_projection_weight", [7, m.hidden]
            continue
        if prefix == "vit_large_projector.":
            yield prefix + "weight", [m.hidden, 7]
            continue
        yield prefix + "patch_embed.proj.weight", [6, 3, 2, 2]
        yield prefix + "blocks.0.attn.qkv.weight", [18, 6]
        yield prefix + "blocks.0.mlp.linear_fc1.weight", [10, 6]
        yield prefix + "blocks.0.mlp.linear_fc1.bias", [10]
        yield prefix + "blocks.0.mlp.linear_fc2.weight", [6, 10]
        yield prefix + "merger.norm.weight", [6]


def _gated_tower(m, own):
    """EXAONE 4.5's."""
    v = m.vision
    wide, ffn, merged = v["hidden_size"], v["intermediate_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    keys = v["num_key_value_heads"] * wide // v["num_heads"]
    yield own + "patch_embed.proj.weight", [wide, v["in_channels"], v["temporal_patch_size"],
                                            v["patch_size"], v["patch_size"]]
    for i in range(v["depth"]):
        block = f"{own}blocks.{i}."
        for name, rows, columns in (("attn.qkv", wide + 2 * keys, wide), ("attn.proj", wide, wide),
                                    ("mlp.gate_proj", ffn, wide), ("mlp.up_proj", ffn, wide),
                                    ("mlp.down_proj", wide, ffn)):
            yield f"{block}{name}.weight", [rows, columns]
            yield f"{block}{name}.bias", [rows]
        for norm in ("norm1", "norm2"):
            yield f"{block}{norm}.weight", [wide]
    yield own + "merger.ln_q.weight", [wide]
    for name, rows in (("mlp.0", merged), ("mlp.2", v["out_hidden_size"])):
        yield f"{own}merger.{name}.weight", [rows, merged]
        yield f"{own}merger.{name}.bias", [rows]


def _tower(m, own):
    """Qwen3-VL's vision part, whose every module Megatron may have, too."""
    v = m.vision
    wide, ffn, merged = v["hidden_size"], v["intermediate_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    yield own + "patch_embed.proj.weight", [wide, v["in_channels"], v["temporal_patch_size"],
                                            v["patch_size"], v["patch_size"]]
    yield own + "patch_embed.proj.bias", [wide]
    yield own + "pos_embed.weight", [v["num_position_embeddings"], wide]
    for i in range(v["depth"]):
        block = f"{own}blocks.{i}."
        for name, rows, columns in (("attn.qkv", 3 * wide, wide), ("attn.proj", wide, wide),
                                    ("mlp.linear_fc1", ffn, wide), ("mlp.linear_fc2", wide, ffn)):
            yield f"{block}{name}.weight", [rows, columns]
            yield f"{block}{name}.bias", [rows]
        for norm in ("norm1", "norm2"):
            yield f"{block}{norm}.weight", [wide]
            yield f"{block}{norm}.bias", [wide]
    mergers = [(f"{own}deepstack_merger_list.{i}.", merged)
               for i in range(len(v.get("deepstack_visual_indexes", [])))]
    for merger, norm in mergers + [(own + "merger.", wide)]:
        yield merger + "norm.weight", [norm]
        yield merger + "norm.bias", [norm]
        for name, rows in (("linear_fc1", merged), ("linear_fc2", v["out_hidden_size"])):
            yield f"{merger}{name}.weight", [rows, merged]
            yield f"{merger}{name}.bias", [rows]
