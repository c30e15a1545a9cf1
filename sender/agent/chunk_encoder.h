// Makes the payload that one chunk travels in: fast (as published, or folded), or another codec's.
// Owner: a ServedPull; Model and CoderRates outlive it. Threads: any. What is made is shared
// through the published state's cache. Cost: fast of one version nothing, a fold its parts;
// other codecs some passes over the chunk, on the caller's thread, and megabytes of its scratch.
#pragma once

#include <memory>

#include "common/delta/chunk_history.h"
#include "common/delta/coder_rates.h"
#include "sender/agent/encoded_cache.h"
#include "sender/agent/model.h"

namespace deltawire::sender {

/// What a frame is made of. `bytes` live as long as `keep`.
struct ChunkPayload {
  kernels::Codec codec = kernels::Codec::kFast;
  Bytes bytes;
  uint64_t xxh3 = 0;
  std::shared_ptr<const void> keep;
};

class ChunkEncoder {
 public:
  ChunkEncoder(const Model& model, CoderRates& rates) : model_(model), rates_(rates) {}

  /// One chunk's deltas up to the published state. REQUIRES: plan.kind is kDelta.
  struct Job {
    uint32_t chunk = 0;
    const ChunkPlan& plan;
    const LeasedState& leased;
    const kernels::History& history;  ///< of the bytes that the plan starts from
  };
  /// Empty when the changes undid one another. kInternal when a fold fails.
  StatusOr<ChunkPayload> Fast(const Job& job) const;
  /// `fast` in another codec; `fast` itself when that is not smaller than Coder::limit.
  ChunkPayload In(kernels::Codec codec, const Job& job, ChunkPayload fast) const;
  bool Made(kernels::Codec codec, const Job& job) const;

 private:
  EncodedCache::Value Make(const Coder& coder, const Job& job, Bytes fast) const;
  /// The bytes that the job starts from, in this thread's scratch; empty when they do not have
  /// their digest.
  Bytes BaseBytes(const Job& job, Bytes fast) const;

  const Model& model_;
  CoderRates& rates_;
};

}  // namespace deltawire::sender
