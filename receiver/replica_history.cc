#include "receiver/replica_history.h"

#include <algorithm>

#include "common/delta/chunk_history.h"

namespace deltawire::receiver {
namespace {

// A Have with history must stay below wire::kMaxHavePayload, so models with more chunks than this
// use no history.
constexpr size_t kMaxChunks = 15'000'000;

}  // namespace

ReplicaHistory::ReplicaHistory(uint64_t limit_bytes) : limit_(limit_bytes), log_(limit_bytes) {}

void ReplicaHistory::BeginPull(StateId committed, uint32_t wanted) {
  builder_.reset();
  if (limit_ == 0 || wanted == 0 || committed.epoch == 0) {
    log_.Clear();
    if (limit_ == 0 || wanted == 0) return;
  }
  const LogView kept = log_.View();
  if (!kept.empty() && kept.back()->to() != committed) log_.Clear();
  log_.set_limit_deltas(std::min<size_t>(wanted, kernels::kMaxHistory));
  if (committed.epoch == 0) return;
  from_ = committed;
  builder_ = std::make_unique<DeltaBuilder>(limit_ / 2);
}

void ReplicaHistory::Commit(StateId to) {
  if (builder_ != nullptr && from_ != to) log_.Append(builder_->Finish(from_, to));
  builder_.reset();
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
