#include "bench/export/models.h"

#include <nlohmann/json.hpp>

namespace deltawire::bench {
namespace {

constexpr std::string_view kQwen3 = R"({"model_type": "qwen3", "num_hidden_layers": 28,
  "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
  "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": true})";

constexpr std::string_view kQwen3Moe = R"({"model_type": "qwen3_moe", "num_hidden_layers": 48,
  "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
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

constexpr std::string_view kTiny = R"({"model_type": "qwen3_moe", "num_hidden_layers": 2,
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4,
  "decoder_sparse_step": 1, "vocab_size": 300, "tie_word_embeddings": false})";

/// `config` with `changes` (a JSON merge patch): another size of the family, or one cut down.
std::string With(std::string_view config, std::string_view changes) {
  nlohmann::json cut = nlohmann::json::parse(config);
  cut.merge_patch(nlohmann::json::parse(changes));
  return cut.dump();
}

std::string SmallQwen3Moe() {
  return With(kQwen3Moe, R"({"num_hidden_layers": 2, "num_experts": 32, "vocab_size": 32768})");
}

std::vector<MegatronJob> TinyJob() {
  return {{"tiny/tp2 ep2", std::string(kTiny), "tp=2,ep=2,etp=1"}};
}

}  // namespace

std::vector<MegatronJob> PlannedJobs(bool tiny) {
  if (tiny) return TinyJob();
  return {
      {"qwen3-0.6b, 8 ranks", std::string(kQwen3), "tp=2,world=8"},
      {"gpt-oss-20b, 16 ranks", std::string(kGptOss), "tp=2,ep=8,etp=1,world=16"},
      {"qwen3-30b-a3b, 64 ranks", std::string(kQwen3Moe), "tp=4,pp=2,ep=8,etp=1,world=64"},
      {"qwen3-next-80b-a3b, 128 ranks", std::string(kQwen3Next), "tp=2,pp=4,ep=32,etp=1,world=128"},
      {"qwen3-235b-a22b, 512 ranks",
       With(kQwen3Moe, R"({"num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64,
                          "intermediate_size": 12288, "moe_intermediate_size": 1536})"),
       "tp=4,pp=2,ep=32,etp=1,world=512"},
      {"deepseek-v3, 2048 ranks", std::string(kDeepseekV3),
       "tp=2,pp=16,ep=64,etp=1,world=2048,layout=Ettt|(tttt|)*14ttmL"},
  };
}

std::vector<MegatronJob> PlacedJobs(bool tiny) {
  if (tiny) return TinyJob();
  const std::string qwen3(kQwen3), qwen3_moe = SmallQwen3Moe();
  const std::string gpt_oss =
      With(kGptOss, R"({"num_hidden_layers": 2, "num_local_experts": 12, "vocab_size": 16384})");
  // One dense layer, one of experts, no MTP.
  const std::string deepseek = With(
      kDeepseekV3, R"({"num_hidden_layers": 2, "n_routed_experts": 8, "first_k_dense_replace": 1,
                       "num_nextn_predict_layers": 0, "vocab_size": 8192})");
  return {
      {"qwen3-0.6b/tp1", qwen3, "tp=1"},
      {"qwen3-0.6b/tp2 pp2", qwen3, "tp=2,pp=2"},
      {"qwen3-0.6b/tp8", qwen3, "tp=8"},
      {"qwen3-30b-a3b/tp2 ep4", qwen3_moe, "tp=2,ep=4,etp=1,world=4"},
      {"qwen3-30b-a3b/tp4 etp4", qwen3_moe, "tp=4,etp=4"},
      {"deepseek-v3/tp2 pp2 ep4", deepseek, "tp=2,pp=2,ep=4,etp=1,world=8"},
      {"deepseek-v3/tp8 etp2 ep4", deepseek, "tp=8,ep=4,etp=2"},
      {"gpt-oss-20b/tp2 ep4", gpt_oss, "tp=2,ep=4,etp=1,world=4"},
      {"gpt-oss-20b/tp4 etp4", gpt_oss, "tp=4,etp=4"},
  };
}

std::vector<MegatronJob> GatheredJobs(bool tiny) {
  if (tiny) return TinyJob();
  return {{"qwen3-0.6b/tp2", std::string(kQwen3), "tp=2"},
          {"qwen3-30b-a3b/ep2", SmallQwen3Moe(), "tp=1,ep=2,etp=1,world=2"}};
}

}  // namespace deltawire::bench
