// Makes the payload of one chunk's frame: fast (as published, or folded), tight or dense. The
// StateSource and the CoderRates outlive it, and any thread may call it. Pulls share payloads
// through the published state's cache. One version's fast payload costs nothing, and a fold reads
// its deltas. Tight and dense take passes over the chunk, and megabytes of the thread's scratch.
#pragma once

#include <memory>
#include <optional>

#include "common/delta/chunk_history.h"
#include "common/delta/coder_rates.h"
#include "common/serving/encoded_cache.h"
#include "common/serving/state_source.h"

namespace deltawire {

/// A frame's payload. `bytes` live as long as `keep`.
struct ChunkPayload {
  kernels::Codec codec = kernels::Codec::kFast;
  Bytes bytes;
  uint64_t xxh3 = 0;
  std::shared_ptr<const void> keep;
};

class ChunkEncoder {
 public:
  ChunkEncoder(const StateSource& model, CoderRates& rates) : model_(model), rates_(rates) {}

  /// One chunk's deltas up to the published state. REQUIRES: plan.kind is kDelta.
  struct Job {
    uint32_t chunk = 0;
    const ChunkPlan& plan;
    const LeasedState& leased;
    const kernels::History& history;  ///< of the bytes that the plan starts from
    EncodedCache::IfBusy if_busy = EncodedCache::IfBusy::kSkip;
    /// Set: the version is still coming. The plan starts at the published state instead of ending
    /// there, and payloads are kept here.
    EncodedCache* coming = nullptr;
  };
  /// The folded delta in the fast codec; empty when the changes cancel out, nullopt while another
  /// thread is making it. kInternal when a fold fails. REQUIRES: job.coming is null.
  StatusOr<std::optional<ChunkPayload>> Fast(const Job& job) const;
  /// `fast` re-encoded in `codec`; `fast` itself when tight is not smaller than `fast`, or dense
  /// not smaller than the chunk. nullopt while another thread is making it.
  std::optional<ChunkPayload> In(kernels::Codec codec, const Job& job, ChunkPayload fast) const;
  bool Made(kernels::Codec codec, const Job& job) const;
  /// Whether a payload that looks back as far as the job's history is there, in any codec.
  bool MadeWithHistory(const Job& job) const;

 private:
  EncodedCache::Value Make(const Coder& coder, const Job& job, Bytes fast) const;
  /// The bytes that the job starts from, in this thread's scratch or in the half; empty when they
  /// do not have their digest.
  Bytes BaseBytes(const Job& job, Bytes fast) const;

  const StateSource& model_;
  CoderRates& rates_;
};

}  // namespace deltawire
