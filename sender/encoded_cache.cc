#include "sender/encoded_cache.h"

namespace deltawire::sender {

EncodedCache::Value EncodedCache::Get(const Key& key, const std::function<Value()>& make) {
  std::shared_ptr<Slot> slot;
  {
    std::lock_guard lock(mu_);
    std::shared_ptr<Slot>& known = slots_[key];
    if (known == nullptr) known = std::make_shared<Slot>();
    slot = known;
  }
  std::lock_guard making(slot->mu);
  if (slot->value != nullptr) return slot->value;
  slot->value = make();
  std::lock_guard lock(mu_);
  const uint64_t bytes = slot->value == nullptr ? 0 : slot->value->bytes.size();
  if (slot->value == nullptr || bytes_ + bytes > limit_) {
    slots_.erase(key);  // those who wait for this slot still get it
  } else {
    bytes_ += bytes;
    made_.insert(key);
  }
  return slot->value;
}

bool EncodedCache::Has(const Key& key) const {
  std::lock_guard lock(mu_);
  return made_.contains(key);
}

}  // namespace deltawire::sender
