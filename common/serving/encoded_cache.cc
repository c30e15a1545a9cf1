#include "common/serving/encoded_cache.h"

namespace deltawire {

EncodedCache::Value EncodedCache::Get(const Key& key, const std::function<Value()>& make) {
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mu_);
    std::shared_ptr<Entry>& known = entries_[key];
    if (known == nullptr) known = std::make_shared<Entry>();
    entry = known;
  }
  std::lock_guard making(entry->mu);
  if (entry->value != nullptr) return entry->value;
  entry->value = make();
  std::lock_guard lock(mu_);
  const uint64_t bytes = entry->value == nullptr ? 0 : entry->value->bytes.size();
  if (entry->value == nullptr || bytes_ + bytes > limit_) {
    entries_.erase(key);  // threads that wait for this entry still get its value
  } else {
    bytes_ += bytes;
    made_.insert(key);
  }
  return entry->value;
}

bool EncodedCache::Has(const Key& key) const {
  std::lock_guard lock(mu_);
  return made_.contains(key);
}

}  // namespace deltawire
