// Compares a model's memory with its digests. It logs and counts a corrupt chunk, marks it in the
// published state, and rebuilds it from the other half and the newest delta if they suffice.
// Thread-safe, with one caller of CheckNext at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/layout/scrub_walk.h"
#include "common/serving/model_facts.h"
#include "common/serving/version_store.h"
#include "sender/agent/halves/halves.h"

namespace deltawire::sender {

/// The results of scrubs and of publishes so far.
struct ScrubTotals {
  uint64_t bytes = 0;
  uint64_t mismatches = 0;
  uint64_t repaired = 0;  ///< mismatches that were repaired from the other half
};

class Scrubber {
 public:
  /// Both outlive this.
  Scrubber(const ModelFacts& model, Halves& halves) : model_(model), halves_(halves) {}

  /// Compares the next few chunks in turn. Returns the pause that keeps the scrub at `bytes_per_s`,
  /// which is > 0. REQUIRES (here and below): the caller holds a lease of state.half.
  std::chrono::nanoseconds CheckNext(const Published& state, uint64_t bytes_per_s);
  /// Compares one chunk.
  void Check(const Published& state, uint32_t chunk);

  /// Counts a corrupt chunk of the published half that a publish found. `whole`: the next version
  /// sends the chunk whole.
  void CountCorrupt(uint32_t chunk, bool whole);

  ScrubTotals totals() const { return {bytes_, mismatches_, repaired_}; }

 private:
  void MarkCorrupt(const Published& state, uint32_t chunk);
  bool Rebuild(const Published& state, uint32_t chunk);

  const ModelFacts& model_;
  Halves& halves_;
  ScrubWalk walk_{256 << 10};
  std::atomic<uint64_t> bytes_{0}, mismatches_{0}, repaired_{0};
};

}  // namespace deltawire::sender
