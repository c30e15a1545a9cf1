// A payload that one stream wants and another thread is making. It tells the stream whether the
// payload is made, or wakes it when it is. Owner: both, by shared_ptr. Threads: any. Cost: none.
// Errors: none.
#pragma once

#include <functional>
#include <utility>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"

namespace deltawire {

class PayloadElsewhere {
 public:
  /// Called by the thread that makes the payload, when it is made or has failed.
  void Made() {
    std::function<void()> wake;
    {
      MutexLock lock(mu_);
      made_ = true;
      wake = std::exchange(wake_, nullptr);
    }
    if (wake) wake();
  }
  bool made() const {
    MutexLock lock(mu_);
    return made_;
  }
  /// False: it is made already, and `wake` will not be called.
  bool Await(const std::function<void()>& wake) {
    MutexLock lock(mu_);
    if (!made_) wake_ = wake;
    return !made_;
  }

 private:
  mutable CheckedMutex mu_;
  bool made_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
