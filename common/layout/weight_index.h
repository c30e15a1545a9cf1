// The index of a model directory, model.safetensors.index.json: the shard file of each tensor.
// Errors name the file and the tensor, if there is one.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "common/base/status.h"

namespace deltawire {

inline constexpr std::string_view kWeightIndexName = "model.safetensors.index.json";

/// Maps a tensor name to a shard file name, which is plain: never a path, never hidden.
using WeightIndex = std::unordered_map<std::string, std::string>;

/// Reads "weight_map" and skips everything else. Rejects duplicate tensors and shard names that are
/// not plain *.safetensors file names.
StatusOr<WeightIndex> ParseWeightIndex(std::string_view json, std::string_view file);

}  // namespace deltawire
