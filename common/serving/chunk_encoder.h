// Makes the payload of one chunk's frame: fast (as published, or folded), tight or dense. Pulls
// share payloads through the published state's cache. Tight and dense take passes over the chunk,
// and megabytes of each thread's scratch memory. Thread-safe; the StateSource and the CoderRates
// outlive it.
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
    const kernels::History& history;  ///< before the state that the plan starts from
    EncodedCache::IfBusy if_busy = EncodedCache::IfBusy::kSkip;
    /// Set for an incoming version. The plan then starts at the published state instead of ending
    /// there, and payloads are kept here.
    EncodedCache* incoming = nullptr;
  };
  /// Folds the deltas in the codec fast. The payload is empty when the changes cancel out, and
  /// nullopt while another thread makes it. kInternal when a fold fails. REQUIRES: job.incoming is
  /// null.
  StatusOr<std::optional<ChunkPayload>> Fold(const Job& job) const;
  /// Encodes `fast` in `codec`. Returns `fast` when tight is not smaller than `fast`, or dense not
  /// smaller than the chunk, and nullopt while another thread makes the payload.
  std::optional<ChunkPayload> Encode(kernels::Codec codec, const Job& job, ChunkPayload fast) const;
  bool IsCached(kernels::Codec codec, const Job& job) const;
  /// Whether a payload of any codec is cached that refers to the job's whole history.
  bool IsCachedWithHistory(const Job& job) const;

 private:
  EncodedCache::Value Make(const Coder& coder, const Job& job, Bytes fast) const;
  /// The bytes that the job starts from, in this thread's scratch or in the half. Empty when they
  /// do not have their digest.
  Bytes BaseBytes(const Job& job, Bytes fast) const;

  const StateSource& model_;
  CoderRates& rates_;
};

}  // namespace deltawire
