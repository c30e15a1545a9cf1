#include "common/serving/encoded_cache.h"

#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace deltawire {
namespace {

uint64_t SizeOf(const EncodedCache::Value& value) {
  return EncodedCache::kEntryBytes + value->bytes.size();
}

}  // namespace

EncodedCache::~EncodedCache() {
  const uint64_t bytes = first_bytes_ + newest_bytes_;
  totals_->bytes -= bytes;
  if (retired_) totals_->retired -= bytes;
}

EncodedCache::Got EncodedCache::Get(const Key& key, const std::function<Value()>& make,
                                    IfBusy if_busy) {
  Entries::iterator entry;
  bool mine = false;
  {
    MutexLock lock(mu_);
    entry = entries_.find(key);
    mine = entry == entries_.end();
    if (mine) {
      entry = Insert(key);
    } else if (entry->second.value != nullptr) {
      return {entry->second.value};
    } else if (if_busy == IfBusy::kSkip) {
      return {.busy = true};
    }
  }
  if (!mine) return {make()};
  Value value;
  // If `make` throws, the entry must not stay busy.
  const absl::Cleanup made = [&] {
    MutexLock lock(mu_);
    Keep(entry, value);
  };
  value = make();
  return {value};
}

EncodedCache::Entries::iterator EncodedCache::Insert(const Key& key) {
  Entry entry;
  entry.place.push_back(key);
  return entries_.emplace(key, std::move(entry)).first;
}

void EncodedCache::Keep(Entries::iterator entry, Value value) {
  const uint64_t bytes = value == nullptr ? limit_ + 1 : SizeOf(value);
  if (first_bytes_ + bytes <= limit_ / 2 && TakeRetired(bytes)) {
    first_bytes_ += bytes;
    totals_->bytes += bytes;
    entry->second.value = std::move(value);
    return;
  }
  bool room = first_bytes_ + bytes <= limit_;  // if every other of the second half went
  while (room && !newest_.empty() && first_bytes_ + newest_bytes_ + bytes > limit_) EvictOldest();
  while (room && !(room = TakeRetired(bytes)) && !newest_.empty()) {
    EvictOldest();
    room = true;
  }
  if (!room) {
    entries_.erase(entry);
    return;
  }
  newest_bytes_ += bytes;
  totals_->bytes += bytes;
  newest_.splice(newest_.end(), entry->second.place);
  entry->second.value = std::move(value);
}

bool EncodedCache::TakeRetired(uint64_t bytes) {
  if (!retired_) return true;
  uint64_t used = totals_->retired;
  do {
    if (used + bytes > retired_limit_) return false;
  } while (!totals_->retired.compare_exchange_weak(used, used + bytes));
  return true;
}

void EncodedCache::Evict(Entries::iterator entry, uint64_t& bytes) {
  const uint64_t evicted = SizeOf(entry->second.value);
  bytes -= evicted;
  totals_->bytes -= evicted;
  if (retired_) totals_->retired -= evicted;
  entries_.erase(entry);
  ++evicted_;
  ++totals_->evicted;
}

void EncodedCache::EvictOldest() {
  const Key oldest = newest_.front();
  newest_.pop_front();
  Evict(entries_.find(oldest), newest_bytes_);
}

void EncodedCache::Retire(uint64_t limit) {
  MutexLock lock(mu_);
  if (std::exchange(retired_, true)) return;
  retired_limit_ = limit;
  totals_->retired += first_bytes_ + newest_bytes_;
  while (totals_->retired > limit && !newest_.empty()) EvictOldest();
  for (auto entry = entries_.begin(); totals_->retired > limit && entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->second.value != nullptr) Evict(entry, first_bytes_);
    entry = next;
  }
}

void EncodedCache::Put(const Key& key, Value value) {
  MutexLock lock(mu_);
  if (entries_.contains(key)) return;
  foreign_ = true;
  Keep(Insert(key), std::move(value));
}

bool EncodedCache::Has(const Key& key) const {
  MutexLock lock(mu_);
  const auto known = entries_.find(key);
  return known != entries_.end() && known->second.value != nullptr;
}

bool EncodedCache::has_foreign() const {
  MutexLock lock(mu_);
  return foreign_;
}

EncodedCache::Counts EncodedCache::counts() const {
  MutexLock lock(mu_);
  return {.bytes = first_bytes_ + newest_bytes_, .evicted = evicted_};
}

}  // namespace deltawire
