// The incoming version of one model: the version that ranks still write, whose chunks already
// travel to receivers as soon as each has been diffed. It belongs to one offload, and is discarded
// with that offload unless it is published. Every method may be called from any thread.
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

  /// `wanted` says whether a receiver is attached that may take chunks; `changed` is called when
  /// Told may return another version. Neither is called under a lock. REQUIRES: before any offload.
  void SetListener(std::function<bool()> wanted, std::function<void()> changed);
  bool has_listener() const { return wanted_ != nullptr; }

  /// The version of the offload of `lease` becomes the incoming one. `base`: the published state,
  /// whose deltas these will be. `payload_limit`: bytes of payloads that are kept.
  std::shared_ptr<IncomingVersion> Begin(uint64_t lease, const Identity& version,
                                         const Published& base, uint64_t payload_limit);
  /// Hands on a chunk of `incoming` that is final and differs from the published one. `payload`:
  /// of its delta; empty: `whole`, the chunk itself, is sent, which lasts as long as the half's
  /// lease.
  void Add(IncomingVersion& incoming, uint32_t chunk, uint64_t digest_before, uint64_t digest_after,
           Bytes payload, Bytes whole) const;

  /// The version, if it belongs to the offload of `lease` and has a chunk; else null.
  std::shared_ptr<IncomingVersion> Told(uint64_t lease) const;
  /// The version, if its offload is over although it was not published; `lease` is the present
  /// offload's. Else null.
  std::shared_ptr<IncomingVersion> Stale(uint64_t lease) const;
  std::shared_ptr<IncomingVersion> current() const;

  /// Discards `incoming` unless it is null: its pulls end, and none reads its half any more when
  /// this returns, also if another thread discards it meanwhile.
  void Discard(const std::shared_ptr<IncomingVersion>& incoming) ABSL_LOCKS_EXCLUDED(mu_);
  /// Empties the slot for a version that is published; Settle tells that version's pulls.
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
