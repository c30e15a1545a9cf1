// The demo's show: a trainer, a sender and receivers on this machine, one table row per version.
// Runs in the process that demo.cc guards: whatever happens here, the guard cleans up.
// Errors: the first that ends the show; a version that is not verified is one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "bench/synth/model_maker.h"
#include "common/base/status.h"

namespace deltawire::cli {

struct DemoPlan {
  synth::ModelShape shape;
  uint32_t steps = 5;
  uint32_t receivers = 1;
  uint32_t streams = 4;
  uint64_t seed = 1;
  bool json = false;
  bool keep = false;
  std::filesystem::path directory;  ///< empty, ours alone
};

Status RunDemo(const DemoPlan& plan);

}  // namespace deltawire::cli
