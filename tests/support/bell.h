// Waits in a thread of a test for news that comes by callback. Owner: the test, and the callback
// that rings, by a shared_ptr: it may be called once more when nobody waits. Threads: any. Cost: a
// mutex. Errors: none.
#pragma once

#include <mutex>

#include "common/base/sync.h"

namespace deltawire::testing {

class Bell {
 public:
  void Ring() {
    std::lock_guard lock(mu_);
    rung_ = true;
    cv_.notify_all();
  }
  /// Waits until somebody rings, or has rung since the last wait, or until then.
  void WaitUntil(SteadyClock::time_point then) {
    std::unique_lock lock(mu_);
    cv_.wait_until(lock, then, [this] { return rung_; });
    rung_ = false;
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool rung_ = false;
};

}  // namespace deltawire::testing
