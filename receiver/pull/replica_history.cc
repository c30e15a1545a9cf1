#include "receiver/pull/replica_history.h"

#include <algorithm>

#include "common/delta/chunk_history.h"

namespace deltawire::receiver {
namespace {

// A Have with history must stay below wire::kMaxHavePayload, so models with more chunks than this
// use no history.
constexpr size_t kMaxChunks = 15'000'000;

}  // namespace

ReplicaHistory::ReplicaHistory(uint64_t limit_bytes, uint64_t served_bytes)
    : limit_(limit_bytes), served_bytes_(served_bytes), log_(limit_bytes) {}

void ReplicaHistory::BeginPull(StateId committed, uint32_t wanted) {
  builder_.reset();
  keeps_ = limit_ > 0 && wanted > 0;
  if (!keeps_ || committed.epoch == 0) log_.Clear();
  if (keeps_) {
    const LogView kept = log_.View();
    if (!kept.empty() && kept.back()->to() != committed) log_.Clear();
    log_.set_limit_deltas(std::min<size_t>(wanted, kernels::kMaxHistory));
  }
  if (committed.epoch == 0 || (!keeps_ && served_bytes_ == 0)) return;
  from_ = committed;
  builder_ = std::make_unique<DeltaBuilder>(std::max(keeps_ ? limit_ / 2 : 0, served_bytes_));
}

std::shared_ptr<const Delta> ReplicaHistory::Commit(StateId to) {
  std::shared_ptr<const Delta> delta;
  if (builder_ != nullptr && from_ != to) delta = builder_->Finish(from_, to);
  builder_.reset();
  // A delta that is too large for the history is only served to other receivers.
  const bool fits = delta != nullptr && delta->payload_bytes() <= std::max<uint64_t>(1, limit_ / 2);
  if (keeps_ && fits) log_.Append(delta);
  return delta;
}

void ReplicaHistory::Forget() { log_.Clear(); }

void ReplicaHistory::Describe(wire::Have& have) const {
  const LogView log = log_.View();
  if (log.empty() || have.chunks.size() > kMaxChunks) return;
  for (size_t i = log.size(); i-- > 0;) have.history.push_back(log[i]->from());
  for (uint32_t c = 0; c < have.chunks.size(); ++c) {
    have.chunks[c].depth = static_cast<uint8_t>(ChunkHistory(log, c, log.size()).depth());
  }
}

}  // namespace deltawire::receiver
