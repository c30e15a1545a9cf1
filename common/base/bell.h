// A bell that wakes one waiting thread. A ring while the thread does something else is not lost:
// the next wait returns at once. Thread-safe.
#pragma once

#include <mutex>

#include "common/base/sync.h"

namespace deltawire {

class Bell {
 public:
  void Ring() {
    const std::lock_guard lock(mu_);
    rung_ = true;
    cv_.notify_all();
  }
  /// Blocks until the bell rings, unless it has rung since the last wait, or until `then`.
  void WaitUntil(SteadyClock::time_point then) {
    std::unique_lock lock(mu_);
    const auto rung = [this] { return rung_; };
    if (then == SteadyClock::time_point::max()) {
      cv_.wait(lock, rung);
    } else {
      cv_.wait_until(lock, then, rung);
    }
    rung_ = false;
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool rung_ = false;
};

}  // namespace deltawire
