// A lock for calls that do I/O. It is a flag, so that no mutex is held during the I/O.
#pragma once

#include "common/base/sync.h"

namespace deltawire::receiver {

class IoLock {
 public:
  void lock() {
    std::unique_lock lock(mu_);
    cv_.wait(lock, [this] { return !busy_; });
    busy_ = true;
  }
  void unlock() {
    std::lock_guard lock(mu_);
    busy_ = false;
    cv_.notify_one();
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool busy_ = false;
};

}  // namespace deltawire::receiver
