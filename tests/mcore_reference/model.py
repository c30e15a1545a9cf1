"""What the layout needs to know of a model, read from its HF config.json.

One class, Model: sizes, which attention and which MLP each layer has, and the prefixes of both worlds'
names. Nothing here depends on how the model is split over ranks.
"""

FULL, MLA, GDN = "full", "mla", "gdn"
DENSE, MOE = "dense", "moe"

MLA_TYPES = {"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa"}
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
    "mistral3": (("lm_head.", "language_model.lm_head."),),
    "minimax_m3_vl": (("lm_head.", "language_model.lm_head."), (
        ".block_sparse_moe.gate.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias")),
    "llama4": (("lm_head.", "language_model.lm_head."), (".mlp.gate.", ".feed_forward.router."),
               (".mlp.", ".feed_forward.")),
    "llama4_text": ((".mlp.gate.", ".feed_forward.router."), (".mlp.", ".feed_forward.")),
    "starcoder2": ((".mlp.up_proj.", ".mlp.c_fc."), (".mlp.down_proj.", ".mlp.c_proj.")),
    "granitemoehybrid": ((".mlp.gate_up_proj.", ".shared_mlp.input_linear."),
                         (".mlp.down_proj.", ".shared_mlp.output_linear.")),
    "mimo": ((".enorm.", ".token_layernorm."), (".hnorm.", ".hidden_layernorm."), (".eh_proj.", ".input_proj."),
             (".shared_head.norm.", ".final_layernorm.")),
    "ernie4_5_moe": ((".mlp.gate.e_score_correction_bias", ".mlp.moe_statics.e_score_correction_bias"),),
}
# A model with a vision part -> the model_type of its language part.
LANGUAGE_PART = {
    "gemma3": "gemma3_text",
    "kimi_k25": "kimi_k2",
    "mistral3": "mistral",
    "minimax_m3_vl": "minimax_m3",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
HF_PREFIX = {  # of `layers.`, `embed_tokens.` and `norm.`
    "gemma3": "language_model.model.",
    "kimi_k25": "language_model.model.",
    "mistral3": "language_model.model.",
    "minimax_m3_vl": "language_model.model.",
    "llama4": "language_model.model.",
    "qwen3_vl": "model.language_model.",
    "qwen3_vl_moe": "model.language_model.",
    "qwen3_5": "model.language_model.",
    "qwen3_5_moe": "model.language_model.",
}
# HF name prefix -> mcore name prefix of the parts that pass through unchanged.
VISION_PREFIX = {
    "gemma3": {"vision_tower.": "vision_tower.", "multi_modal_projector.": "multi_modal_projector."},
    "kimi_k25": {"vision_tower.": "vision_tower.", "mm_projector.": "mm_projector."},
    "minimax_m3_vl": {"vision_tower.": "vision_tower.", "multi_modal_projector.": "multi_modal_projector.",
                      "patch_merge_mlp.": "patch_merge_mlp."},
    "mistral3": {"vision_tower.": "vision_tower.", "multi_modal_projector.": "multi_modal_projector."},
    "llama4": {"vision_model.": "vision_model.", "multi_modal_projector.": "multi_modal_projector."},
    "qwen2_vl": {"visual.": "visual."},
    "qwen3_vl": {"model.visual.": "vision_model."},
    "qwen3_vl_moe": {"model.visual.": "vision_model."},
    "qwen3_5": {"model.visual.": "vision_model."},
    "qwen3_5_moe": {"model.visual.": "vision_model."},
}
# How the routed experts lie in the HF file (section 3.1).
SEPARATE = "separate"  # experts.{e}.gate_proj.weight, ...
SEPARATE_MIXTRAL = "separate_mixtral"  # block_sparse_moe.experts.{e}.w1.weight, ...
PACKED_OUT_IN = "packed_out_in"  # [E, 2Im, H] and [E, H, Im]
PACKED_IN_OUT = "packed_in_out"  # [E, H, 2Im], last axis [gate | up], and [E, Im, H]
PACKED_INTERLEAVED = "packed_interleaved"  # [E, H, 2Im], last axis gate0 up0 gate1 up1 ..., with biases


class Model:
    def __init__(self, config):
        self.config = config
        self.model_type = config["model_type"]
        self.has_vision = self.model_type in LANGUAGE_PART
        self.text = text = config.get("text_config", config)
        self.kind = kind = LANGUAGE_PART.get(self.model_type, self.model_type)

        self.layers = text["num_hidden_layers"]
        self.hidden = text["hidden_size"]
        self.vocab = text["vocab_size"]
        self.ffn = text.get("intermediate_size_mlp") or text.get("dense_intermediate_size") or text.get(
            "intermediate_size")
        self.heads = text["num_attention_heads"]
        self.groups = text.get("num_key_value_heads") or self.heads
        self.head_dim = text.get("head_dim") or self.hidden // self.heads
        # The flag of a model with vision stands at the top; what text_config says is not meant.
        self.tied = config.get("tie_word_embeddings", kind in GEMMA_TYPES | {
            "gemma", "ernie4_5", "ernie4_5_moe", "starcoder2"})

        self.vision = config.get("vision_config") or {}
        # Bridge's own projector and tower, and not HF's, from version 0.19 on.
        self.has_tower = self.model_type.startswith("qwen3") and "depth" in self.vision
        self.has_projector = self.model_type == "gemma3" and "hidden_size" in self.vision
        self.hf_prefix = HF_PREFIX.get(self.model_type, "model.")
        self.mcore_prefix = "language_model." if self.has_vision else ""

        # Attention.
        self.mla = kind in MLA_TYPES
        if self.mla:
            self.q_lora = text.get("q_lora_rank")
            self.kv_lora = text["kv_lora_rank"]
            self.nope, self.rope = text["qk_nope_head_dim"], text["qk_rope_head_dim"]
            self.v_dim = text["v_head_dim"]
        self.gated_attention = kind in GDN_TYPES
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
        self.glu = not self.norm_bias
        self.post_norms = kind in POST_NORM_TYPES
        self.mlp_bias = one_switch or (kind in ("llama", "granite") and text.get("mlp_bias", False))
        self.qk_norm = (kind in ("qwen3", "qwen3_moe", "gemma3_text", "bailing_moe_v2", "sarvam_moe", "hy_v3",
                                 "exaone_moe", "exaone4", "minimax_m3") or self.wide_norms or kind in GDN_TYPES
                        or (kind == "glm4_moe" and text.get("use_qk_norm", False)))
        self.sinks = kind == "gpt_oss"
        if kind in GDN_TYPES:
            self.gdn_k_heads, self.gdn_v_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
            self.gdn_k_dim, self.gdn_v_dim = text["linear_key_head_dim"], text["linear_value_head_dim"]
            self.gdn_kernel = text["linear_conv_kernel_dim"]

        # MLP.
        self.experts = (text.get("n_routed_experts") or text.get("moe_num_experts") or text.get("num_experts")
                        or text.get("num_local_experts") or 0)
        self.expert_ffn = text.get("intermediate_size" if kind in (
            "mixtral", "gpt_oss", "minimax_m2", "minimax_m3", "olmoe", "llama4_text") else "moe_intermediate_size")
        self.correction_bias = (kind in DEEPSEEK_MOE_TYPES - {"deepseek_v2"} or
                                kind in ("minimax_m2", "minimax_m3", "ernie4_5_moe"))
        self.shared_ffn = 0  # 0: there is no shared expert
        if kind in DEEPSEEK_MOE_TYPES:
            count = text.get("n_shared_experts") or text.get("num_shared_experts") or 0
            self.shared_ffn = count * self.expert_ffn
        elif kind == "ernie4_5_moe":
            self.shared_ffn = text["moe_num_shared_experts"] * self.expert_ffn
        elif kind == "minimax_m3":
            self.shared_ffn = text["shared_intermediate_size"]
        elif kind == "llama4_text":
            self.shared_ffn = self.expert_ffn
        elif kind in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
            self.shared_ffn = text["shared_expert_intermediate_size"]
        self.shared_gate = self.shared_ffn > 0 and kind not in DEEPSEEK_MOE_TYPES | {
            "ernie4_5_moe", "llama4_text", "minimax_m3"}
        self.shared_name = "shared_expert" if self.shared_gate or kind == "llama4_text" else "shared_experts"
        self.expert_form = {
            "mixtral": SEPARATE_MIXTRAL,
            "minimax_m2": SEPARATE_MIXTRAL,
            "minimax_m3": SEPARATE_MIXTRAL,
            "gpt_oss": PACKED_INTERLEAVED,
            "qwen3_5_moe_text": PACKED_OUT_IN,
        }.get(kind, SEPARATE)
        if self.model_type == "qwen3_vl_moe" or kind == "llama4_text":
            self.expert_form = PACKED_IN_OUT
        self.moe_name = "block_sparse_moe" if kind in ("mixtral", "minimax_m2", "minimax_m3") else "mlp"
        self.fused_dense_gate_up = kind in ("glm4", "phi3", "granitemoehybrid")

        self.gemma_norms = kind in GEMMA_TYPES
        self.glm4_norms = kind == "glm4"
        self.mtp_layers = text.get("mtp_num_hidden_layers", text.get("num_nextn_predict_layers")) or 0
        # Qwen keeps its MTP block at the top level of the file, the DeepSeek kind as further layers.
        self.qwen_mtp = kind in GDN_TYPES

    def attention(self, layer):
        """FULL, MLA or GDN of a decoder layer; layer >= self.layers: of an MTP block."""
        if self.mla:
            return MLA
        if self.kind not in GDN_TYPES or layer >= self.layers:
            return FULL
        if self.text.get("layer_types"):
            return FULL if self.text["layer_types"][layer] == "full_attention" else GDN
        return FULL if (layer + 1) % self.text.get("full_attention_interval", 4) == 0 else GDN

    def mlp(self, layer):
        """DENSE or MOE of a decoder layer; layer >= self.layers: of an MTP block."""
        if not self.experts:
            return DENSE
        if layer >= self.layers or self.kind in ("olmoe", "mixtral", "gpt_oss", "minimax_m2", "qwen3_5_moe_text"):
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
        return name

    def hf_layer(self, layer):
        """The prefix of a layer's HF names; layer >= self.layers: of MTP block layer - self.layers."""
        if layer >= self.layers and self.qwen_mtp:
            return f"mtp.layers.{layer - self.layers}."
        if layer >= self.layers and self.kind == "mimo":
            return f"{self.hf_prefix}mtp_layers.{layer - self.layers}."
        return f"{self.hf_prefix}layers.{layer}."

    def fused_qkv_rows(self):
        per_group = (2 if self.gated_attention else 1) * (self.heads // self.groups) + 2
        return self.groups * per_group * self.head_dim
