#include "bench/export/models.h"

namespace deltawire::bench {
namespace {

constexpr std::string_view kQwen3 = R"({"model_type": "qwen3", "num_hidden_layers": 28,
  "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
  "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": true})";

constexpr std::string_view kQwen3Moe = R"({"model_type": "qwen3_moe", "num_hidden_layers": 48,
  "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
  "decoder_sparse_step": 1, "vocab_size": 151936, "tie_word_embeddings": false})";

constexpr std::string_view kQwen3Moe235 = R"({"model_type": "qwen3_moe", "num_hidden_layers": 94,
  "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128,
  "decoder_sparse_step": 1, "vocab_size": 151936, "tie_word_embeddings": false})";

constexpr std::string_view kQwen3Next = R"({"model_type": "qwen3_next", "num_hidden_layers": 48,
  "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
  "intermediate_size": 5120, "moe_intermediate_size": 512, "num_experts": 512,
  "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "full_attention_interval": 4,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 151936,
  "tie_word_embeddings": false})";

constexpr std::string_view kGptOss = R"({"model_type": "gpt_oss", "num_hidden_layers": 24,
  "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
  "intermediate_size": 2880, "num_local_experts": 32, "attention_bias": true,
  "vocab_size": 201088, "tie_word_embeddings": false})";

constexpr std::string_view kDeepseekV3 = R"({"model_type": "deepseek_v3", "num_hidden_layers": 61,
  "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
  "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3,
  "moe_layer_freq": 1, "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
  "vocab_size": 129280, "tie_word_embeddings": false})";

constexpr MegatronJob kPlanned[] = {
    {"qwen3-0.6b, 8 ranks", kQwen3, "tp=2,world=8"},
    {"gpt-oss-20b, 16 ranks", kGptOss, "tp=2,ep=8,etp=1,world=16"},
    {"qwen3-30b-a3b, 64 ranks", kQwen3Moe, "tp=4,pp=2,ep=8,etp=1,world=64"},
    {"qwen3-next-80b-a3b, 128 ranks", kQwen3Next, "tp=2,pp=4,ep=32,etp=1,world=128"},
    {"qwen3-235b-a22b, 512 ranks", kQwen3Moe235, "tp=4,pp=2,ep=32,etp=1,world=512"},
    {"deepseek-v3, 2048 ranks", kDeepseekV3,
     "tp=2,pp=16,ep=64,etp=1,world=2048,layout=Ettt|(tttt|)*14ttmL"},
};

// Two layers, 32 of 128 experts.
constexpr std::string_view kSmallQwen3Moe = R"({"model_type": "qwen3_moe", "num_hidden_layers": 2,
  "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 32,
  "decoder_sparse_step": 1, "vocab_size": 32768, "tie_word_embeddings": false})";

// Two layers, 12 of 32 experts.
constexpr std::string_view kSmallGptOss = R"({"model_type": "gpt_oss", "num_hidden_layers": 2,
  "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
  "intermediate_size": 2880, "num_local_experts": 12, "attention_bias": true,
  "vocab_size": 16384, "tie_word_embeddings": false})";

// One dense layer, one of 8 instead of 256 experts, no MTP.
constexpr std::string_view kSmallDeepseekV3 = R"({"model_type": "deepseek_v3",
  "num_hidden_layers": 2, "hidden_size": 7168, "num_attention_heads": 128,
  "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432,
  "moe_intermediate_size": 2048, "n_routed_experts": 8, "n_shared_experts": 1,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "noaux_tc",
  "num_nextn_predict_layers": 0, "vocab_size": 8192, "tie_word_embeddings": false})";

constexpr MegatronJob kPlaced[] = {
    {"qwen3-0.6b/tp1", kQwen3, "tp=1"},
    {"qwen3-0.6b/tp2 pp2", kQwen3, "tp=2,pp=2"},
    {"qwen3-0.6b/tp8", kQwen3, "tp=8"},
    {"qwen3-30b-a3b/tp2 ep4", kSmallQwen3Moe, "tp=2,ep=4,etp=1,world=4"},
    {"qwen3-30b-a3b/tp4 etp4", kSmallQwen3Moe, "tp=4,etp=4"},
    {"deepseek-v3/tp2 pp2 ep4", kSmallDeepseekV3, "tp=2,pp=2,ep=4,etp=1,world=8"},
    {"deepseek-v3/tp8 etp2 ep4", kSmallDeepseekV3, "tp=8,ep=4,etp=2"},
    {"gpt-oss-20b/tp2 ep4", kSmallGptOss, "tp=2,ep=4,etp=1,world=4"},
    {"gpt-oss-20b/tp4 etp4", kSmallGptOss, "tp=4,etp=4"},
};

constexpr MegatronJob kGathered[] = {
    {"qwen3-0.6b/tp2", kQwen3, "tp=2"},
    {"qwen3-30b-a3b/ep2", kSmallQwen3Moe, "tp=1,ep=2,etp=1,world=2"},
};

constexpr MegatronJob kTiny[] = {
    {"tiny/tp2 ep2", R"({"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
      "moe_intermediate_size": 32, "num_experts": 4, "decoder_sparse_step": 1,
      "vocab_size": 300, "tie_word_embeddings": false})",
     "tp=2,ep=2,etp=1"},
};

}  // namespace

std::span<const MegatronJob> PlannedJobs(bool tiny) {
  if (tiny) return kTiny;
  return kPlanned;
}
std::span<const MegatronJob> PlacedJobs(bool tiny) {
  if (tiny) return kTiny;
  return kPlaced;
}
std::span<const MegatronJob> GatheredJobs(bool tiny) {
  if (tiny) return kTiny;
  return kGathered;
}

}  // namespace deltawire::bench
