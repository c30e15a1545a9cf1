// Destroys models, each on a thread of its own, once the last reference to it has gone. That
// reference may go on the model's own publisher thread, which cannot wait for itself. Thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "sender/agent/model.h"

namespace deltawire::sender {

/// The end of one model: it is destroyed, and the lock of its directory is released.
class ModelEnd {
 public:
  void Set();
  bool is_set() const;
  /// Returns whether it came within `time`.
  bool WaitFor(std::chrono::milliseconds time);

 private:
  mutable CheckedMutex mu_;
  CondVar cv_;
  bool set_ ABSL_GUARDED_BY(mu_) = false;
};

class ModelDisposal {
 public:
  ModelDisposal();
  /// Waits until every model is destroyed that was given to it. A model whose last reference goes
  /// later is destroyed where that happens.
  ~ModelDisposal();

  /// Returns a pointer to `model` that gives the model to the disposal with its last copy. `end`
  /// follows.
  std::shared_ptr<Model> Watch(std::shared_ptr<Model> model, std::shared_ptr<ModelEnd> end);

 private:
  struct Doomed {
    std::shared_ptr<Model> model;
    std::shared_ptr<ModelEnd> end;
  };
  /// Shared with the models, since the last one may outlive the disposal.
  struct Queue {
    CheckedMutex mu;
    CondVar cv;
    bool stopping ABSL_GUARDED_BY(mu) = false;
    bool closed ABSL_GUARDED_BY(mu) = false;  // the thread has ended
    std::vector<Doomed> models ABSL_GUARDED_BY(mu);
  };
  static void Destroy(Doomed doomed);
  void Run();

  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  Thread thread_;
};

}  // namespace deltawire::sender
