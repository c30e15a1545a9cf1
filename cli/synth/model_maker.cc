#include "cli/synth/model_maker.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace deltawire::synth {
namespace {

// vocab, hidden, layers, heads, kv_heads, head_dim, ffn
constexpr ModelShape kShapes[] = {{"tiny", 512, 64, 2, 4, 2, 32, 192},
                                  {"0.6b", 151936, 1024, 28, 16, 8, 128, 3072},
                                  {"1.7b", 151936, 2048, 28, 16, 8, 128, 6144}};

}  // namespace

std::span<const ModelShape> AllModelShapes() { return kShapes; }

StatusOr<ModelShape> FindModelShape(std::string_view name) {
  std::string known;
  for (const ModelShape& s : kShapes) {
    if (s.name == name) return s;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", s.name);
  }
  return Errorf(StatusCode::kNotFound, "no synthetic model \"{}\"; choose one of {}", name, known);
}

std::vector<TensorMeta> MakeTensors(const ModelShape& s) {
  std::vector<TensorMeta> out;
  const auto add = [&out](std::string name, std::vector<uint64_t> shape) {
    out.push_back({.name = std::move(name), .dtype = DType::kBF16, .shape = std::move(shape)});
  };
  const uint64_t q = s.heads * s.head_dim;
  const uint64_t kv = s.kv_heads * s.head_dim;
  add("model.embed_tokens.weight", {s.vocab, s.hidden});
  if (!s.tied) add("lm_head.weight", {s.vocab, s.hidden});
  add("model.norm.weight", {s.hidden});
  for (uint64_t i = 0; i < s.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm.weight", {s.hidden});
    add(layer + "post_attention_layernorm.weight", {s.hidden});
    add(layer + "self_attn.q_proj.weight", {q, s.hidden});
    add(layer + "self_attn.k_proj.weight", {kv, s.hidden});
    add(layer + "self_attn.v_proj.weight", {kv, s.hidden});
    add(layer + "self_attn.o_proj.weight", {s.hidden, q});
    add(layer + "self_attn.q_norm.weight", {s.head_dim});
    add(layer + "self_attn.k_norm.weight", {s.head_dim});
    add(layer + "mlp.gate_proj.weight", {s.ffn, s.hidden});
    add(layer + "mlp.up_proj.weight", {s.ffn, s.hidden});
    add(layer + "mlp.down_proj.weight", {s.hidden, s.ffn});
  }
  std::ranges::sort(out, {}, &TensorMeta::name);
  return out;
}

std::string MakeConfigJson(const ModelShape& s) {
  const nlohmann::ordered_json config = {
      {"architectures", {"Qwen3ForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", s.vocab > 151643 ? 151643 : 0},
      {"eos_token_id", s.vocab > 151645 ? 151645 : 1},
      {"head_dim", s.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", s.hidden},
      {"initializer_range", 0.02},
      {"intermediate_size", s.ffn},
      {"max_position_embeddings", 40960},
      {"model_type", "qwen3"},
      {"num_attention_heads", s.heads},
      {"num_hidden_layers", s.layers},
      {"num_key_value_heads", s.kv_heads},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 1000000},
      {"tie_word_embeddings", s.tied},
      {"torch_dtype", "bfloat16"},
      {"use_cache", true},
      {"vocab_size", s.vocab},
  };
  return config.dump(2) + "\n";
}

}  // namespace deltawire::synth
