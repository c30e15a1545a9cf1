// The memory that a demo needs and that this machine has. If the demo does not fit, the error
// (kResourceExhausted) names a size that does.
#pragma once

#include <cstdint>
#include <filesystem>

#include "cli/synth/model_maker.h"
#include "common/base/status.h"

namespace deltawire::cli {

struct DemoNeed {
  uint64_t files = 0;   ///< in the demo's directory: source, two halves, receivers
  uint64_t memory = 0;  ///< besides the files: the trace, the delta log, mappings' overhead
};

DemoNeed NeedOf(const synth::ModelShape& shape, uint32_t receivers);

/// Returns OK if the demo of `shape` fits into memory, with its files in `dir`.
Status CheckFits(const synth::ModelShape& shape, uint32_t receivers,
                 const std::filesystem::path& dir);

}  // namespace deltawire::cli
