// The incoming version of one model: ranks still write it, and each chunk is sent to receivers once
// it has been diffed. It belongs to one offload, and is discarded with it unless it is published.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/serving/incoming_version.h"
#include "common/serving/version_store.h"

namespace deltawire::sender {

class IncomingSlot {
 public:
  explicit IncomingSlot(std::string model) : model_(std::move(model)) {}

  /// `wanted` returns whether a receiver is attached that may pull chunks. `changed` is called when
  /// Announced may return another version. Neither is called under a lock. REQUIRES: before any
  /// offload.
  void SetListener(std::function<bool()> wanted, std::function<void()> changed);
  bool has_listener() const { return wanted_ != nullptr; }

  /// Makes the version of the offload of `lease` the incoming one. `base`: the published state, at
  /// which its deltas start. `payload_limit`: bytes of payloads that are kept.
  std::shared_ptr<IncomingVersion> Begin(uint64_t lease, const Identity& version,
                                         const Published& base, uint64_t payload_limit);
  /// Adds a final chunk of `incoming` that differs from the published one. `payload`: of its delta;
  /// empty: `whole`, the chunk in the half, is sent. It lasts as long as the half's lease.
  void Add(IncomingVersion& incoming, uint32_t chunk, uint64_t digest_before, uint64_t digest_after,
           Bytes payload, Bytes whole) const;

  /// The version that receivers may pull: it belongs to the offload of `lease` and has a chunk.
  /// Null: there is none.
  std::shared_ptr<IncomingVersion> Announced(uint64_t lease) const;
  /// The version if its offload ended without a publish, else null. `lease`: of the current
  /// offload.
  std::shared_ptr<IncomingVersion> Stale(uint64_t lease) const;
  std::shared_ptr<IncomingVersion> current() const;

  /// Ends the pulls of `incoming`, which may be null. When this returns, no pull reads its half,
  /// even if another thread discards it at the same time.
  void Discard(const std::shared_ptr<IncomingVersion>& incoming) ABSL_LOCKS_EXCLUDED(mu_);
  /// Empties the slot for a version that is being published. Settle then hands its pulls over.
  std::shared_ptr<IncomingVersion> Take();
  void Settle(IncomingVersion& incoming, std::shared_ptr<const Published> state) const;

  EncodedCache::Counts encoded() const { return encoded_->counts(); }

 private:
  const std::string model_;
  const std::shared_ptr<EncodedCache::Totals> encoded_ = std::make_shared<EncodedCache::Totals>();
  std::function<bool()> wanted_;
  std::function<void()> changed_;
  mutable CheckedMutex mu_;
  std::shared_ptr<IncomingVersion> now_ ABSL_GUARDED_BY(mu_);
  uint64_t lease_ ABSL_GUARDED_BY(mu_) = 0;  // of the offload of now_
};

}  // namespace deltawire::sender
