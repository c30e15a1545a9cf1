#include "common/delta/delta_log.h"

namespace deltawire {
namespace {

// A chain is folded into one payload before it is sent, and the fold is much smaller than the sum
// (0.1 to 0.3 of it for 32 training steps). If the sum exceeds this multiple of the chunk, the
// chunk goes whole instead.
constexpr uint64_t kWorthFolding = 4;

// Returns the plan from the entries of `chunk` in log[first..]. The plan is kFull when an entry has
// no payload or one not worth sending, or when a fold cannot pay.
ChunkPlan Chain(const LogView& log, size_t first, uint32_t chunk, uint64_t chunk_bytes) {
  ChunkPlan plan;
  plan.kind = ChunkPlan::Kind::kDelta;
  uint64_t cost = 0;
  for (size_t i = first; i < log.size(); ++i) {
    const ChunkDelta* d = log[i]->Find(chunk);
    if (d == nullptr) continue;
    cost += d->payload.size();
    if (d->full || !WorthSending(d->payload.size(), chunk_bytes) ||
        cost > kWorthFolding * chunk_bytes) {
      plan.kind = ChunkPlan::Kind::kFull;
      plan.chain.clear();
      return plan;
    }
    plan.chain.push_back(d);
  }
  if (plan.chain.empty()) plan.kind = ChunkPlan::Kind::kNothing;
  return plan;
}

uint64_t FirstDigestBefore(const LogView& log, size_t first, uint32_t chunk, uint64_t digest_now) {
  for (size_t i = first; i < log.size(); ++i) {
    if (const ChunkDelta* d = log[i]->Find(chunk)) return d->digest_before;
  }
  return digest_now;
}

}  // namespace

ChunkPlan PlanChunk(const LogView& log, uint32_t chunk, uint64_t held_version, uint64_t held_digest,
                    uint64_t digest, uint64_t chunk_bytes) {
  ChunkPlan full;
  if (held_version == ~uint64_t{0}) return full;
  if (held_digest == digest) {
    return {.kind = ChunkPlan::Kind::kNothing, .base_refused = false, .chain = {}};
  }
  // After a rollback a version number may occur twice, and the digest tells the two apart. The
  // search begins with the newest.
  for (size_t i = log.size(); i-- > 0;) {
    if (log[i]->from().version != held_version) continue;
    if (FirstDigestBefore(log, i, chunk, digest) == held_digest) {
      return Chain(log, i, chunk, chunk_bytes);
    }
  }
  full.base_refused = true;
  return full;
}

ChunkPlan PlanLift(const LogView& log, uint32_t chunk, uint64_t behind, uint64_t chunk_bytes) {
  if (behind > log.size()) return {};
  return Chain(log, log.size() - behind, chunk, chunk_bytes);
}

void DeltaLog::Append(std::shared_ptr<const Delta> delta) {
  bytes_ += delta->memory_bytes();
  deltas_.push_back(std::move(delta));
  while (deltas_.size() > 1 && (bytes_ > limit_ || deltas_.size() > limit_deltas_)) {
    bytes_ -= deltas_.front()->memory_bytes();
    deltas_.pop_front();
  }
}

void DeltaLog::Clear() {
  deltas_.clear();
  bytes_ = 0;
}

}  // namespace deltawire
