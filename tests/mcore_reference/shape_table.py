"""The shape every mcore tensor must have on its rank, by name: a table of its own, from sizes alone."""

import re

from .model import language_of

# name pattern (without prefix and layer) -> shape; the letters are those of sizes() below.
TABLE = [
    (r"embedding\.word_embeddings\.weight|output_layer\.weight", "Vp/T, H"),
    (r"decoder\.final_layernorm\.(weight|bias)", "H"),
    (r"(input|pre_mlp)_layernorm\.bias|(self_attention\.linear_qkv|mlp\.linear_fc1)\.layer_norm_bias", "H"),
    (r"self_attention\.core_attention\.indexer\.linear_wq_b\.weight", "xh*xd, ql"),
    (r"self_attention\.core_attention\.indexer\.linear_wk\.weight", "xd, H"),
    (r"self_attention\.core_attention\.indexer\.k_norm\.(weight|bias)", "xd"),
    (r"self_attention\.core_attention\.indexer\.linear_weights_proj\.weight", "xh, H"),
    (r"decoder\.final_norm\.weight|norm\.weight|mixer\.in_proj\.layer_norm_weight", "H"),
    (r"(?:mamba_)?mixer\.in_proj\.weight", "(2*mw+2*ms+mh)/T, H"),
    (r"(?:mamba_)?mixer\.conv1d[._]weight", "(mw+2*ms)/T, 1, mk"),
    (r"(?:mamba_)?mixer\.conv1d[._]bias", "(mw+2*ms)/T"),
    (r"(?:mamba_)?mixer\.(A_log|D|dt_bias)", "mh/T"),
    (r"(?:mamba_)?mixer\.norm\.weight", "mw/T"),
    (r"(?:mamba_)?mixer\.out_proj\.weight", "H, mw/T"),
    (r"(pre_shared_expert|post_ffn|mlp\.post_shared_expert|mlp\.post_moe)_layernorm\.weight", "H"),
    (r"layer_scalar", "1"),
    (r"per_layer_embedding\.weight", "lv/T, L*lw"),
    (r"per_layer_model_proj\.weight", "L*lw/T, H"),
    (r"per_layer_proj_norm\.weight", "lw"),
    (r"per_layer_input_gate\.weight", "lw, H"),
    (r"per_layer_projection\.weight", "H, lw"),
    (r"post_per_layer_input_norm\.weight", "H"),
    (r"mlp\.router\.scale", "H"),
    (r"mlp\.router\.per_expert_scale", "E"),
    (r"mlp\.fc1_latent_proj\.weight", "He, H"),
    (r"mlp\.fc2_latent_proj\.weight", "H, He"),
    (r"mtp\.(enorm|hnorm|final_layernorm)\.weight", "H"),
    (r"mtp\.eh_proj\.weight", "H/T, 2*H"),
    (r"mtp\.[eh]_proj\.weight", "H/T, H"),
    (r"(decoder|mtp)\.hc_head_fn", "hc, hc*H"),
    (r"(decoder|mtp)\.hc_head_base", "hc"),
    (r"(decoder|mtp)\.hc_head_scale|(self_attention|mlp)_hyper_connection\.alpha_(pre|post|res)", "1"),
    (r"(self_attention|mlp)_hyper_connection\.mapping_proj\.weight", "(2+hc)*hc, hc*H"),
    (r"(self_attention|mlp)_hyper_connection\.bias", "(2+hc)*hc"),
    (r"self_attention\.linear_kv_proj\.weight", "hd/D, H"),
    (r"self_attention\.linear_o_group_proj", "og*ol, nh*hd/og"),
    (r"self_attention\.core_attention\.attn_sink", "nh/T"),
    (r"(input|pre_mlp|post_self_attn|post_mlp|post_attention|post_feedforward)_layernorm\.weight", "H"),
    (r"self_attention\.linear_qkv\.weight", "qkv/T, H"),
    (r"self_attention\.linear_qkv\.bias", "qkv/T"),
    (r"self_attention\.(linear_qkv|in_proj|linear_q_proj|linear_qkv_down_proj)\.layer_norm_weight", "H"),
    (r"self_attention\.linear_proj\.weight", "H, o/T"),
    (r"self_attention\.linear_proj\.bias", "H"),
    (r"(self_attention\.linear_proj|mlp\.linear_fc2)\.post_layernorm\.weight", "H"),
    (r"self_attention\.core_attention\.softmax_offset", "nh/T"),
    (r"self_attention\.linear_q_proj\.weight", "qh/T, H"),
    (r"self_attention\.linear_q_up_proj\.weight", "qh/T, ql"),
    (r"self_attention\.linear_kv_up_proj\.weight", "kvh/T, kvl"),
    (r"self_attention\.linear_q_down_proj\.weight", "ql/D, H"),
    (r"self_attention\.linear_kv_down_proj\.weight", "kvd/D, H"),
    (r"self_attention\.linear_qkv_down_proj\.weight", "(ql+kvd)/D, H"),
    (r"self_attention\.linear_q_up_proj\.layer_norm_weight", "ql"),
    (r"self_attention\.linear_kv_up_proj\.layer_norm_weight|self_attention\.kv_layernorm\.weight", "kvl"),
    (r"self_attention\.q_layernorm\.weight", "qn"),
    (r"self_attention\.k_layernorm\.weight", "kn"),
    (r"self_attention\.in_proj\.weight", "(2*gk+2*gv+2*nv)/T, H"),
    (r"self_attention\.conv1d\.weight", "(2*gk+gv)/T, 1, K"),
    (r"self_attention\.(A_log|dt_bias)", "nv/T"),
    (r"self_attention\.out_norm\.weight", "dv"),
    (r"self_attention\.out_proj\.weight", "H, gv/T"),
    (r"mlp\.linear_fc1\.weight", "glu*I/T, H"),
    (r"mlp\.linear_fc1\.bias", "glu*I/T"),
    (r"mlp\.linear_fc1\.layer_norm_weight|mlp\.linear_fc2\.bias", "H"),
    (r"mlp\.linear_fc2\.weight", "H, I/T"),
    (r"mlp\.router\.weight", "E, H"),
    (r"mlp\.router\.(bias|expert_bias)", "E"),
    (r"mlp\.shared_experts\.linear_fc1\.weight", "glu*Is/T, H"),
    (r"mlp\.shared_experts\.linear_fc2\.weight", "H, Is/T"),
    (r"mlp\.shared_experts\.gate_weight", "1, H"),
    (r"mlp\.experts\.(local_experts\.\d+\.linear_fc1\.weight|linear_fc1\.weight\d+)", "glu*Im/ET, He"),
    (r"mlp\.experts\.(local_experts\.\d+\.linear_fc1\.bias|linear_fc1\.bias\d+)", "2*Im/ET"),
    (r"mlp\.experts\.(local_experts\.\d+\.linear_fc2\.weight|linear_fc2\.weight\d+)", "He, Im/ET"),
    (r"mlp\.experts\.(local_experts\.\d+\.linear_fc2\.bias|linear_fc2\.bias\d+)", "H"),
]


def sizes(config, parallel):
    text = language_of(config)
    get = lambda *keys: next((text[key] for key in keys if text.get(key) is not None), 0)
    H, nh = text["hidden_size"], text["num_attention_heads"]
    hd, mh = get("head_dim", "attention_head_dim") or H // nh, get("mamba_num_heads", "mamba_n_heads")
    mw = get("mamba_d_ssm") or mh * get("mamba_head_dim") or get("mamba_expand") * H
    nemotron, granite = "ssm_state_size" in text, config["model_type"] == "granitemoehybrid"
    gated = "linear_num_key_heads" in text or (
        config["model_type"] in ("step3p5", "step3p7") and text.get("use_head_wise_attn_gate", True))
    unit = parallel.vocab_divisor * parallel.tp
    split_down = parallel.spec == "local" or parallel.mla_fusion_sharded
    gv = get("linear_num_value_heads") * get("linear_value_head_dim")
    mla, wide = "kv_lora_rank" in text, config["model_type"] in ("minimax_m2", "olmo2", "olmo3", "olmoe")
    return {
        "T": parallel.tp, "ET": parallel.etp, "D": parallel.tp if split_down else 1, "H": H,
        "Vp": (text["vocab_size"] + unit - 1) // unit * unit, "nh": nh, "hd": hd,
        "qkv": ((2 if gated else 1) * nh + 2 * (get("num_key_value_heads", "num_attention_groups") or nh)) * hd,
        "o": nh * (get("v_head_dim") if mla else hd),
        "qh": nh * (get("qk_nope_head_dim") + get("qk_rope_head_dim")), "ql": get("q_lora_rank"),
        "qn": get("q_lora_rank") if mla else (nh * hd // parallel.tp if wide else hd),
        "kn": get("num_key_value_heads") * hd // parallel.tp if wide else hd,
        "hc": get("hc_mult"), "og": get("o_groups"), "ol": get("o_lora_rank"),
        "xh": get("index_n_heads"), "xd": get("index_head_dim"),
        "glu": 1 if nemotron or config["model_type"] in ("nemotron", "starcoder2") else 2,
        "mh": mh, "mw": mw, "ms": get("n_groups", "mamba_n_groups") * get("ssm_state_size", "mamba_d_state"),
        "mk": get("conv_kernel", "mamba_d_conv"), "He": get("moe_latent_size") or H,
        "kvl": get("kv_lora_rank"), "kvd": get("kv_lora_rank") + get("qk_rope_head_dim"),
        "kvh": nh * (get("qk_nope_head_dim") + get("v_head_dim")),
        "gk": get("linear_num_key_heads") * get("linear_key_head_dim"), "gv": gv,
        "nv": get("linear_num_value_heads"), "dv": get("linear_value_head_dim"),
        "K": get("linear_conv_kernel_dim"),
        "L": text.get("num_hidden_layers"), "lv": get("vocab_size_per_layer_input"),
        "lw": get("hidden_size_per_layer_input"),
        "I": get("shared_intermediate_size") if granite else get(
            "intermediate_size_mlp", "dense_intermediate_size", "intermediate_size"),
        "E": get("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
        "Im": get("moe_intermediate_size", "intermediate_size"),
        "Is": get("share_expert_dim", "share_expert_dims") or (get("moe_shared_expert_intermediate_size") if nemotron else 0)
        or (text.get("enable_moe_block") and text["intermediate_size"])
        or get("shared_expert_intermediate_size", "shared_intermediate_size")
        or get("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") * get("moe_intermediate_size")
        or ("intermediate_size_mlp" in text and text["intermediate_size"]),
    }


def expected_shape(name, numbers):
    """The shape of a tensor by its mcore name; None for parts beside the language model, and for sizes that
    differ from layer to layer. Raises on unknown names."""
    if name.startswith(("visual.", "vision_", "thinker.visual.", "thinker.audio_model.", "audio_tower.", "embed_",
                        "image_insert_embedding.", "multi_modal_projector.", "mm_projector.", "patch_merge_mlp.")):
        return None
    if ".core_attention.compressor." in name or ".indexer.compressor." in name:
        return None
    name = name.removeprefix("thinker.").removeprefix("llava_model.").removeprefix("language_model.")
    name = re.sub(r"^decoder\.layers\.\d+\.", "", name)
    name = re.sub(r"^mtp\.layers\.\d+\.(transformer_layer|mtp_model_layer)\.(layers\.\d+\.)?", "", name)
    name = re.sub(r"^mtp\.layers\.\d+\.", "mtp.", name)
    found = [shape for pattern, shape in TABLE if re.fullmatch(pattern, name)]
    assert len(found) == 1, (name, found)
    exact = [eval(part.replace("/", "//"), {}, numbers) for part in found[0].split(",")]  # own table
    check = [eval(part, {}, numbers) for part in found[0].split(",")]
    assert exact == check, (name, found[0], check)
    return tuple(exact)
