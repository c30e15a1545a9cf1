#include "cli/synth/model_maker.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

namespace deltawire::synth::model_maker_test {
namespace {

uint64_t Elements(const TensorMeta& t) {
  uint64_t n = 1;
  for (const uint64_t d : t.shape) n *= d;
  return n;
}

uint64_t Parameters(const std::vector<TensorMeta>& tensors) {
  uint64_t n = 0;
  for (const TensorMeta& t : tensors) n += Elements(t);
  return n;
}

const TensorMeta* Find(const std::vector<TensorMeta>& tensors, std::string_view name) {
  for (const TensorMeta& t : tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

TEST_CASE("models have the parameter counts of the real ones") {
  // These are the published counts of Qwen3-0.6B and Qwen3-1.7B, with the tied embedding counted
  // once.
  CHECK(Parameters(MakeTensors(*FindModelShape("0.6b"))) == 596'049'920);
  CHECK(Parameters(MakeTensors(*FindModelShape("1.7b"))) == 1'720'574'976);
}

TEST_CASE("tensors have the names and shapes of the real models") {
  const auto tensors = MakeTensors(*FindModelShape("0.6b"));
  CHECK(tensors.size() == 28 * 11 + 2);
  const struct {
    std::string_view name;
    std::vector<uint64_t> shape;
  } want[] = {{"model.embed_tokens.weight", {151936, 1024}},
              {"model.layers.0.self_attn.q_proj.weight", {2048, 1024}},
              {"model.layers.27.self_attn.k_proj.weight", {1024, 1024}},
              {"model.layers.9.self_attn.v_proj.weight", {1024, 1024}},
              {"model.layers.9.self_attn.o_proj.weight", {1024, 2048}},
              {"model.layers.9.self_attn.q_norm.weight", {128}},
              {"model.layers.9.self_attn.k_norm.weight", {128}},
              {"model.layers.9.mlp.gate_proj.weight", {3072, 1024}},
              {"model.layers.9.mlp.up_proj.weight", {3072, 1024}},
              {"model.layers.9.mlp.down_proj.weight", {1024, 3072}},
              {"model.layers.9.input_layernorm.weight", {1024}},
              {"model.layers.9.post_attention_layernorm.weight", {1024}},
              {"model.norm.weight", {1024}}};
  for (const auto& w : want) {
    CAPTURE(std::string(w.name));
    const TensorMeta* t = Find(tensors, w.name);
    REQUIRE(t != nullptr);
    CHECK(t->shape == w.shape);
    CHECK(t->dtype == DType::kBF16);
  }
}

TEST_CASE("tensors are unique and in safetensors order") {
  for (const ModelShape& shape : AllModelShapes()) {
    const auto tensors = MakeTensors(shape);
    for (size_t i = 1; i < tensors.size(); ++i) {
      CAPTURE(i, tensors[i].name);
      CHECK(tensors[i - 1].name < tensors[i].name);
    }
  }
}

TEST_CASE("lm_head is there only when the embedding is not tied") {
  ModelShape shape = *FindModelShape("tiny");
  CHECK(Find(MakeTensors(shape), "lm_head.weight") == nullptr);
  shape.tied = false;
  const auto tensors = MakeTensors(shape);
  REQUIRE(Find(tensors, "lm_head.weight") != nullptr);
  CHECK(Find(tensors, "lm_head.weight")->shape == std::vector<uint64_t>{512, 64});
}

TEST_CASE("config.json agrees with the tensors") {
  for (const ModelShape& shape : AllModelShapes()) {
    const auto config = nlohmann::json::parse(MakeConfigJson(shape));
    const auto tensors = MakeTensors(shape);
    CHECK(config["model_type"] == "qwen3");
    CHECK(config["torch_dtype"] == "bfloat16");
    const TensorMeta* embed = Find(tensors, "model.embed_tokens.weight");
    REQUIRE(embed != nullptr);
    CHECK(embed->shape == std::vector<uint64_t>{config["vocab_size"], config["hidden_size"]});
    const TensorMeta* k = Find(tensors, "model.layers.0.self_attn.k_proj.weight");
    REQUIRE(k != nullptr);
    CHECK(k->shape[0] ==
          config["num_key_value_heads"].get<uint64_t>() * config["head_dim"].get<uint64_t>());
    CHECK(config["bos_token_id"].get<uint64_t>() < shape.vocab);
    CHECK(config["eos_token_id"].get<uint64_t>() < shape.vocab);
  }
}

TEST_CASE("an unknown size is refused with the known ones") {
  const auto shape = FindModelShape("7b");
  REQUIRE_FALSE(shape.ok());
  CHECK(shape.status().code() == StatusCode::kNotFound);
  CHECK_THAT(std::string(MessageOf(shape.status())),
             Catch::Matchers::Contains("7b") && Catch::Matchers::Contains("tiny, 0.6b, 1.7b"));
}

}  // namespace
}  // namespace deltawire::synth::model_maker_test
