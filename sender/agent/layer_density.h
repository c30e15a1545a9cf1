// The share of each layer that a version changed, by the tensors' names. In
// "model.layers.17.mlp.up_proj.weight", the layer is 17 of the stack "model.layers", and its part
// is "mlp.up_proj".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::sender {

struct TensorDensity {
  std::string name;
  uint64_t changed = 0, elements = 0;
};

struct LayerDensity {
  static constexpr size_t kMostParts = 32;
  static constexpr uint32_t kMostLayers = 256;

  /// The parts' names: those of the largest stack first, then those of other stacks with the
  /// stack's name in front.
  std::vector<std::string> parts;
  size_t more_parts = 0;  ///< beyond kMostParts
  uint32_t layers = 0;
  std::vector<double> ratios;  ///< part by part, of each layer; -1: the layer has no such part
  /// The sums over tensors that belong to no layer, or to one beyond kMostLayers.
  uint64_t changed_outside = 0, elements_outside = 0;
};

/// Counts the experts of a layer as one part, and a weight and its bias, too.
LayerDensity DensityByLayer(const std::vector<TensorDensity>& tensors);

}  // namespace deltawire::sender
