#include "common/serving/chunk_bytes.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "common/serving/undo.h"

namespace deltawire {
namespace {

using kernels::DecodeStatus;

/// A copy of a chunk's bytes in memory of its own.
class PrivateCopy {
 public:
  explicit PrivateCopy(Bytes from)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(from.size())), size_(from.size()) {
    std::memcpy(memory_.get(), from.data(), from.size());
  }
  MutableBytes bytes() const { return {memory_.get(), size_}; }
  WholeChunk chunk() const { return {bytes(), memory_, std::nullopt}; }

 private:
  std::shared_ptr<std::byte[]> memory_;
  size_t size_;
};

}  // namespace

void ChunkBytes::Pin(std::shared_ptr<const Published> end) {
  std::lock_guard lock(mu_);
  if (!end->log.empty()) last_ = end->log.back();
  from_serial_ = serial_ = end->serial;
  end_ = std::move(end);
}

void ChunkBytes::Overtaken(const Published& newest) {
  Follow(newest);
  Compact();
}

void ChunkBytes::Follow(const Published& newest) {
  std::lock_guard lock(mu_);
  if (end_ == nullptr || broken_) return;
  if (newest.serial <= serial_) return;
  const LogView& log = newest.log;
  // Searches from the newest: only the end of a long log is new.
  size_t first = log.size();
  while (first > 0 && log[first - 1] != last_) --first;
  if (first == 0) {
    // last_ is not in the log: either every later state has its delta there, or some deltas have
    // left the log. Version numbers alone cannot tell, since one may be published twice, so serials
    // are counted as well (a state that was rebuilt for the pull has none).
    const StateId reached = last_ == nullptr ? end_->info.id() : last_->to();
    broken_ = log.empty() || log[0]->from() != reached ||
              (serial_ != 0 && log.size() != newest.serial - serial_);
  }
  if (broken_) return;
  for (; first < log.size(); ++first) {
    since_bytes_ += log[first]->memory_bytes();
    since_.push_back(log[first]);
    last_ = log[first];
  }
  serial_ = newest.serial;
}

void ChunkBytes::Compact() {
  // Nobody writes to the newest half before the next publish makes it the inactive one.
  const LeasedState newest = model_.Lease();
  if (newest.lease == nullptr) return;  // a relay changes its only file; a later call compacts
  LogView since;
  {
    std::lock_guard lock(mu_);
    const uint64_t limit = std::max(model_.log_limit(), model_.owned_bytes());
    if (end_ == nullptr || broken_ || compacting_ || since_bytes_ <= limit) return;
    // A newer version was published since Follow; its own call to Overtaken compacts.
    if (newest.state->serial != serial_) return;
    compacting_ = true;
    since = since_;
  }
  std::set<uint32_t> changed;
  for (const auto& delta : since) {
    for (const ChunkDelta& change : delta->chunks()) changed.insert(change.chunk);
  }
  const std::vector<uint32_t> chunks(changed.begin(), changed.end());
  std::atomic<bool> failed{false};
  model_.pool().ParallelFor(chunks.size(), [&](size_t i) {
    if (failed || end_->kept->Find(chunks[i]).memory != nullptr) return;
    auto made = Undo(chunks[i], *end_, newest);
    if (made.ok() &&
        end_->kept->Keep(chunks[i], {std::static_pointer_cast<const std::byte[]>(made->keep),
                                     made->bytes.size()})) {
      return;
    }
    failed = true;
  });
  std::lock_guard lock(mu_);
  compacting_ = false;
  broken_ = broken_ || failed;
  since_bytes_ = 0;
  since_.erase(since_.begin(), since_.begin() + static_cast<ptrdiff_t>(since.size()));
  for (const auto& delta : since_) since_bytes_ += delta->memory_bytes();
  from_serial_ = newest.state->serial;
}

StatusOr<WholeChunk> ChunkBytes::Get(uint32_t chunk, const LeasedState& at, How how) {
  const bool whole = at.state->damaged[chunk] == 0;
  Status why;
  if (at.lease != nullptr && whole) {
    auto got = FromHalf(chunk, at, how);
    if (got.ok()) return got;
    why = got.status();
  } else if (!whole) {
    why = Damaged(chunk, *at.state);
  }
  // If the state is not the newest any more, its bytes may exist elsewhere.
  auto got = FromElsewhere(chunk, *at.state, how);
  return got.ok() || why.ok() ? got : why;
}

StatusOr<WholeChunk> ChunkBytes::FromHalf(uint32_t chunk, const LeasedState& at, How how) {
  const Chunk& place = model_.chunks()[chunk];
  const Bytes bytes = model_.half(at.state->half).subspan(place.offset, place.bytes);
  // A rebuilt state (serial 0) has no marks of damage that a scrub found when the state was newest.
  if ((how.check || at.state->serial == 0) && !HasItsDigest(chunk, *at.state, bytes)) {
    return Damaged(chunk, *at.state);
  }
  if (!how.copy) return WholeChunk{bytes, at.lease, at.state->half};
  return PrivateCopy(bytes).chunk();
}

StatusOr<WholeChunk> ChunkBytes::FromElsewhere(uint32_t chunk, const Published& end, How how) {
  if (auto kept = FromKept(chunk, end, how)) return *std::move(kept);
  auto got = FromNewest(chunk, end, how);
  if (got.ok()) return got;
  // Compact may have kept the chunk meanwhile and dropped the deltas that Undo needed.
  if (auto kept = FromKept(chunk, end, how)) return *std::move(kept);
  return got;
}

std::optional<StatusOr<WholeChunk>> ChunkBytes::FromKept(uint32_t chunk, const Published& end,
                                                         How how) const {
  const KeptChunks::Kept kept = end.kept->Find(chunk);
  if (kept.memory == nullptr) return std::nullopt;
  const Bytes bytes(kept.memory.get(), kept.bytes);
  if (how.check && !HasItsDigest(chunk, end, bytes)) return Damaged(chunk, end);
  return WholeChunk{bytes, kept.memory, std::nullopt};
}

StatusOr<WholeChunk> ChunkBytes::FromNewest(uint32_t chunk, const Published& end, How how) {
  const LeasedState newest = model_.Lease();
  if (newest.lease == nullptr) {
    return Errorf(StatusCode::kUnavailable,
                  "model \"{}\": its only file is being changed; pull again", model_.name());
  }
  if (newest.state.get() == &end) {
    // The half became available after the caller looked, or the chunk is damaged.
    return end.damaged[chunk] == 0 ? FromHalf(chunk, newest, how) : Damaged(chunk, end);
  }
  Follow(*newest.state);
  const bool same = (*newest.state->digests)[chunk] == (*end.digests)[chunk];
  if (same && newest.state->damaged[chunk] == 0) return FromHalf(chunk, newest, how);
  return Undo(chunk, end, newest);
}

StatusOr<WholeChunk> ChunkBytes::Undo(uint32_t chunk, const Published& end,
                                      const LeasedState& newest) {
  const auto changes = Since(chunk, *newest.state);
  if (!changes || newest.state->damaged[chunk] != 0) return Gone(chunk, end, *newest.state);
  const Chunk& place = model_.chunks()[chunk];
  const PrivateCopy copy(model_.half(newest.state->half).subspan(place.offset, place.bytes));
  uint64_t digest = (*newest.state->digests)[chunk];
  for (auto change = changes->chain.rbegin(); change != changes->chain.rend(); ++change) {
    const auto done = UndoDelta(model_.backend(), model_.key(), (*change)->payload, place.width,
                                copy.bytes(), digest);
    if (done != DecodeStatus::kOk) return Gone(chunk, end, *newest.state);
  }
  // Digests the bytes: the digest that was carried along the chain would not show a flipped bit.
  if (!HasItsDigest(chunk, end, copy.bytes())) return Damaged(chunk, end);
  return copy.chunk();
}

std::optional<ChunkBytes::Changes> ChunkBytes::Since(uint32_t chunk, const Published& newest) {
  std::lock_guard lock(mu_);
  if (end_ == nullptr || broken_) return std::nullopt;
  Changes changes;
  if (newest.serial == from_serial_) return changes;
  for (const auto& delta : since_) {
    if (const ChunkDelta* change = delta->Find(chunk)) {
      if (change->payload.empty()) return std::nullopt;
      changes.chain.push_back(change);
      changes.keep.push_back(delta);
    }
    if (delta == newest.log.back()) return changes;
  }
  return std::nullopt;
}

bool ChunkBytes::HasItsDigest(uint32_t chunk, const Published& state, Bytes bytes) const {
  return model_.backend().digest(model_.key(), bytes) == (*state.digests)[chunk];
}

Status ChunkBytes::Damaged(uint32_t chunk, const Published& state) const {
  return Errorf(StatusCode::kDataLoss,
                "model \"{}\", {}: chunk {} of tensor {} no longer has its digest in the sender's "
                "memory and is not sent until a version in which the trainer writes that tensor "
                "(check that machine's memory)",
                model_.name(), ToString(state.info.id()), chunk,
                model_.layout().tensor(model_.chunks()[chunk].tensor).name);
}

Status ChunkBytes::Gone(uint32_t chunk, const Published& end, const Published& newest) const {
  return Errorf(StatusCode::kAborted,
                "model \"{}\": the bytes of {} in tensor {} are gone since {} was published, and "
                "the delta log does not lead back to them; pull a newer one (a larger "
                "delta-log-bytes would keep them longer)",
                model_.name(), ToString(end.info.id()),
                model_.layout().tensor(model_.chunks()[chunk].tensor).name,
                ToString(newest.info.id()));
}

}  // namespace deltawire
