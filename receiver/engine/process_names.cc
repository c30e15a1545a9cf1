#include "receiver/engine/process_names.h"

#include <algorithm>
#include <utility>

namespace deltawire::receiver {
namespace {

constexpr size_t kRemembered = 16;

}  // namespace

ProcessNames::Seen ProcessNames::See(const std::string& name) {
  if (name.empty() || name == now_) return Seen::kSame;
  if (std::ranges::find(before_, name) != before_.end()) return Seen::kSeveral;
  const std::string last = std::exchange(now_, name);
  if (last.empty()) return Seen::kFirst;
  before_.push_back(last);
  if (before_.size() > kRemembered) before_.erase(before_.begin());
  return Seen::kNew;
}

}  // namespace deltawire::receiver
