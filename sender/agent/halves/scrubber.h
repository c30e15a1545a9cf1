// Compares a model's memory with its digests. A damaged chunk is taken out of use, and rebuilt from
// the other half and the newest delta where they suffice. Damage is logged, counted and marked in
// the published state. Any thread may call any method, but one at a time calls CheckNext.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/layout/coverage.h"
#include "common/serving/version_store.h"
#include "sender/agent/halves/halves.h"

namespace deltawire::sender {

/// Results so far of comparing the published half with its digests, when idle or in a publish.
struct ScrubTotals {
  uint64_t bytes = 0;
  uint64_t mismatches = 0;
  uint64_t repaired = 0;  ///< mismatches that were rebuilt from the other half
};

class Scrubber {
 public:
  struct Context {
    std::string model;
    const Layout* layout = nullptr;
    const ChunkTable* chunks = nullptr;
    const Coverage* owned = nullptr;
    const kernels::Backend* backend = nullptr;
    const kernels::DigestKey* key = nullptr;
  };
  Scrubber(Context context, Halves& halves) : context_(std::move(context)), halves_(halves) {}

  /// Compares the next few chunks, in turn; returns how many bytes it read.
  /// REQUIRES (here and below): the caller holds a lease of state.half.
  uint64_t CheckNext(const Published& state);
  /// Compares one chunk.
  void Check(const Published& state, uint32_t chunk);

  /// A publish found that a chunk of the published half lacks its digest; `whole`: the next version
  /// sends the chunk whole.
  void CountLost(uint32_t chunk, bool whole);

  ScrubTotals totals() const { return {bytes_, mismatches_, repaired_}; }

 private:
  void MarkDamaged(const Published& state, uint32_t chunk);
  bool Rebuild(const Published& state, uint32_t chunk);

  const Context context_;
  Halves& halves_;
  uint32_t next_ = 0;
  std::atomic<uint64_t> bytes_{0}, mismatches_{0}, repaired_{0};
};

}  // namespace deltawire::sender
