"""Small but awkward HF configs of every family: random_config(family, rng), rng a random.Random.

Sizes are distinct and not square where the family lets them be; some keys that have a default are left
out. Sizes are rich in factors of 2 and 3, so that many ways to split remain.
"""

FAMILIES = [
    "llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2",
    "deepseek_v3", "moonlight", "kimi_k2", "glm4", "glm4_moe", "gpt_oss", "gemma2", "gemma3_text",
    "gemma3", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_text", "qwen3_5_moe_text", "gemma", "nemotron", "phi3", "seed_oss", "exaone4", "olmo2", "olmo3",
    "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", "kimi_k25", "minimax_m2", "bailing_moe_v2", "sarvam_moe",
    "hy_v3", "exaone_moe", "olmoe", "ernie4_5", "ernie4_5_moe", "mistral3", "starcoder2", "granite",
    "granitemoehybrid", "llama4_text", "llama4", "mimo",
    "minimax_m3_vl", "nemotron_h", "granite4_h", "llama_nemotron", "step3p5", "gemma4_text",
    "qwen3_omni_moe", "sarvam_mla", "qwen2_audio", "qwen2_5_omni", "qwen3_asr", "glm4v_moe", "step3p7", "gemma4",
    "mimo_v2_flash", "falcon_h1", "deepseek_v4", "exaone4_5", "gemma4_dense_text", "gemma4_dense", "nemotron_vl",
]

ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "mixtral": "MixtralForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
    "moonlight": "DeepseekV3ForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM",
    "glm4": "Glm4ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration", "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "gemma": "GemmaForCausalLM", "nemotron": "NemotronForCausalLM", "phi3": "Phi3ForCausalLM",
    "seed_oss": "SeedOssForCausalLM", "exaone4": "Exaone4ForCausalLM", "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM", "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "kimi_k25": "KimiK25ForConditionalGeneration", "minimax_m2": "MiniMaxM2ForCausalLM",
    "bailing_moe_v2": "BailingMoeV2ForCausalLM", "sarvam_moe": "SarvamMoeForCausalLM",
    "hy_v3": "HYV3ForCausalLM", "exaone_moe": "ExaoneMoeForCausalLM",
    "olmoe": "OlmoeForCausalLM", "ernie4_5": "Ernie4_5ForCausalLM", "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "mistral3": "Mistral3ForConditionalGeneration", "starcoder2": "Starcoder2ForCausalLM",
    "granite": "GraniteForCausalLM", "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "llama4_text": "Llama4ForCausalLM", "llama4": "Llama4ForConditionalGeneration",
    "mimo": "MiMoForCausalLM", "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration",
    "sarvam_mla": "SarvamMLAForCausalLM", "qwen2_audio": "Qwen2AudioForConditionalGeneration",
    "qwen2_5_omni": "Qwen2_5OmniForConditionalGeneration", "qwen3_asr": "Qwen3ASRForConditionalGeneration",
    "glm4v_moe": "Glm4vMoeForConditionalGeneration", "step3p7": "Step3p7ForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration", "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "exaone4_5": "Exaone4_5_ForConditionalGeneration",
    "nemotron_vl": "NemotronH_Nano_VL_V2", "gemma4_dense_text": "Gemma4ForCausalLM", "gemma4_dense": "Gemma4ForConditionalGeneration",
    "falcon_h1": "FalconH1ForCausalLM", "deepseek_v4": "DeepseekV4ForCausalLM",
    "qwen3_omni_moe": "Qwen3OmniMoeForConditionalGeneration", "gemma4_text": "Gemma4ForCausalLM", "llama_nemotron": "DeciLMForCausalLM", "step3p5": "Step3p5ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM", "granite4_h": "GraniteMoeHybridForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}


def random_config(family, rng):
    layers = rng.choice([2, 3, 4, 4, 6, 6, 8])
    c = {
        "num_hidden_layers": layers,
        "vocab_size": rng.choice([29, 37, 48, 61, 131]),
        "intermediate_size": rng.choice([16, 28, 32, 48]),
        "torch_dtype": "bfloat16",
    }
    c["num_attention_heads"], c["num_key_value_heads"] = rng.choice(
        [(4, 1), (4, 2), (4, 4), (6, 2), (6, 3), (8, 2), (8, 4), (12, 2), (12, 4)])
    c["hidden_size"] = c["num_attention_heads"] * rng.choice([3, 4, 5, 6])
    c["head_dim"] = rng.choice([4, 6, 8])
    _BY_FAMILY.get(family, lambda c, rng: None)(c, rng)
    if family == "llama" and c["num_key_value_heads"] == c["num_attention_heads"]:
        if rng.random() < 0.5:
            del c["num_key_value_heads"]  # as in Llama 2; other families default to a number
    model_type = {"moonlight": "deepseek_v3", "granite4_h": "granitemoehybrid",
                  "llama_nemotron": "nemotron-nas", "gemma4_dense_text": "gemma4_text",
                  "gemma4_dense": "gemma4", "nemotron_vl": "NemotronH_Nano_VL_V2"}.get(family, family)
    if family in ("llama", "qwen2", "qwen2_moe", "qwen2_vl", "phi3", "olmo2", "olmo3", "olmoe", "starcoder2",
                  "granite", "granitemoehybrid", "granite4_h"):
        _derive_head_dim(c, rng)
    _tie(family, c, rng)
    if family in _NESTED or (family == "qwen2_vl" and rng.random() < 0.5):
        c = _nest(family, c, rng)
    return {"model_type": model_type, "architectures": [ARCHITECTURES[family]], **c}


_NESTED = ("nemotron_vl", "exaone4_5", "qwen2_audio", "qwen2_5_omni", "qwen3_asr", "glm4v_moe", "step3p7", "gemma4", "gemma4_dense",
           "qwen3_omni_moe", "minimax_m3_vl", "mistral3", "llama4", "gemma3", "kimi_k25", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
_TIED_ONLY = ("gemma4", "gemma4_text", "gemma4_dense", "gemma4_dense_text", "gemma", "gemma2", "gemma3_text", "gemma3")
_NEVER_TIED = ("mimo_v2_flash", "deepseek_v4", "sarvam_mla", "glm4v_moe", "step3p7", "qwen3_omni_moe", "minimax_m3_vl", "llama4_text", "llama4", "mistral3", "deepseek_v2", "deepseek_v3", "moonlight", "kimi_k2", "gpt_oss", "glm4_moe_lite", "deepseek_v32",
               "glm_moe_dsa", "kimi_k25", "minimax_m2", "bailing_moe_v2", "sarvam_moe", "hy_v3", "exaone_moe", "nemotron_h", "nemotron_vl",
               "step3p5", "llama_nemotron")


def _derive_head_dim(c, rng):
    """head_dim absent or null: it is hidden_size / num_attention_heads."""
    c["hidden_size"] = c["num_attention_heads"] * rng.choice([2, 4, 6])
    if rng.random() < 0.5:
        del c["head_dim"]
    else:
        c["head_dim"] = None


def _tie(family, c, rng):
    if family in _TIED_ONLY:
        if rng.random() < 0.5:  # Gemma is tied where the key is absent
            c["tie_word_embeddings"] = True
        return
    tied = family not in _NEVER_TIED and rng.random() < 0.4
    vision = family in _NESTED or family == "qwen2_vl"
    if tied or vision or rng.random() < 0.7:
        c["tie_word_embeddings"] = tied


def _nest(family, c, rng):
    """Moves the language part's fields into text_config, with a flag there that is not meant."""
    top = {key: c.pop(key) for key in ("tie_word_embeddings", "torch_dtype") if key in c}
    if family.startswith("qwen3") and rng.random() < 0.5:
        c["tie_word_embeddings"] = True  # Qwen2-VL's own reader would believe it
    vision = {}
    if family == "nemotron_vl":
        return {**top, "llm_config": {"model_type": "nemotron_h", **c}}
    if family in ("qwen3_omni_moe", "qwen2_5_omni", "qwen3_asr"):
        return {**top, "thinker_config": {"text_config": c}}
    if family.startswith("qwen3"):
        vision = _tower(rng) | {"out_hidden_size": c["hidden_size"]}
        if family.startswith("qwen3_5"):
            del vision["deepstack_visual_indexes"]
    elif family == "exaone4_5":
        vision = _tower(rng) | {"out_hidden_size": c["hidden_size"], "num_heads": rng.choice([12, 24, 24]),
                                "num_key_value_heads": 12, "hidden_size": 24 * rng.choice([1, 2])}
        for key in ("deepstack_visual_indexes", "num_position_embeddings"):
            del vision[key]
    elif family == "gemma3":
        vision = {"hidden_size": rng.choice([6, 10, 14])}
    return {**top, "text_config": c, "vision_config": vision}


def _tower(rng):
    depth, heads = rng.choice([1, 2, 3]), 12  # cut by every tp of these cases
    return {"depth": depth, "num_heads": heads, "hidden_size": heads * rng.choice([2, 4]),
            "intermediate_size": rng.choice([24, 36, 60]), "in_channels": 3, "patch_size": rng.choice([2, 3]),
            "temporal_patch_size": 2, "spatial_merge_size": rng.choice([1, 2]),
            "num_position_embeddings": rng.choice([4, 9]),
            "deepstack_visual_indexes": sorted(rng.sample(range(depth), rng.randint(0, depth)))}


def _olmoe(c, rng):
    c["num_experts"], c["num_experts_per_tok"] = rng.choice([4, 6, 8]), 2


def _ernie_moe(c, rng):
    c["moe_num_experts"], c["moe_k"] = _moe_sizes(c, rng), 2
    c["moe_num_shared_experts"] = rng.choice([1, 2])
    c["moe_layer_start_index"] = rng.choice([0, 1])  # so that the second layer has experts
    c["moe_layer_end_index"] = rng.choice([-1, c["num_hidden_layers"] - 1])
    c["moe_layer_interval"] = rng.choice([1, 1, 2])


def _minimax_m3(c, rng):
    c["num_local_experts"], c["num_experts_per_tok"] = rng.choice([4, 6, 8]), 2
    c["dense_intermediate_size"], c["shared_intermediate_size"] = rng.choice([24, 36]), rng.choice([12, 24])
    sparse = [rng.random() < 0.7 for _ in range(c["num_hidden_layers"] - 1)] + [True]
    if rng.random() < 0.5:
        c["mlp_layer_types"] = ["sparse" if yes else "dense" for yes in sparse]
    else:
        c["moe_layer_freq"] = [int(yes) for yes in sparse]


def _mimo(c, rng):
    c["num_nextn_predict_layers"] = rng.choice([0, 1, 1, 2])


def _biases(c, rng):
    if rng.random() < 0.6:
        c["use_bias"] = rng.random() < 0.6


def _granite4(c, rng):
    c["shared_intermediate_size"], c["num_local_experts"] = c["intermediate_size"], 0
    c["layer_types"] = ["attention"] * c["num_hidden_layers"]
    c["mamba_n_heads"] = 2  # of no layer here; its default does not divide


def _granite4_h(c, rng):
    """With Mamba layers, and experts at times."""
    _granite4(c, rng)
    c["shared_intermediate_size"] = rng.choice([24, 36])
    c["num_local_experts"], c["num_experts_per_tok"] = rng.choice([0, 4, 6, 8]), 2
    mamba, attention = rng.choice([("mamba", "attention"), ("linear_attention", "full_attention")])
    c["layer_types"] = [rng.choice([mamba, mamba, attention]) for _ in range(c["num_hidden_layers"] - 1)] + [mamba]
    c["mamba_n_heads"] = c["num_attention_heads"] * rng.choice([1, 2])  # divides what mamba_expand makes
    c["mamba_n_groups"] = rng.choice([1, c["num_attention_heads"]])
    c["mamba_d_state"], c["mamba_d_conv"], c["mamba_expand"] = rng.choice([4, 6]), rng.choice([3, 4]), 2
    c["mamba_d_head"] = "auto"
    if rng.random() < 0.5:
        c["mamba_conv_bias"] = rng.random() < 0.5


def _llama_nemotron(c, rng):
    """Feed-forwards are multiples of 256 rows."""
    blocks = []
    heads = c["num_attention_heads"]
    for _ in range(c["num_hidden_layers"]):
        no_attention = rng.random() < 0.25
        no_ffn = not no_attention and rng.random() < 0.25  # else a layer of nothing
        per = rng.choice([n for n in (1, 2, 3, 4) if heads % n == 0])
        blocks.append({"attention": {"n_heads_in_group": None if no_attention else per, "no_op": no_attention,
                                     "replace_with_linear": False},
                       "ffn": {"ffn_mult": None if no_ffn else rng.choice([0.5, 5.25, 400 / c["hidden_size"]]),
                               "no_op": no_ffn, "replace_with_linear": False}})
    c["block_configs"], c["intermediate_size"] = blocks, None
    c["num_key_value_heads"] = None  # each layer has its own


def _gemma4(c, rng):
    c["enable_moe_block"], c["hidden_size_per_layer_input"] = True, 0
    c["num_experts"], c["top_k_experts"] = _moe_sizes(c, rng), 2
    _gemma4_attention(c, rng)


def _gemma4_attention(c, rng):
    c["global_head_dim"] = rng.choice([4, 10, 12])
    c["num_global_key_value_heads"] = rng.choice([n for n in (1, 2, 4) if c["num_attention_heads"] % n == 0])
    c["attention_k_eq_v"] = rng.random() < 0.7
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    c["layer_types"] = [rng.choice(kinds) for _ in range(c["num_hidden_layers"] - 1)] + ["full_attention"]
    if rng.random() < 0.3:  # as transformers 5 saves it
        own = {"head_dim": c.pop("global_head_dim")}
        groups = c.pop("num_global_key_value_heads")
        if c["attention_k_eq_v"]:
            own["num_key_value_heads"] = groups
        c["per_layer_config"] = _by_layer(c["layer_types"], own)


def _by_layer(kinds, own):
    """Numbers are as wide as the widest of a model, here as wide as those of published models."""
    return {f"{i:02}": dict(own) for i, kind in enumerate(kinds) if kind == "full_attention"}


def _gemma4_dense(c, rng):
    """Layers that share keys have one of their kind before them."""
    if rng.random() < 0.7:
        c["enable_moe_block"] = False
    _gemma4_attention(c, rng)
    kinds = c["layer_types"]
    if "sliding_attention" in kinds:
        kinds[0] = "sliding_attention"
        own = kinds.index("full_attention") + 1
    else:
        own = 1
    if rng.random() < 0.7:
        c["num_kv_shared_layers"] = rng.randint(0, len(kinds) - own)
    if "per_layer_config" in c:
        c["per_layer_config"] = _by_layer(kinds, next(iter(c["per_layer_config"].values())))
    if rng.random() < 0.6:
        c["use_double_wide_mlp"] = rng.random() < 0.6
    c["hidden_size_per_layer_input"] = rng.choice([0, 4, 6])
    c["vocab_size_per_layer_input"] = rng.choice([24, 48])


def _step3p5(c, rng):
    c["num_attention_groups"] = c.pop("num_key_value_heads")
    layers, mtp = c["num_hidden_layers"], rng.choice([0, 1, 2])
    c["num_nextn_predict_layers"] = mtp
    listed = sorted(rng.sample(range(layers), rng.randint(1, layers)))
    c["moe_layers_enum"] = ",".join(map(str, listed)) if rng.random() < 0.6 else listed
    c["moe_num_experts"], c["moe_top_k"] = _moe_sizes(c, rng), 2
    c["share_expert_dim" if rng.random() < 0.5 else "share_expert_dims"] = rng.choice([12, 24])
    for key in ("use_qk_norm", "use_moe_router_bias", "use_head_wise_attn_gate"):
        if rng.random() < 0.7:
            c[key] = rng.random() < 0.7
    if rng.random() < 0.7:
        heads, groups = rng.choice([(4, 2), (8, 4), (12, 4), (12, 12)])
        c["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers + mtp)]
        c["attention_other_setting"] = {"attention_type": "sliding_attention", "num_attention_heads": heads,
                                        "num_attention_groups": groups, "head_dim": c["head_dim"]}


def _nemotron_h(c, rng):
    layers = c["num_hidden_layers"]
    pattern = "".join(rng.choice("MMM*E-") for _ in range(layers - 1)) + rng.choice("ME")
    c["mamba_num_heads"] = heads = rng.choice([4, 6, 8, 12])
    c["n_groups"] = rng.choice([groups for groups in (1, 2, 4, 6) if heads % groups == 0])
    c["mamba_head_dim"], c["ssm_state_size"], c["conv_kernel"] = rng.choice([3, 4, 6]), rng.choice([4, 6]), rng.choice(
        [3, 4])
    if rng.random() < 0.3:
        c["use_conv_bias"] = rng.random() < 0.5
    c["n_routed_experts"], c["num_experts_per_tok"] = _moe_sizes(c, rng), 2
    c["moe_shared_expert_intermediate_size"] = rng.choice([12, 24, 36])
    if rng.random() < 0.5:
        c["n_shared_experts"] = 1
    c["moe_latent_size"] = rng.choice([None, None, 10, 14])
    c["num_nextn_predict_layers"] = rng.choice([0, 1, 1, 2])
    if rng.random() < 0.5:
        c["mtp_use_repeated_layer"] = rng.random() < 0.5
    mtp = rng.choice(["*E", "*E", "E", "*-E", "M*E-"])
    if rng.random() < 0.6:
        c["hybrid_override_pattern"], c["mtp_hybrid_override_pattern"] = pattern, mtp
    else:
        newer = rng.random() < 0.5
        names = {"M": "linear_attention" if newer else "mamba", "*": "full_attention" if newer else "attention",
                 "E": "moe", "-": "mlp"}
        c["layers_block_type"] = [names[x] for x in pattern]
        c["mtp_layers_block_type"] = [names[x] for x in mtp]
        del c["num_hidden_layers"]
    if rng.random() < 0.3:
        c["attention_head_dim"] = c.pop("head_dim")


def _nemotron_vl(c, rng):
    """No MTP layers; Omni has experts."""
    _nemotron_h(c, rng)
    for key in ("num_nextn_predict_layers", "mtp_hybrid_override_pattern", "mtp_layers_block_type",
                "mtp_use_repeated_layer"):
        c.pop(key, None)


def _llama4(c, rng):
    c["num_local_experts"], c["num_experts_per_tok"] = rng.choice([4, 6, 8]), 1
    c["intermediate_size_mlp"] = rng.choice([24, 36, 60])
    if rng.random() < 0.5:
        c["interleave_moe_layer_step"] = rng.choice([1, 2])
    else:
        c["moe_layers"] = sorted(rng.sample(range(c["num_hidden_layers"]), 2))


def _llama(c, rng):
    # mcore's add_bias_linear gives every linear a bias or none, so the two go together.
    if rng.random() < 0.3:
        c["attention_bias"] = c["mlp_bias"] = True


def _moe_sizes(c, rng):
    c["moe_intermediate_size"] = rng.choice([8, 12, 16, 24])
    return rng.choice([4, 6, 8])


def _qwen_moe(c, rng):
    c["num_experts"] = _moe_sizes(c, rng)
    c["num_experts_per_tok"] = 2
    c["decoder_sparse_step"] = rng.choice([1, 1, 2])
    c["mlp_only_layers"] = sorted(rng.sample(range(c["num_hidden_layers"]), rng.choice([0, 0, 1])))


def _qwen2_moe(c, rng):
    _qwen_moe(c, rng)
    c["shared_expert_intermediate_size"] = rng.choice([12, 20, 24, 36])


def _mixtral(c, rng):
    c["num_local_experts"] = rng.choice([4, 6, 8])
    c["num_experts_per_tok"] = 2
    if rng.random() < 0.5:
        _derive_head_dim(c, rng)


def _deepseek_moe(c, rng):
    c["n_routed_experts"] = _moe_sizes(c, rng)
    c["num_experts_per_tok"] = 2
    c["n_group"] = c["topk_group"] = 1
    c["n_shared_experts"] = rng.choice([1, 2, 3])
    c["first_k_dense_replace"] = rng.randint(0, c["num_hidden_layers"] - 1)


def _mla(c, rng):
    heads = c["num_attention_heads"]
    c["num_key_value_heads"] = heads
    del c["head_dim"]
    c["q_lora_rank"], c["kv_lora_rank"] = rng.choice([12, 18, 24]), rng.choice([8, 16, 20])
    c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"] = rng.choice(
        [(6, 4, 8), (4, 2, 6), (8, 4, 4), (4, 4, 4)])
    _deepseek_moe(c, rng)


def _deepseek_v2(c, rng):
    _mla(c, rng)
    c["moe_layer_freq"], c["topk_method"] = 1, "greedy"
    if rng.random() < 0.5:
        c["q_lora_rank"] = None


def _deepseek_v3(c, rng):
    _mla(c, rng)
    c["moe_layer_freq"], c["topk_method"], c["scoring_func"] = 1, "noaux_tc", "sigmoid"
    c["num_nextn_predict_layers"] = rng.choice([0, 1, 1, 2])


def _moonlight(c, rng):
    _deepseek_v3(c, rng)
    c["q_lora_rank"], c["num_nextn_predict_layers"] = None, 0


def _kimi_k2(c, rng):
    _deepseek_v3(c, rng)
    c["num_nextn_predict_layers"] = 0


def _sarvam_mla(c, rng):
    _moonlight(c, rng)
    c["num_experts"], c["num_shared_experts"] = c.pop("n_routed_experts"), c.pop("n_shared_experts")


def _dsa(c, rng):
    _deepseek_v3(c, rng)
    c["index_n_heads"], c["index_head_dim"], c["index_topk"] = rng.choice([2, 4]), rng.choice([6, 8]), 4


def _glm_moe_dsa(c, rng):
    _dsa(c, rng)
    kinds = ["full"] + [rng.choice(["full", "shared"]) for _ in range(c["num_hidden_layers"] - 1)]
    if rng.random() < 0.4:
        c["indexer_types"] = kinds
    elif rng.random() < 0.7:
        c["index_topk_freq"], c["index_skip_topk_offset"] = rng.choice([2, 3]), rng.choice([1, 2, 3])


def _layer_types(c, rng):
    """How transformers 5 says which layers are dense."""
    c["mlp_layer_types"] = [rng.choice(["sparse", "sparse", "dense"]) for _ in range(c["num_hidden_layers"])]
    del c["first_k_dense_replace"]


def _glm4_moe_lite(c, rng):
    _deepseek_v3(c, rng)
    _layer_types(c, rng)


def _hy_v3(c, rng):
    _bailing(c, rng)
    _layer_types(c, rng)


def _bailing(c, rng):
    c["num_experts"] = _moe_sizes(c, rng)
    c["num_experts_per_tok"], c["num_shared_experts"] = 2, rng.choice([1, 2])
    c["first_k_dense_replace"] = rng.randint(0, c["num_hidden_layers"] - 1)
    c["num_nextn_predict_layers"] = rng.choice([0, 1])


def _sarvam_moe(c, rng):
    _bailing(c, rng)
    del c["num_nextn_predict_layers"]


def _minimax_m2(c, rng):
    c["num_local_experts"] = rng.choice([4, 6, 8])
    c["num_experts_per_tok"] = 2


def _seed_oss(c, rng):
    c["attention_bias"], c["attention_out_bias"] = rng.random() < 0.7, rng.random() < 0.3


def _glm4(c, rng):
    c["attention_bias"] = rng.random() < 0.8


def _glm4_moe(c, rng):
    _deepseek_moe(c, rng)
    c["attention_bias"] = rng.random() < 0.8
    c["use_qk_norm"] = rng.random() < 0.5
    c["num_nextn_predict_layers"] = rng.choice([0, 1])


def _glm4v_moe(c, rng):
    _glm4_moe(c, rng)
    del c["num_nextn_predict_layers"]


def _mimo_v2_flash(c, rng):
    groups, layers = c["num_key_value_heads"], c["num_hidden_layers"]
    c["v_head_dim"] = rng.choice([2, 5, 8])
    c["n_routed_experts"], c["num_experts_per_tok"] = _moe_sizes(c, rng), 2
    c["num_nextn_predict_layers"] = rng.choice([0, 0, 1, 2, 3])  # the published config lacks it
    sliding = [int(rng.random() < 0.6) for _ in range(layers - 1)] + [1]
    sparse = [int(rng.random() < 0.7) for _ in range(layers - 1)] + [1]
    if rng.random() < 0.3 and c["num_attention_heads"] % (2 * groups) == 0:  # as transformers 5 saves it
        c["layer_types"] = ["sliding_attention" if yes else "full_attention" for yes in sliding]
        c["mlp_layer_types"] = ["sparse" if yes else "dense" for yes in sparse]
        return
    c["hybrid_layer_pattern"], c["moe_layer_freq"] = sliding, sparse
    c["swa_num_key_value_heads"] = rng.choice(
        [n for n in (groups, 2 * groups) if c["num_attention_heads"] % n == 0])
    c["add_swa_attention_sink_bias"], c["add_full_attention_sink_bias"] = rng.random() < 0.8, rng.random() < 0.2


def _falcon_h1(c, rng):
    heads = c["mamba_n_heads"] = c["num_attention_heads"] * rng.choice([1, 2])
    c["mamba_n_groups"] = rng.choice([1, c["num_attention_heads"]])
    c["mamba_d_state"], c["mamba_d_conv"], c["mamba_expand"] = rng.choice([4, 6]), rng.choice([3, 4]), 2
    if rng.random() < 0.6:
        c["mamba_d_ssm"] = heads * rng.choice([2, 3])
    else:
        c["hidden_size"] = heads * rng.choice([2, 4])
    c["mamba_d_head"] = (c.get("mamba_d_ssm") or 2 * c["hidden_size"]) // heads
    c["mamba_rms_norm"], c["mamba_conv_bias"] = rng.random() < 0.6, rng.random() < 0.7


def _deepseek_v4(c, rng):
    layers, heads = c["num_hidden_layers"], c["num_attention_heads"]
    del c["intermediate_size"]
    c["num_key_value_heads"], c["q_lora_rank"] = 1, rng.choice([12, 24])
    c["o_groups"], c["o_lora_rank"] = rng.choice([n for n in (2, 4) if heads % n == 0]), rng.choice([6, 12])
    c["index_n_heads"], c["index_head_dim"] = rng.choice([2, 4]), rng.choice([6, 10])
    c["n_routed_experts"], c["num_experts_per_tok"], c["n_shared_experts"] = _moe_sizes(c, rng), 2, 1
    c["hc_mult"], c["num_nextn_predict_layers"] = rng.choice([2, 3, 4]), rng.choice([0, 1, 1, 2])
    ratios = [rng.choice([0, 4, 4, 16]) for _ in range(layers - 1)] + [4]
    hashed = rng.randint(0, layers - 1)
    if rng.random() < 0.6:
        c["compress_ratios"], c["num_hash_layers"] = ratios + [0] * c["num_nextn_predict_layers"], hashed
        return
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 16: "heavily_compressed_attention"}
    c["layer_types"] = [kinds[n] for n in ratios]
    c["compress_rates"] = {kinds[n]: n for n in (4, 16)}
    c["mlp_layer_types"] = ["hash_moe"] * hashed + ["moe"] * (layers - hashed)


def _gpt_oss(c, rng):
    c["num_local_experts"] = rng.choice([4, 6, 8])
    c["num_experts_per_tok"] = 2
    c["attention_bias"] = True
    if rng.random() < 0.5:  # as published: square experts, where a transposition keeps the shape
        c["intermediate_size"] = c["hidden_size"]


def _qwen3_vl_moe(c, rng):
    _qwen_moe(c, rng)
    if rng.random() < 0.3:
        c["moe_intermediate_size"] = c["hidden_size"] // 2  # gate_up_proj is square


def _gdn(c, rng):
    k_heads = rng.choice([2, 4, 6])
    c["linear_num_key_heads"] = k_heads
    c["linear_num_value_heads"] = k_heads * rng.choice([1, 2, 3])
    c["linear_key_head_dim"], c["linear_value_head_dim"] = rng.choice([(4, 6), (6, 4), (4, 4)])
    c["linear_conv_kernel_dim"] = rng.choice([3, 4])
    interval = rng.choice([2, 3, 4])
    if rng.random() < 0.5:
        c["full_attention_interval"] = interval
    else:
        c["layer_types"] = ["linear_attention" if (i + 1) % interval else "full_attention"
                            for i in range(c["num_hidden_layers"])]


def _qwen3_next(c, rng):
    _qwen2_moe(c, rng)
    _gdn(c, rng)
    c["num_nextn_predict_layers"] = rng.choice([0, 1])


def _qwen3_5(c, rng):
    _gdn(c, rng)
    c["mtp_num_hidden_layers"] = rng.choice([0, 1])


def _qwen3_5_moe(c, rng):
    _qwen3_5(c, rng)
    del c["intermediate_size"]
    c["num_experts"] = _moe_sizes(c, rng)
    c["num_experts_per_tok"] = 2
    c["shared_expert_intermediate_size"] = rng.choice([12, 20, 24, 36])


_BY_FAMILY = {
    "nemotron_vl": _nemotron_vl,
    "gemma4_dense_text": _gemma4_dense, "gemma4_dense": _gemma4_dense,
    "exaone4_5": lambda c, rng: c.update(num_nextn_predict_layers=rng.choice([0, 1])),
    "mimo_v2_flash": _mimo_v2_flash, "falcon_h1": _falcon_h1, "deepseek_v4": _deepseek_v4,
    "sarvam_mla": _sarvam_mla, "glm4v_moe": _glm4v_moe, "step3p7": _step3p5, "gemma4": _gemma4,
    "qwen3_omni_moe": _qwen_moe, "gemma4_text": _gemma4, "llama_nemotron": _llama_nemotron, "step3p5": _step3p5, "nemotron_h": _nemotron_h, "granite4_h": _granite4_h,
    "minimax_m3_vl": _minimax_m3, "mimo": _mimo, "olmoe": _olmoe, "ernie4_5": _biases, "ernie4_5_moe": _ernie_moe, "starcoder2": _biases, "granite": _llama,
    "granitemoehybrid": _granite4, "llama4_text": _llama4, "llama4": _llama4,
    "seed_oss": _seed_oss, "glm4_moe_lite": _glm4_moe_lite, "deepseek_v32": _dsa, "glm_moe_dsa": _glm_moe_dsa,
    "kimi_k25": _kimi_k2, "minimax_m2": _minimax_m2, "bailing_moe_v2": _bailing, "sarvam_moe": _sarvam_moe,
    "hy_v3": _hy_v3, "exaone_moe": _sarvam_moe,
    "llama": _llama, "qwen2_moe": _qwen2_moe, "qwen3_moe": _qwen_moe, "mixtral": _mixtral,
    "deepseek_v2": _deepseek_v2, "deepseek_v3": _deepseek_v3, "moonlight": _moonlight,
    "kimi_k2": _kimi_k2, "glm4": _glm4, "glm4_moe": _glm4_moe, "gpt_oss": _gpt_oss,
    "qwen3_vl_moe": _qwen3_vl_moe, "qwen3_next": _qwen3_next, "qwen3_5": _qwen3_5,
    "qwen3_5_text": _qwen3_5, "qwen3_5_moe": _qwen3_5_moe, "qwen3_5_moe_text": _qwen3_5_moe,
}
