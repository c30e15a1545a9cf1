// The payloads of chunks, and of runs within chunks, that the trainer's GPU has diffed. Each lies
// at its own place in the inactive half until it is applied there. Thread-safe, each chunk by one
// thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/layout/diffed_chunk.h"
#include "kernels/kernels.h"
#include "sender/agent/diff/diff_base.h"

namespace deltawire::sender {

class GivenPayloads {
 public:
  /// Both outlive this.
  GivenPayloads(const DiffHalves& halves, DiffBase& base)
      : in_(halves), base_(base), chunks_(base.empty() ? 0 : halves.chunks->size()) {}

  /// REQUIRES: the base is not empty, as below.
  void SetChunk(const DiffedChunk& payload) { chunks_[payload.chunk] = payload; }
  void AddRun(const DiffedChunk& payload);
  bool HasRuns(uint32_t chunk) const;

  /// Replaces the payload of SetChunk with the chunk's bytes. Copies it to `payload` first, which
  /// has room for the largest one. An error says why that failed.
  StatusOr<kernels::EncodeResult> ApplyChunk(uint32_t chunk, MutableBytes payload);
  /// Does so for the chunk's runs.
  Status ApplyRuns(uint32_t chunk);

  uint32_t applied() const { return applied_; }
  /// Whether a payload was wrong although its base was right.
  bool was_wrong() const { return was_wrong_; }

 private:
  Status ApplyRun(uint32_t chunk, const DiffedChunk& run);
  /// Applies `payload` to `now`, which holds the base. Returns whether that has led to
  /// `digest_after`. Sets `changed`.
  bool Apply(Bytes payload, MutableBytes now, unsigned width, uint64_t digest_before,
             uint64_t digest_after, uint64_t* changed) const;
  Status Wrong();

  const DiffHalves& in_;
  DiffBase& base_;
  std::vector<DiffedChunk> chunks_;  // by chunk; valid for those of SetChunk
  std::atomic<uint32_t> applied_{0};
  std::atomic<bool> was_wrong_{false};
  mutable CheckedMutex mu_;
  std::map<uint32_t, std::vector<DiffedChunk>> runs_ ABSL_GUARDED_BY(mu_);  // by chunk
};

}  // namespace deltawire::sender
