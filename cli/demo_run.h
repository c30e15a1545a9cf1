// The demo itself: a trainer, a sender and receivers on this machine, one table row per version. It
// runs in the child process of demo.cc, whose guard cleans up after it. The first error ends the
// demo, and so does a version that fails its verification.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "cli/synth/model_maker.h"
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
  std::filesystem::path directory;  ///< empty, and used by no other process
};

Status RunDemo(const DemoPlan& plan);

}  // namespace deltawire::cli
