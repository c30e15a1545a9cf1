// The input of a delta: an old and a new version of a model's bytes, their chunks, and the deltas
// that led to the old one. It is a synthetic trace, or the user's own pair. Immutable, so threads
// share it. It owns two buffers of the model's size in huge pages. Errors are too little memory,
// and files of different models.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/buffers.h"
#include "common/base/thread_pool.h"
#include "common/delta/class_function.h"
#include "common/delta/delta_log.h"
#include "common/layout/chunks.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

/// The marks of a workload; 0: none.
struct Targets {
  bool adam = false;      ///< a trace of AdamW, for which the marks on bits and speed hold
  double history = 0;     ///< bits of tight with history / exponent bound, at most
  double fold_of_32 = 0;  ///< bytes of the fold / sum of the 32, at most
};

struct Workload {
  std::string name;
  Layout layout;
  ChunkTable chunks;
  kernels::DigestKey key;
  HugeBuffer old_data, new_data;
  Targets targets = {};
  /// In fast payloads and in the order of the steps: the last one leads from old to new.
  LogView deltas = {};
  uint64_t elements = 0;
  uint64_t changed = 0;  ///< of these, the ones that the last delta changes

  /// Returns the chunk's payload in `delta`; empty if the chunk did not change.
  static Bytes PayloadOf(const Delta& delta, uint32_t chunk) {
    const ChunkDelta* const entry = delta.Find(chunk);
    return entry == nullptr ? Bytes() : entry->payload;
  }
  kernels::ClassFunction function(const Chunk& c) const {
    return ClassFunctionOf(layout.tensor(c.tensor).dtype);
  }
  Bytes OldOf(const Chunk& c) const { return old_data.data().subspan(c.offset, c.bytes); }
  Bytes NewOf(const Chunk& c) const { return new_data.data().subspan(c.offset, c.bytes); }
  uint64_t bytes() const { return layout.total_bytes(); }
};

struct WorkloadOptions {
  uint64_t mib = 512;  ///< the approximate size of one buffer
  uint64_t seed = 1;
  /// Random weights and changes repeat after this many MiB, since drawing is slow; 0: no
  /// repetition.
  uint64_t repeat_mib = 0;
};

/// A workload that is made when its turn comes.
struct Source {
  std::string name;
  std::function<StatusOr<Workload>(ThreadPool&)> make;
};

/// Returns AdamW traces, then random changes of 0.1% to 100% of the elements.
std::vector<Source> SyntheticSources(const WorkloadOptions& options);
/// Changes `density` of the elements by one step or, geometrically rarer, more.
Source RandomSource(std::string name, double density, const WorkloadOptions& options);
/// Reads two raw files of `dtype`, two safetensors files or two model directories.
StatusOr<Source> PairSource(const std::filesystem::path& old_path,
                            const std::filesystem::path& new_path, DType dtype, uint64_t seed);

}  // namespace deltawire::bench
