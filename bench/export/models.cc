// The models: config.json of published checkpoints, whole or cut down, and layouts.
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/export/job.h"

namespace deltawire::bench {
namespace {

constexpr std::string_view kTiny = R"({"model_type": "qwen3_moe", "num_hidden_layers": 2,
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4,
  "decoder_sparse_step": 1, "vocab_size": 300, "tie_word_embeddings": false})";

/// The config.json of a published checkpoint with `changes` (a JSON merge patch), which cut it
/// down.
std::string Published(const std::string& name, std::string_view changes = "{}") {
  std::ifstream in(std::string(DELTAWIRE_HF_CONFIGS "/") + name + ".json");
  nlohmann::json config = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  config.merge_patch(nlohmann::json::parse(changes));
  return config.dump();
}

std::string SmallQwen3Moe() {
  return Published("qwen3_30b_a3b",
                   R"({"num_hidden_layers": 2, "num_experts": 32, "vocab_size": 32768})");
}

std::vector<MegatronJob> TinyJob() {
  return {{"tiny/tp2 ep2", std::string(kTiny), "tp=2,ep=2,etp=1"}};
}

}  // namespace

std::vector<MegatronJob> PlannedJobs(bool tiny) {
  if (tiny) return TinyJob();
  return {
      {"qwen3-0.6b, 8 ranks", Published("qwen3_0_6b"), "tp=2,world=8"},
      {"gpt-oss-20b, 16 ranks", Published("gpt_oss_20b"), "tp=2,ep=8,etp=1,world=16"},
      {"qwen3-30b-a3b, 64 ranks", Published("qwen3_30b_a3b"), "tp=4,pp=2,ep=8,etp=1,world=64"},
      {"qwen3-next-80b-a3b, 128 ranks", Published("qwen3_next_80b_a3b"),
       "tp=2,pp=4,ep=32,etp=1,world=128"},
      {"qwen3-235b-a22b, 512 ranks", Published("qwen3_235b_a22b"),
       "tp=4,pp=2,ep=32,etp=1,world=512"},
      {"deepseek-v3, 2048 ranks", Published("deepseek_v3"),
       "tp=2,pp=16,ep=64,etp=1,world=2048,layout=Ettt|(tttt|)*14ttmL"},
  };
}

std::vector<MegatronJob> PlacedJobs(bool tiny) {
  if (tiny) return TinyJob();
  const std::string qwen3 = Published("qwen3_0_6b"), qwen3_moe = SmallQwen3Moe();
  const std::string gpt_oss = Published(
      "gpt_oss_20b", R"({"num_hidden_layers": 2, "num_local_experts": 12, "vocab_size": 16384})");
  // One dense layer, one of experts, no MTP.
  const std::string deepseek = Published(
      "deepseek_v3", R"({"num_hidden_layers": 2, "n_routed_experts": 8, "first_k_dense_replace": 1,
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
  return {{"qwen3-0.6b/tp2", Published("qwen3_0_6b"), "tp=2"},
          {"qwen3-30b-a3b/ep2", SmallQwen3Moe(), "tp=1,ep=2,etp=1,world=2"}};
}

}  // namespace deltawire::bench
