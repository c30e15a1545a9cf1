// Which layer and part a tensor belongs to, by its name.
#include "sender/agent/layer_density.h"

#include <spdlog/fmt/fmt.h>

#include <catch2/catch.hpp>

namespace deltawire::sender::layer_density_test {
namespace {

using Strings = std::vector<std::string>;

TEST_CASE("layer density: parts are summed over weights, biases and experts of a layer") {
  const LayerDensity d = DensityByLayer({{"model.embed_tokens.weight", 5, 100},
                                         {"model.layers.0.self_attn.q_proj.weight", 1, 30},
                                         {"model.layers.0.self_attn.q_proj.bias", 2, 10},
                                         {"model.layers.1.self_attn.q_proj.weight", 0, 30},
                                         {"model.layers.1.mlp.experts.0.up_proj.weight", 4, 8},
                                         {"model.layers.1.mlp.experts.1.up_proj.weight", 2, 8},
                                         {"model.layers.1.mlp.gate.weight", 0, 0},
                                         {"lm_head.weight", 1, 50}});
  CHECK(d.parts == Strings{"mlp.experts.up_proj", "mlp.gate", "self_attn.q_proj"});
  CHECK(d.layers == 2);
  CHECK(d.ratios == std::vector<double>{-1, 6. / 16, -1, -1, 3. / 40, 0});
  CHECK(d.changed_outside == 6);
  CHECK(d.elements_outside == 150);
  CHECK(d.more_parts == 0);
}

TEST_CASE("layer density: other stacks keep their names, after the largest") {
  const LayerDensity d = DensityByLayer({{"mtp.layers.0.norm.weight", 1, 2},
                                         {"model.layers.0.norm.weight", 1, 4},
                                         {"model.layers.1.norm.weight", 1, 8},
                                         {"visual.blocks.0.norm.weight", 1, 16}});
  CHECK(d.parts == Strings{"norm", "mtp.layers norm", "visual.blocks norm"});
  CHECK(d.ratios == std::vector<double>{0.25, 0.125, 0.5, -1, 0.0625, -1});
}

TEST_CASE("layer density: names without a layer are outside, and parts have a limit") {
  for (const char* name : {"w", "0.weight", "model.layers.7", "a..b", "", ".", "a.9999999999999.b",
                           "model.layers.256.w", "model.layers.-1.w"}) {
    CAPTURE(name);
    const LayerDensity d = DensityByLayer({{name, 1, 1}});
    CHECK(d.parts.empty());
    CHECK(d.layers == 0);
    CHECK(d.elements_outside == 1);
  }
  std::vector<TensorDensity> many;
  for (int i = 0; i < 40; ++i) many.push_back({fmt::format("layers.0.p{:02}.weight", i), 1, 1});
  const LayerDensity d = DensityByLayer(many);
  CHECK(d.parts.size() == LayerDensity::kMostParts);
  CHECK(d.more_parts == 8);
  CHECK(d.ratios.size() == LayerDensity::kMostParts);
}

}  // namespace
}  // namespace deltawire::sender::layer_density_test
