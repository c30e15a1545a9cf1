#include "common/serving/way_back.h"

#include <cstring>
#include <utility>

namespace deltawire {

std::shared_ptr<const OldBytes> OldBytes::Copy(std::shared_ptr<Budget> budget, Bytes from) {
  uint64_t left = budget->left;
  do {
    if (left < from.size()) return nullptr;
  } while (!budget->left.compare_exchange_weak(left, left - from.size()));
  // Returns the bytes to the budget if there is no memory for them.
  struct Taken {
    ~Taken() {
      if (budget != nullptr) budget->left += bytes;
    }
    std::shared_ptr<Budget> budget;
    const size_t bytes;
  } taken{budget, from.size()};
  std::shared_ptr<OldBytes> old(new OldBytes(std::move(budget), from.size()));
  taken.budget = nullptr;
  old->memory_ = std::make_unique_for_overwrite<std::byte[]>(from.size());
  std::memcpy(old->memory_.get(), from.data(), from.size());
  return old;
}

std::shared_ptr<const void> WayBack::Pin(std::shared_ptr<WayBack> way) {
  ++way->pins_;
  WayBack* const raw = way.get();
  return {raw, [way = std::move(way)](const void*) { --way->pins_; }};
}

void WayBack::Begin(uint64_t serial, std::shared_ptr<const std::vector<uint64_t>> digests) {
  serial_ = serial;
  digests_ = std::move(digests);
}

void WayBack::Start(LogView since) {
  MutexLock lock(mu_);
  since_bytes_ = 0;
  for (const auto& delta : since) since_bytes_ += delta->memory_bytes();
  since_ = std::move(since);
  broken_ = followed_ = false;
}

void WayBack::Follow(std::shared_ptr<const Delta> delta, uint64_t serial) {
  MutexLock lock(mu_);
  // The first delta is always followed, since old bytes may not have been kept while it was made.
  if (broken_ || full()) return;
  followed_ = true;
  broken_ = serial_ + since_.size() + 1 != serial;
  if (broken_) return;
  since_bytes_ += delta->memory_bytes();
  since_.push_back(std::move(delta));
}

void WayBack::Break() {
  LogView since;  // may be large, so it is destroyed without the lock
  MutexLock lock(mu_);
  broken_ = true;
  since_bytes_ = 0;
  since.swap(since_);
}

bool WayBack::Wants(const Base& base, bool undoable) const {
  MutexLock lock(mu_);
  if (undoable && !full() && !broken_) return false;
  // Old bytes need a chain from them to the state.
  return !old_.contains(base.chunk) && ChainTo(base);
}

void WayBack::Keep(const Base& base, std::shared_ptr<const OldBytes> old) {
  MutexLock lock(mu_);
  old_.try_emplace(base.chunk, Old{std::move(old), base});
}

void WayBack::ForgetOldBytes() {
  decltype(old_) old;  // may be large, so it is destroyed without the lock
  MutexLock lock(mu_);
  old.swap(old_);
}

uint64_t WayBack::reached() const {
  MutexLock lock(mu_);
  return serial_ + since_.size();
}

std::optional<WayBack::Way> WayBack::ChainTo(const Base& base) const {
  Way way;
  uint64_t digest = (*digests_)[base.chunk];
  if (digest == base.digest) return way;
  for (size_t i = 0; i < since_.size() && serial_ + i < base.serial; ++i) {
    const ChunkDelta* change = since_[i]->Find(base.chunk);
    if (change == nullptr) continue;
    if (change->payload.empty()) return std::nullopt;
    way.chain.push_back(change);
    way.keep.push_back(since_[i]);
    digest = change->digest_after;
  }
  // Another digest shows a change that was not followed.
  if (digest != base.digest) return std::nullopt;
  return way;
}

std::optional<WayBack::Way> WayBack::FindFrom(const Base& newest) const {
  MutexLock lock(mu_);
  if (const auto old = old_.find(newest.chunk); old != old_.end()) {
    auto way = ChainTo(old->second.base);
    if (way) way->from = old->second.bytes;
    return way;
  }
  if (newest.serial == 0) return std::nullopt;
  return ChainTo(newest);
}

}  // namespace deltawire
