// Callbacks that run when a model publishes a version or its receivers change. They run without a
// lock. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/listeners.h"
#include "common/base/sync.h"

namespace deltawire {

class ModelWatchers {
 public:
  enum class Topic : uint8_t {
    kVersions,   ///< published versions
    kReceivers,  ///< these, and receivers that attach, leave, commit, or whose engines change
  };

  /// Registers `call` until the result is destroyed. One more call may follow that.
  [[nodiscard]] Listeners::Listener Add(const std::string& model, Topic topic,
                                        std::function<void()> call) {
    auto listener = std::make_shared<const std::function<void()>>(std::move(call));
    MutexLock lock(mu_);
    std::erase_if(all_, [](const Watcher& known) { return known.call.expired(); });
    all_.push_back({model, topic, listener});
    return listener;
  }

  /// Calls the watchers of the model that a change of `topic` concerns. An empty model stands for
  /// all models.
  void Notify(const std::string& model, Topic topic) {
    std::vector<Listeners::Listener> due;
    {
      MutexLock lock(mu_);
      for (const Watcher& watcher : all_) {
        if (!model.empty() && watcher.model != model) continue;
        if (topic == Topic::kReceivers && watcher.topic != Topic::kReceivers) continue;
        if (auto call = watcher.call.lock()) due.push_back(std::move(call));
      }
    }
    for (const auto& call : due) (*call)();
  }

 private:
  struct Watcher {
    std::string model;
    Topic topic = Topic::kVersions;
    std::weak_ptr<const std::function<void()>> call;
  };
  CheckedMutex mu_;
  std::vector<Watcher> all_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
