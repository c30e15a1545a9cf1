// A list of callbacks that run on every change of their owner, each without this object's lock. A
// change copies the list. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"

namespace deltawire {

class Listeners {
 public:
  using Listener = std::shared_ptr<const std::function<void()>>;

  /// Registers `call` for every change until the result is destroyed. One more call may follow
  /// that.
  [[nodiscard]] Listener Add(std::function<void()> call) {
    auto listener = std::make_shared<const std::function<void()>>(std::move(call));
    MutexLock lock(mu_);
    std::erase_if(all_, [](const auto& known) { return known.expired(); });
    all_.push_back(listener);
    return listener;
  }

  void Call() {
    std::vector<std::weak_ptr<const std::function<void()>>> all;
    {
      MutexLock lock(mu_);
      all = all_;
    }
    for (const auto& one : all) {
      if (const Listener listener = one.lock()) (*listener)();
    }
  }

 private:
  CheckedMutex mu_;
  std::vector<std::weak_ptr<const std::function<void()>>> all_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
