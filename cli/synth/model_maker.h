// Layouts of Qwen3-class models in HF names and shapes, without their weights. adam_trace.h fills
// them with numbers. The names and shapes come from the Qwen3 models' config.json and safetensors
// headers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/layout/layout.h"

namespace deltawire::synth {

struct ModelShape {
  std::string_view name;
  uint64_t vocab = 0;
  uint64_t hidden = 0;
  uint64_t layers = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t ffn = 0;
  bool tied = true;  ///< the embedding is also the output matrix: no lm_head tensor
};

/// "tiny" (0.2 M parameters), "0.6b" and "1.7b".
std::span<const ModelShape> AllModelShapes();
/// An unknown name is kNotFound, and the error lists the known names.
StatusOr<ModelShape> FindModelShape(std::string_view name);

/// Returns all tensors, bf16, sorted by name as in a safetensors file.
std::vector<TensorMeta> MakeTensors(const ModelShape& shape);

std::string MakeConfigJson(const ModelShape& shape);

}  // namespace deltawire::synth
