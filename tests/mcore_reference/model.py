"""What the layout needs to know of a model, read from its HF config.json.

One class, Model: sizes, which attention and which MLP each layer has, and the prefixes of both worlds'
names. Nothing here depends on how the model is split over ranks.
"""

import copy

FULL, MLA, GDN, MAMBA = "full", "mla", "gdn", "mamba"
BOTH = "both"  # full attention and Mamba, beside each other
CSA = "csa"  # DeepSeek-V4's attention, compressed in some layers
DENSE, MOE = "dense", "moe"
NOTHING = "nothing"  # of attention, or of an MLP, in a layer of a hybrid model

MLA_TYPES = {"sarvam_mla", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa"}
DSA_TYPES = {"deepseek_v32", "glm_moe_dsa"}  # MLA with an indexer of sparse attention
# Everything but attention as in DeepSeek-V3: a correction bias, shared experts, first layers dense.
DEEPSEEK_MOE_TYPES = MLA_TYPES | {"glm4_moe", "bailing_moe_v2", "sarvam_moe", "hy_v3", "exaone_moe"}
POST_NORM_TYPES = {"exaone4", "olmo2", "olmo3"}  # norms behind attention and MLP, none before them
WIDE_NORM_TYPES = {"minimax_m2", "olmoe", "olmo2", "olmo3"}  # q_norm and k_norm over the width of all heads
CONCATENATED_QKV_TYPES = {"bailing_moe_v2", "sarvam_moe", "phi3"}  # [q; k; v] in one HF tensor
GDN_TYPES = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
GEMMA_TYPES = {"gemma2", "gemma3_text"}
# HF names that are others than those which hub.py, shards.py and reassemble.py spell.
_BAILING = (("model.embed_tokens.", "model.word_embeddings."), (".self_attn.o_proj.", ".attention.dense."),
            (".self_attn.qkv.", ".attention.query_key_value."),
            (".self_attn.q_norm.", ".attention.query_layernorm."),
            (".self_attn.k_norm.", ".attention.key_layernorm."),
            (".mlp.gate.e_score_correction_bias", ".mlp.gate.expert_bias"),
            (".shared_head.norm.", ".final_layernorm."))
PUBLISHED = {
    "bailing_moe_v2": _BAILING,
    "sarvam_moe": _BAILING,
    "phi3": ((".self_attn.qkv.", ".self_attn.qkv_proj."),),
    "hy_v3": ((".mlp.gate.weight", ".mlp.router.gate.weight"),
              (".mlp.gate.e_score_correction_bias", ".mlp.expert_bias"),
              (".mlp.shared_experts.", ".mlp.shared_mlp."), (".shared_head.norm.", ".final_layernorm.")),
    "exaone_moe": ((".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),),
    "minimax_m2": ((".block_sparse_moe.gate.e_score_correction_bias",
                    ".block_sparse_moe.e_score_correction_bias"),),
    "kimi_k25": (("lm_head.", "language_model.lm_head."),),
    "qwen3_omni_moe": (("lm_head.", "thinker.lm_head."),),
    "qwen2_5_omni": (("lm_head.", "thinker.lm_head."),),
    "qwen3_asr": (("lm_head.", "thinker.lm_head."),),
    "qwen2_audio": (("lm_head.", "language_model.lm_head."),),
    "mistral3": (("lm_head.", "language_model.lm_head."),),
    "minimax_m3_vl": (("lm_head.", "language_model.lm_head."), (
        ".block_sparse_moe.gate.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias")),
    "llama4": (("lm_head.", "language_model.lm_head."), (".mlp.gate.", ".feed_forward.router."),
               (".mlp.", ".feed_forward.")),
    "llama4_text": ((".mlp.gate.", ".feed_forward.router."), (".mlp.", ".feed_forward.")),
    "starcoder2": ((".mlp.up_proj.", ".mlp.c_fc."), (".mlp.down_proj.", ".mlp.c_proj.")),
    "granitemoehybrid": ((".mlp.gate_up_proj.", ".shared_mlp.input_linear."),
                         (".mlp.down_proj.", ".shared_mlp.output_linear."),
                         (".mlp.gate.", ".block_sparse_moe.router.layer."),
                         (".mlp.experts.gate_up_proj", ".block_sparse_moe.input_linear.weight"),
                         (".mlp.experts.down_proj", ".block_sparse_moe.output_linear.weight")),
    "nemotron_h": (("model.embed_tokens.", "backbone.embeddings."), ("model.norm.", "backbone.norm_f."),
                   ("model.layers.", "backbone.layers."), (".input_layernorm.", ".norm."),
                   (".post_attention_layernorm.", ".norm."), (".self_attn.", ".mixer."), (".mamba.", ".mixer."),
                   (".mlp.", ".mixer."), (".shared_head.norm.", ".final_layernorm.")),
    "mimo_v2_flash": ((".self_attn.sinks", ".self_attn.attention_sink_bias"), (
        ".shared_head.norm.", ".final_layernorm.")),
    "falcon_h1": ((".mlp.", ".feed_forward."), (".post_attention_layernorm.", ".pre_ff_layernorm."),
                  ("model.norm.", "model.final_layernorm.")),
    "deepseek_v4": (("embed_tokens.", "embed."), ("lm_head.", "head."), (".shared_head.", "."), (".self_attn.", ".attn."),
                    (".input_layernorm.", ".attn_norm."), (".post_attention_layernorm.", ".ffn_norm."),
                    (".gate.e_score_correction_bias", ".gate.bias"), (".mlp.", ".ffn."),
                    (".gate_proj.", ".w1."), (".up_proj.", ".w3."), (".down_proj.", ".w2.")),
    "mimo": ((".enorm.", ".token_layernorm."), (".hnorm.", ".hidden_layernorm."), (".eh_proj.", ".input_proj."),
             (".shared_head.norm.", ".final_layernorm.")),
    "step3p5": ((".mlp.gate.e_score_correction_bias", ".moe.router_bias"), (".mlp.gate.", ".moe.gate."),
                (".mlp.experts.gate_proj", ".moe.gate_proj.weight"), (".mlp.experts.up_proj", ".moe.up_proj.weight"),
                (".mlp.experts.down_proj", ".moe.down_proj.weight"), (".mlp.share_expert.", ".share_expert."),
                (".shared_head.", ".transformer.shared_head."), (".shared_head.head.", ".shared_head.output.")),
    "gemma4_text": ((".mlp.gate.", ".router.proj."), (".mlp.experts.", ".experts."), (".mlp.shared_experts.", ".mlp.")),
    "ernie4_5_moe": ((".mlp.gate.e_score_correction_bias", ".mlp.moe_statics.e_score_correction_bias"),),
}
PUBLISHED["NemotronH_Nano_VL_V2"] = tuple(
    (own, theirs.replace("backbone.", "language_model.backbone.")) for own, theirs in PUBLISHED["nemotron_h"]) + (
        ("lm_head.", "language_model.lm_head."),)
PUBLISHED |= {"step3p7": PUBLISHED["step3p5"], "gemma4": PUBLISHED["gemma4_text"]}
# A model with a vision part -> the model_type of its language part.
LANGUAGE_PART = {
    "NemotronH_Nano_VL_V2": "nemotron_h",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "exaone4_5": "exaone4",
    "glm4v_moe": "glm4_moe",
    "qwen2_audio": "qwen2",
    "qwen2_5_omni": "qwen2",
    "qwen3_asr": "qwen3",
    "step3p7": "step3p5",
    "kimi_k25": "kimi_k2",
    "mistral3": "mistral",
    "minimax_m3_vl": "minimax_m3",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2",
    "qwen3_omni_moe": "qwen3_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
HF_PREFIX = {  # of `layers.`, `embed_tokens.` and `norm.`
    "gemma3": "language_model.model.",
    "deepseek_v4": "",
    "gemma4": "model.language_model.",
    "exaone4_5": "model.language_model.",
    "glm4v_moe": "model.language_model.",
    "qwen2_audio": "language_model.model.",
    "qwen2_5_omni": "thinker.model.",
    "qwen3_asr": "thinker.model.",
    "kimi_k25": "language_model.model.",
    "mistral3": "language_model.model.",
    "minimax_m3_vl": "language_model.model.",
    "llama4": "language_model.model.",
    "qwen3_omni_moe": "thinker.model.",
    "qwen3_vl": "model.language_model.",
    "qwen3_vl_moe": "model.language_model.",
    "qwen3_5": "model.language_model.",
    "qwen3_5_moe": "model.language_model.",
}
# HF name prefix -> mcore name prefix of the parts that pass through unchanged.
VISION_PREFIX = {
    "gemma3": {"vision_tower.": "vision_tower.", "multi_modal_projector.": "multi_modal_projector."},
    "gemma4": {f"model.{part}": part for part in ("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.")},
    "glm4v_moe": {"model.visual.": "visual."},
    "exaone4_5": {"model.visual.": "vision_model."},
    "qwen2_audio": {"audio_tower.": "audio_tower.", "multi_modal_projector.": "multi_modal_projector."},
    "qwen2_5_omni": {"thinker.visual.": "thinker.visual.", "thinker.audio_tower.": "thinker.audio_model."},
    "qwen3_asr": {"thinker.audio_tower.": "thinker.audio_model."},
    "step3p7": {"vision_model.": "vision_model.",
                "vit_large_projector.": "image_insert_embedding.align_projector."},
    "kimi_k25": {"vision_tower.": "vision_tower.", "mm_projector.": "mm_projector."},
    "minimax_m3_vl": {"vision_tower.": "vision_tower.", "multi_modal_projector.": "multi_modal_projector.",
                      "patch_merge_mlp.": "patch_merge_mlp."},
    "mistral3": {"vision_tower.": "vision_tower.", "multi_modal_projector.": "multi_modal_projector."},
    "llama4": {"vision_model.": "vision_model.", "multi_modal_projector.": "multi_modal_projector."},
    "qwen2_vl": {"visual.": "visual."},
    "qwen3_omni_moe": {"thinker.visual.": "thinker.visual.", "thinker.audio_tower.": "thinker.audio_model."},
    "qwen3_vl": {"model.visual.": "vision_model."},
    "qwen3_vl_moe": {"model.visual.": "vision_model."},
    "qwen3_5": {"model.visual.": "vision_model."},
    "qwen3_5_moe": {"model.visual.": "vision_model."},
}
# The characters of Nemotron-H's patterns: a layer's attention and its MLP.
PATTERN = {"M": (MAMBA, NOTHING), "*": (FULL, NOTHING), "E": (NOTHING, MOE), "-": (NOTHING, DENSE)}
BLOCK_TYPES = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "moe": "E",
               "mlp": "-"}
# How the routed experts lie in the HF file (section 3.1).
SEPARATE = "separate"  # experts.{e}.gate_proj.weight, ...
SEPARATE_MIXTRAL = "separate_mixtral"  # block_sparse_moe.experts.{e}.w1.weight, ...
PACKED_APART = "packed_apart"  # [E, Im, H] twice, and [E, H, Im]
PACKED_OUT_IN = "packed_out_in"  # [E, 2Im, H] and [E, H, Im]
PACKED_IN_OUT = "packed_in_out"  # [E, H, 2Im], last axis [gate | up], and [E, Im, H]
PACKED_INTERLEAVED = "packed_interleaved"  # [E, H, 2Im], last axis gate0 up0 gate1 up1 ..., with biases


class Model:
    def __init__(self, config):
        self.config = config
        self.model_type = config["model_type"]
        self.has_vision = self.model_type in LANGUAGE_PART
        self.text = text = language_of(config)
        kind = LANGUAGE_PART.get(self.model_type, self.model_type)
        if kind == "gemma4_text" and not text.get("enable_moe_block"):
            kind = "gemma4_dense"
        self.kind = kind
        self.gemma4 = kind in ("gemma4_text", "gemma4_dense")

        self.pattern, self.mtp_pattern = _pattern(text, ""), _pattern(text, "mtp_")
        self.layers = len(self.pattern) or text["num_hidden_layers"]
        self.hidden = text["hidden_size"]
        self.vocab = text["vocab_size"]
        self.ffn = text.get("intermediate_size_mlp") or text.get("dense_intermediate_size") or text.get(
            "intermediate_size")
        if kind == "granitemoehybrid":
            self.ffn = text["shared_intermediate_size"]
        self.final_norm = "final_norm" if kind in ("nemotron_h", "falcon_h1") else "final_layernorm"  # HybridModel's
        self.heads = text["num_attention_heads"]
        self.groups = text.get("num_key_value_heads") or text.get("num_attention_groups") or self.heads
        self.head_dim = text.get("head_dim") or text.get("attention_head_dim") or self.hidden // self.heads
        # The flag of a model with vision stands at the top; what text_config says is not meant.
        self.tied = config.get("tie_word_embeddings", kind in GEMMA_TYPES | {
            "gemma", "gemma4_text", "gemma4_dense", "ernie4_5", "ernie4_5_moe", "starcoder2"})

        self.vision = config.get("vision_config") or {}
        # Bridge's own projector and tower, and not HF's, from version 0.19 on.
        self.has_tower = self.model_type.startswith(("qwen3", "exaone")) and "depth" in self.vision
        self.gated_tower = self.model_type == "exaone4_5"  # RMS norms, gates, fewer keys than queries
        self.has_projector = self.model_type == "gemma3" and "hidden_size" in self.vision
        self.hf_prefix = HF_PREFIX.get(self.model_type, "model.")
        self.mcore_prefix = "language_model." if self.has_vision else ""
        if "thinker_config" in config:
            self.mcore_prefix = "thinker." + self.mcore_prefix
        if "llm_config" in config:
            self.mcore_prefix = "llava_model." + self.mcore_prefix

        # Attention.
        self.mla = kind in MLA_TYPES
        if self.mla:
            self.q_lora = text.get("q_lora_rank")
            self.kv_lora = text["kv_lora_rank"]
            self.nope, self.rope = text["qk_nope_head_dim"], text["qk_rope_head_dim"]
            self.v_dim = text["v_head_dim"]
        self.csa = kind == "deepseek_v4"
        if self.csa:
            self.q_lora, self.out_groups = text["q_lora_rank"], text["o_groups"]
            self.out_rank, self.streams = self.out_groups * text["o_lora_rank"], text["hc_mult"]
            self.index_heads, self.index_dim = text["index_n_heads"], text["index_head_dim"]
        self.gated_attention = kind in GDN_TYPES
        self.head_gate = kind == "step3p5" and text.get("use_head_wise_attn_gate", True)
        self.qkv_bias = kind in ("mimo", "qwen2", "qwen2_moe", "gpt_oss") or (
            kind in ("llama", "granite", "glm4", "glm4_moe", "seed_oss") and text.get("attention_bias", False))
        one_switch = text.get("use_bias", kind == "starcoder2") if kind in ("ernie4_5", "starcoder2") else False
        self.qkv_bias = self.qkv_bias or one_switch
        # Llama's attention_bias reaches o_proj too; GLM's does not.
        self.o_bias = (kind == "gpt_oss" or one_switch or (kind in ("llama", "granite") and text.get("attention_bias", False))
                       or (kind == "seed_oss" and text["attention_out_bias"]))
        self.dsa = kind in DSA_TYPES
        if self.dsa:
            self.index_heads, self.index_dim = text["index_n_heads"], text["index_head_dim"]
        self.fused_qkv = kind in CONCATENATED_QKV_TYPES
        self.wide_norms = kind in WIDE_NORM_TYPES
        self.norm_bias = kind in ("nemotron", "starcoder2")
        self.glu = not self.norm_bias and kind != "nemotron_h"
        self.post_norms = kind in POST_NORM_TYPES
        self.mlp_bias = one_switch or (kind in ("llama", "granite") and text.get("mlp_bias", False))
        self.qk_norm = (kind in ("qwen3", "qwen3_moe", "gemma3_text", "bailing_moe_v2", "sarvam_moe", "hy_v3",
                                 "exaone_moe", "exaone4", "minimax_m3") or self.wide_norms or kind in GDN_TYPES
                        or self.gemma4 or (kind == "step3p5" and text.get("use_qk_norm", False))
                        or (kind == "glm4_moe" and text.get("use_qk_norm", False)))
        self.sinks = kind == "gpt_oss"
        self.keys_only = False  # values are the keys
        self.shares_keys = False  # with an earlier layer
        # Gemma 4 has an embedding for each layer beside that of the model. 0: it has none.
        self.layer_width = text.get("hidden_size_per_layer_input", 256) if kind == "gemma4_dense" else 0
        self.layer_vocab = text.get("vocab_size_per_layer_input", 262144)
        if kind in GDN_TYPES:
            self.gdn_k_heads, self.gdn_v_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
            self.gdn_k_dim, self.gdn_v_dim = text["linear_key_head_dim"], text["linear_value_head_dim"]
            self.gdn_kernel = text["linear_conv_kernel_dim"]

        self.mamba = kind in ("nemotron_h", "falcon_h1") or (
            kind == "granitemoehybrid" and {"mamba", "linear_attention"} & set(text["layer_types"]))
        if self.mamba:
            read = lambda *keys: next(text[key] for key in keys if key in text)
            self.mamba_heads = read("mamba_num_heads", "mamba_n_heads")
            self.mamba_groups = read("n_groups", "mamba_n_groups")
            self.mamba_state, self.mamba_taps = read("ssm_state_size", "mamba_d_state"), read(
                "conv_kernel", "mamba_d_conv")
            dim = read("mamba_head_dim", "mamba_d_head") if kind == "nemotron_h" or text.get(
                "mamba_d_head", "auto") != "auto" else text["mamba_expand"] * self.hidden // self.mamba_heads
            self.mamba_width = text.get("mamba_d_ssm") or self.mamba_heads * dim  # of z and x
            self.mamba_norm = text.get("mamba_rms_norm", True)
            self.mamba_states = self.mamba_groups * self.mamba_state  # of B and C
            self.conv_bias = text.get("use_conv_bias", text.get("mamba_conv_bias", True))

        # MLP.
        self.experts = (text.get("n_routed_experts") or text.get("moe_num_experts") or text.get("num_experts")
                        or text.get("num_local_experts") or 0)
        self.expert_ffn = text.get("intermediate_size" if kind in (
            "mixtral", "gpt_oss", "minimax_m2", "minimax_m3", "olmoe", "llama4_text", "granitemoehybrid") else "moe_intermediate_size")
        self.correction_bias = (kind in DEEPSEEK_MOE_TYPES - {"deepseek_v2"} or
                                kind in ("minimax_m2", "minimax_m3", "ernie4_5_moe", "nemotron_h", "mimo_v2_flash", "deepseek_v4") or
                                (kind == "step3p5" and text.get("use_moe_router_bias", False)))
        self.shared_ffn = 0  # 0: there is no shared expert
        if kind in DEEPSEEK_MOE_TYPES or kind == "deepseek_v4":
            count = text.get("n_shared_experts") or text.get("num_shared_experts") or 0
            self.shared_ffn = count * self.expert_ffn
        elif kind == "ernie4_5_moe":
            self.shared_ffn = text["moe_num_shared_experts"] * self.expert_ffn
        elif kind == "gemma4_text":
            self.shared_ffn = text["intermediate_size"]
        elif kind == "step3p5":
            self.shared_ffn = text.get("share_expert_dim") or text["share_expert_dims"]
        elif kind == "nemotron_h":
            self.shared_ffn = text["moe_shared_expert_intermediate_size"]
        elif kind == "minimax_m3" or (kind == "granitemoehybrid" and self.experts):
            self.shared_ffn = text["shared_intermediate_size"]
        elif kind == "llama4_text":
            self.shared_ffn = self.expert_ffn
        elif kind in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
            self.shared_ffn = text["shared_expert_intermediate_size"]
        self.shared_gate = self.shared_ffn > 0 and kind not in DEEPSEEK_MOE_TYPES | {
            "deepseek_v4", "ernie4_5_moe", "llama4_text", "minimax_m3", "nemotron_h", "granitemoehybrid", "step3p5", "gemma4_text"}
        self.shared_name = "share_expert" if kind == "step3p5" else "shared_expert" if self.shared_gate or kind == "llama4_text" else "shared_experts"
        self.expert_form = {
            "mixtral": SEPARATE_MIXTRAL,
            "minimax_m2": SEPARATE_MIXTRAL,
            "minimax_m3": SEPARATE_MIXTRAL,
            "gpt_oss": PACKED_INTERLEAVED,
            "qwen3_5_moe_text": PACKED_OUT_IN,
        }.get(kind, SEPARATE)
        if self.model_type == "qwen3_vl_moe" or kind == "llama4_text":
            self.expert_form = PACKED_IN_OUT
        elif kind in ("granitemoehybrid", "gemma4_text"):
            self.expert_form = PACKED_OUT_IN
        elif kind == "step3p5":
            self.expert_form = PACKED_APART
        self.latent = text.get("moe_latent_size")
        self.expert_width = self.latent or self.hidden  # of what goes into an expert
        self.moe_name = "block_sparse_moe" if kind in ("mixtral", "minimax_m2", "minimax_m3") else "mlp"
        self.fused_dense_gate_up = kind in ("glm4", "phi3", "granitemoehybrid")

        self.gemma_norms = kind in GEMMA_TYPES
        self.glm4_norms = kind == "glm4"
        self.mtp_layers = text.get("mtp_num_hidden_layers", text.get("num_nextn_predict_layers")) or 0
        # How many layers of its own an MTP block has. Nemotron-H's blocks are one, repeated, by default.
        self.mtp_inner = len(self.mtp_pattern) or 1
        if kind == "nemotron_h" and text.get("mtp_use_repeated_layer", True):
            self.mtp_layers = min(self.mtp_layers, 1)
        # Qwen keeps its MTP block at the top level of the file, the DeepSeek kind as further layers.
        self.qwen_mtp = kind in GDN_TYPES or self.gated_tower

    @property
    def v_head_dim(self):
        return self.text["v_head_dim"] if self.kind == "mimo_v2_flash" else self.head_dim

    def at(self, layer):
        """This model with the sizes of a layer, where layers differ in them."""
        changes = {}
        if self.gemma4 and self.is_whole(layer):
            saved = {int(key): own for key, own in self.text.get("per_layer_config", {}).items()}  # by transformers 5
            own = saved[layer] if saved else {"head_dim": self.text.get("global_head_dim", 512)}
            changes = {"head_dim": own["head_dim"]}
            if self.text.get("attention_k_eq_v"):
                changes |= {"groups": own["num_key_value_heads"] if saved else self.text["num_global_key_value_heads"],
                            "keys_only": True}
        if self.gemma4 and layer >= self.layers - self.text.get("num_kv_shared_layers", 0):
            changes["shares_keys"] = True
            if self.text.get("use_double_wide_mlp"):
                changes["ffn"] = 2 * self.ffn
        if self.kind == "mimo_v2_flash":
            sliding = self.is_sliding(layer)
            changes["sinks"] = self.text.get(f"add_{'swa' if sliding else 'full'}_attention_sink_bias", sliding)
            if sliding:
                changes["groups"] = self.text.get("swa_num_key_value_heads") or 2 * self.groups
        if self.csa and self.hashed(layer):
            changes["correction_bias"] = False
        if self.kind == "nemotron-nas" and layer < self.layers:
            block = self.text["block_configs"][layer]
            if block["attention"].get("n_heads_in_group"):
                changes["groups"] = self.heads // block["attention"]["n_heads_in_group"]
            if block["ffn"].get("ffn_mult"):
                least = int(2 * block["ffn"]["ffn_mult"] * self.hidden / 3)
                changes["ffn"] = -(-least // 256) * 256
        if self.kind == "step3p5" and layer < len(self.text.get("layer_types", ())):
            other = self.text.get("attention_other_setting")
            if other and self.text["layer_types"][layer] == "sliding_attention":
                changes = {"heads": other["num_attention_heads"], "groups": other["num_attention_groups"],
                           "head_dim": other["head_dim"]}
        if not changes:
            return self
        model = copy.copy(self)
        vars(model).update(changes)
        return model

    def is_sliding(self, layer):
        """Whether a layer of MiMo-V2-Flash has sliding attention."""
        if layer >= self.layers:
            return True
        kinds = self.text.get("layer_types")
        return kinds[layer] == "sliding_attention" if kinds else bool(self.text["hybrid_layer_pattern"][layer])

    def hashed(self, layer):
        """Whether a layer of DeepSeek-V4 routes by a table of tokens."""
        if "num_hash_layers" in self.text:
            return layer < self.text["num_hash_layers"]
        return layer < self.layers and self.text["mlp_layer_types"][layer] == "hash_moe"

    def ratio(self, layer):
        """How many keys of DeepSeek-V4 are compressed into one; 0: none."""
        if "compress_ratios" in self.text:
            return self.text["compress_ratios"][layer]
        return self.text["compress_rates"].get(self.text["layer_types"][layer], 0) if layer < self.layers else 0

    def is_whole(self, layer):
        """Whether a layer of Gemma 4 attends to everything."""
        kinds = self.text.get("layer_types")
        return kinds[layer] == "full_attention" if kinds else (layer + 1) % 6 == 0

    def character(self, layer):
        """Nemotron-H's layer; layer >= self.layers: an MTP block's inner layers are counted on."""
        if layer < self.layers:
            return self.pattern[layer]
        return self.mtp_pattern[(layer - self.layers) % self.mtp_inner]

    def attention(self, layer):
        """The attention of a decoder layer; layer >= self.layers: of an MTP block."""
        if self.csa or self.kind == "falcon_h1":
            return CSA if self.csa else BOTH
        if self.pattern:
            return PATTERN[self.character(layer)][0]
        if self.kind == "granitemoehybrid":
            return FULL if self.text["layer_types"][layer] in ("attention", "full_attention") else MAMBA
        if self.kind == "nemotron-nas" and self.text["block_configs"][layer]["attention"].get("no_op"):
            return NOTHING
        if self.mla:
            return MLA
        if self.kind not in GDN_TYPES or layer >= self.layers:
            return FULL
        if self.text.get("layer_types"):
            return FULL if self.text["layer_types"][layer] == "full_attention" else GDN
        return FULL if (layer + 1) % self.text.get("full_attention_interval", 4) == 0 else GDN

    def mlp(self, layer):
        """DENSE, MOE or NOTHING of a decoder layer; layer >= self.layers: of an MTP block."""
        if self.pattern:
            return PATTERN[self.character(layer)][1]
        if self.kind == "nemotron-nas" and self.text["block_configs"][layer]["ffn"].get("no_op"):
            return NOTHING
        if self.kind == "step3p5":
            listed = self.text["moe_layers_enum"]
            listed = [int(n) for n in listed.split(",") if n] if isinstance(listed, str) else listed
            return MOE if layer < self.layers and layer in listed else DENSE
        if self.kind == "mimo_v2_flash":
            if layer >= self.layers:
                return DENSE
            kinds = self.text.get("mlp_layer_types")
            return MOE if (kinds[layer] == "sparse" if kinds else self.text["moe_layer_freq"][layer]) else DENSE
        if not self.experts:
            return DENSE
        if layer >= self.layers or self.kind in ("deepseek_v4", "olmoe", "mixtral", "gpt_oss", "minimax_m2", "qwen3_5_moe_text",
                                                   "granitemoehybrid", "gemma4_text"):
            return MOE
        if self.kind == "minimax_m3":
            if "mlp_layer_types" in self.text:
                return MOE if self.text["mlp_layer_types"][layer] == "sparse" else DENSE
            return MOE if self.text["moe_layer_freq"][layer] else DENSE
        if self.kind == "llama4_text":
            step = self.text.get("interleave_moe_layer_step", 1)
            routing = self.text.get("moe_layers") or range(step - 1, self.layers, step)
            return MOE if layer in routing else DENSE
        if self.kind == "ernie4_5_moe":
            first, last = self.text["moe_layer_start_index"], self.text["moe_layer_end_index"]
            every = self.text["moe_layer_interval"]
            last = self.layers - 1 if last == -1 else last
            return MOE if first <= layer <= last and (layer + 1) % every == 0 else DENSE
        if self.kind in DEEPSEEK_MOE_TYPES:
            if "mlp_layer_types" in self.text:
                return MOE if self.text["mlp_layer_types"][layer] == "sparse" else DENSE
            first = self.text["first_k_dense_replace"]
            every = self.text.get("moe_layer_freq", 1)
            return MOE if layer >= first and layer % every == 0 else DENSE
        step = self.text.get("decoder_sparse_step", 1)
        if layer in (self.text.get("mlp_only_layers") or []) or (layer + 1) % step != 0:
            return DENSE
        return MOE

    def indexer(self, layer):
        """Whether a layer of sparse attention chooses its own tokens: others take an earlier layer's."""
        if not self.dsa:
            return False
        if layer >= self.layers:
            return True
        if "indexer_types" in self.text:
            return self.text["indexer_types"][layer] == "full"
        first = max(self.text.get("index_skip_topk_offset", 1), 1)  # every layer before it has one
        return max(layer + 1 - first, 0) % self.text.get("index_topk_freq", 1) == 0

    def published(self, name):
        """The name in the file of the tensor that this reference calls `name`."""
        if name.startswith(tuple(VISION_PREFIX.get(self.model_type, ()))):
            return name
        for own, theirs in PUBLISHED.get(self.model_type, ()):
            if own in name and not (own == "lm_head." and name != "lm_head.weight"):
                name = name.replace(own, theirs)
        if self.kind == "mimo_v2_flash" and ".mtp." in name:
            name = name.replace(".post_attention_layernorm.", ".pre_mlp_layernorm.")
        return name

    def hf_layer(self, layer):
        """The prefix of a layer's HF names; layer >= self.layers: of MTP block layer - self.layers."""
        if layer >= self.layers and (self.qwen_mtp or self.pattern):
            return f"mtp.layers.{layer - self.layers}."
        if layer >= self.layers and self.csa:
            return f"mtp.{layer - self.layers}."
        if layer >= self.layers and self.kind == "mimo_v2_flash":
            return f"{self.hf_prefix}mtp.layers.{layer - self.layers}."
        if layer >= self.layers and self.kind == "mimo":
            return f"{self.hf_prefix}mtp_layers.{layer - self.layers}."
        return f"{self.hf_prefix}layers.{layer}."

    def fused_qkv_rows(self):
        per_group = (2 if self.gated_attention or self.head_gate else 1) * (self.heads // self.groups) + 1
        return self.groups * (per_group * self.head_dim + self.v_head_dim)


def language_of(config):
    """The language part of a config."""
    outer = config.get("thinker_config", config)
    return outer.get("text_config") or outer.get("llm_config", outer)


def _pattern(text, which):
    """Nemotron-H's layers as characters, "" for other models. which: "" or "mtp_"."""
    blocks = text.get(which + "layers_block_type") if "ssm_state_size" in text else None
    return text.get(which + "hybrid_override_pattern") or "".join(BLOCK_TYPES[name] for name in blocks or [])
