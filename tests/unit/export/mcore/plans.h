// Plans of small models, for tests. The families are loaded once and kept until the process ends;
// all else is the caller's. Threads: the test's own. Errors: what must not fail is REQUIREd here.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "sender/export/mcore/plan.h"

namespace deltawire::mcore::testing {

inline std::string TextOf(const Status& s) { return std::string(MessageOf(s)); }
template <typename T>
std::string TextOf(const StatusOr<T>& s) {
  return TextOf(s.status());
}

template <typename T>
T Get(StatusOr<T> value) {
  INFO(TextOf(value));
  REQUIRE(value.ok());
  return *std::move(value);
}

inline const FamilySet& Families() {
  static const FamilySet set = Get(FamilySet::Load({}));
  return set;
}

/// A plan and what it refers to.
struct Planned {
  HfConfig config;
  const Family* family;
  Plan plan;
};

inline Planned PlanOf(const std::string& config_json, const std::string& parallel,
                      const Layout* listing = nullptr, const FamilySet& set = Families()) {
  HfConfig config = Get(HfConfig::Parse(config_json));
  const Family* family = Get(set.Select(config));
  Plan plan = Get(Plan::Make(*family, config, Get(ParallelConfig::Parse(parallel)), listing));
  return {std::move(config), family, std::move(plan)};
}

/// The layout of a plan without `drop`, and with `add`.
inline Layout Changed(const Layout& layout, const std::vector<std::string>& drop,
                      const std::vector<TensorMeta>& add = {}) {
  std::vector<TensorMeta> metas;
  for (const TensorMeta& t : layout.tensors()) {
    if (std::find(drop.begin(), drop.end(), t.name) == drop.end()) metas.push_back(t);
  }
  metas.insert(metas.end(), add.begin(), add.end());
  return Get(Layout::Create(std::move(metas)));
}

/// Everything that a trainer's rank would list.
inline std::vector<TensorMeta> Listed(const Plan& plan, uint32_t rank) {
  std::vector<TensorMeta> out;
  for (const ShardParam& s : plan.Rank(rank)) {
    if (!s.shape.empty()) out.push_back({s.names.front(), s.dtype, s.shape});
  }
  return out;
}

/// 2 layers, grouped-query attention (4 heads on 2), a width that is no power of two.
inline const char* kTinyLlama = R"({"model_type": "llama", "num_hidden_layers": 2,
  "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
  "intermediate_size": 16, "vocab_size": 19, "torch_dtype": "bfloat16"})";
/// The same with 4 experts in every layer but the first, and one MTP layer.
inline const char* kTinyGlmMoe = R"({"model_type": "glm4_moe", "num_hidden_layers": 3,
  "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
  "intermediate_size": 16, "moe_intermediate_size": 8, "n_routed_experts": 4,
  "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
  "attention_bias": true, "use_qk_norm": true, "vocab_size": 19, "torch_dtype": "bfloat16"})";

}  // namespace deltawire::mcore::testing
