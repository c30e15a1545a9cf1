// A limit of one log line per key (a peer, a reason) and interval, so that a stranger cannot flood
// the log. The number of keys is bounded. Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"

namespace deltawire {

class LogThrottle {
 public:
  explicit LogThrottle(std::chrono::milliseconds interval = std::chrono::seconds(10))
      : interval_(interval) {}

  /// Returns true when nothing was logged for `key` within the interval.
  bool Allow(const std::string& key, SteadyClock::time_point now = SteadyClock::now()) {
    MutexLock lock(mu_);
    const auto [entry, is_new] = last_.try_emplace(key, now);
    if (!is_new && now - entry->second < interval_) return false;
    entry->second = now;
    if (last_.size() <= kMostKeys) return true;
    std::erase_if(last_, [&](const auto& e) { return now - e.second >= interval_; });
    if (last_.size() > kMostKeys) {
      const auto first = last_.begin();
      last_.erase(first == entry ? std::next(first) : first);
    }
    return true;
  }
  size_t size() {
    MutexLock lock(mu_);
    return last_.size();
  }

  static constexpr size_t kMostKeys = 4096;

 private:
  const std::chrono::milliseconds interval_;
  CheckedMutex mu_;
  std::map<std::string, SteadyClock::time_point> last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
