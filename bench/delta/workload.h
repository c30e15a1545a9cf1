// What a delta is computed from: an old and a new version of a model's bytes, the chunks they are
// cut into, and the deltas that led to the old one. Synthetic traces, or the user's own pair.
// Owns two buffers of the model's size in huge pages, and the past deltas.
// Immutable once made, so threads share it. Errors: too little memory; files of different models.
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
  bool adam = false;      ///< a trace of AdamW, for which the marks on bits and on speed are meant
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

  /// The chunk's payload in `delta`; empty where it did not change.
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
  /// Random weights and changes repeat after so many MiB, since drawing takes long; 0: they do not.
  uint64_t repeat_mib = 0;
};

/// A workload that is made when its turn comes.
struct Source {
  std::string name;
  std::function<StatusOr<Workload>(ThreadPool&)> make;
};

/// AdamW traces, then random changes of 0.1% to 100% of the elements.
std::vector<Source> SyntheticSources(const WorkloadOptions& options);
/// `density` of the elements move by one step or, geometrically rarer, more.
Source RandomSource(std::string name, double density, const WorkloadOptions& options);
/// Two raw files of `dtype`, two safetensors files or two model directories.
StatusOr<Source> PairSource(const std::filesystem::path& old_path,
                            const std::filesystem::path& new_path, DType dtype, uint64_t seed);

}  // namespace deltawire::bench
