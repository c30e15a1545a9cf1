// A payload that one stream wants and another thread is making. It tells the stream whether the
// payload is made, or wakes it when it is. Owner: both, by shared_ptr. Threads: any. Cost: none.
// Errors: none.
#pragma once

#include <functional>
#include <utility>

#include "common/base/sync.h"

namespace deltawire {

class PayloadElsewhere {
 public:
  /// Called by the thread that makes the payload, when it is made or has failed.
  void Made() {
    std::function<void()> wake;
    {
      std::lock_guard lock(mu_);
      made_ = true;
      wake = std::exchange(wake_, nullptr);
    }
    if (wake) wake();
  }
  bool made() const {
    std::lock_guard lock(mu_);
    return made_;
  }
  /// False: it is made already, and `wake` will not be called.
  bool Await(const std::function<void()>& wake) {
    std::lock_guard lock(mu_);
    if (!made_) wake_ = wake;
    return !made_;
  }

 private:
  mutable Mutex mu_;
  bool made_ = false;
  std::function<void()> wake_;
};

}  // namespace deltawire
