#include "common/serving/encoded_cache.h"

#include <utility>

namespace deltawire {
namespace {

uint64_t SizeOf(const EncodedCache::Value& value) {
  return EncodedCache::kEntryBytes + value->bytes.size();
}

}  // namespace

EncodedCache::Got EncodedCache::Get(const Key& key, const std::function<Value()>& make,
                                    std::function<void()> ready) {
  {
    std::lock_guard lock(mu_);
    const auto [known, is_new] = entries_.try_emplace(key);
    if (known->second.value != nullptr) return {known->second.value};
    if (!is_new) {
      known->second.ready.push_back(std::move(ready));
      return {.busy = true};
    }
  }
  Value value = make();
  std::vector<std::function<void()>> waiting;
  {
    std::lock_guard lock(mu_);
    waiting.swap(entries_[key].ready);
    entries_.erase(key);
    if (value != nullptr) Keep(key, value);
  }
  for (const auto& one : waiting) one();
  return {std::move(value)};
}

void EncodedCache::Keep(const Key& key, Value value) {
  const uint64_t bytes = SizeOf(value);
  if (first_bytes_ + bytes <= limit_ / 2) {
    first_bytes_ += bytes;
    totals_->bytes += bytes;
    entries_[key].value = std::move(value);
    return;
  }
  if (first_bytes_ + bytes > limit_) return;  // not even in the place of all others
  while (!newest_.empty() && first_bytes_ + newest_bytes_ + bytes > limit_) {
    const auto oldest = entries_.find(newest_.front());
    const uint64_t given_up = SizeOf(oldest->second.value);
    newest_bytes_ -= given_up;
    totals_->bytes -= given_up;
    entries_.erase(oldest);
    newest_.pop_front();
    ++evicted_;
    ++totals_->evicted;
  }
  newest_bytes_ += bytes;
  totals_->bytes += bytes;
  newest_.push_back(key);
  entries_[key].value = std::move(value);
}

void EncodedCache::Put(const Key& key, Value value) {
  std::lock_guard lock(mu_);
  if (entries_.contains(key)) return;
  foreign_ = true;
  Keep(key, std::move(value));
}

bool EncodedCache::Has(const Key& key) const {
  std::lock_guard lock(mu_);
  const auto known = entries_.find(key);
  return known != entries_.end() && known->second.value != nullptr;
}

bool EncodedCache::has_foreign() const {
  std::lock_guard lock(mu_);
  return foreign_;
}

EncodedCache::Counts EncodedCache::counts() const {
  std::lock_guard lock(mu_);
  return {.bytes = first_bytes_ + newest_bytes_, .evicted = evicted_};
}

}  // namespace deltawire
