// What a demo of some size needs, and what this machine has.
// Pure but for reading /proc, the cgroup and the file system once. No ownership.
// Errors: kResourceExhausted, with a size that fits.
#pragma once

#include <cstdint>
#include <filesystem>

#include "bench/synth/model_maker.h"
#include "common/base/status.h"

namespace deltawire::cli {

struct DemoNeed {
  uint64_t files = 0;   ///< below the demo's directory: source, two halves, receivers
  uint64_t memory = 0;  ///< beside the files: the trace, the delta log, mappings' overhead
};

DemoNeed NeedOf(const synth::ModelShape& shape, uint32_t receivers);

/// Memory that this process may still take, by the machine and its cgroup.
uint64_t AvailableMemory();

/// Ok when `shape` fits into memory with its files in `dir`.
Status CheckFits(const synth::ModelShape& shape, uint32_t receivers,
                 const std::filesystem::path& dir);

}  // namespace deltawire::cli
