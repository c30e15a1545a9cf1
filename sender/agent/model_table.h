// The models of an agent by name, and the turns of the calls that register and unregister them. It
// calls into no model. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "sender/agent/model.h"
#include "sender/agent/model_disposal.h"

namespace deltawire::sender {

class ModelTable {
 public:
  struct Entry {
    std::shared_ptr<Model> model;
    std::shared_ptr<ModelEnd> end;
  };

  /// kNotFound names the models that there are.
  StatusOr<std::shared_ptr<Model>> Find(const std::string& name) const;
  std::vector<std::shared_ptr<Model>> All() const;
  /// Whether this model still has its name.
  bool Has(const Model& model) const;
  /// kNotFound while the model is about to be unregistered, even if that will be refused. A trainer
  /// that enters ModelUsers before it asks is seen by Agent::Unregister, or sees it.
  Status CheckStays(const std::string& name) const;

  /// Waits until no other thread registers or unregisters `name`. The name is the caller's until
  /// the result is dropped; the calls below need that turn.
  StatusOr<std::shared_ptr<void>> TakeTurn(const std::string& name);
  void Add(Entry entry);
  /// Takes the model out, null if there is none. The end is that of the last model of that name,
  /// null if there was none.
  Entry Remove(const std::string& name);
  /// Has CheckStays fail until CancelUnregister, EndUnregister or Add.
  void BeginUnregister(const std::string& name);
  void CancelUnregister(const std::string& name);
  void EndUnregister(const std::string& name);

  /// Fails TakeTurn from now on.
  void Stop();
  void Clear();

 private:
  mutable CheckedMutex mu_;
  CondVar cv_;  // a turn ended, or the table stops
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::shared_ptr<Model>> models_ ABSL_GUARDED_BY(mu_);
  // Also of models that are no longer in models_ while their files exist.
  std::map<std::string, std::shared_ptr<ModelEnd>> ends_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> turns_ ABSL_GUARDED_BY(mu_);
  // Models that are about to lose their name, or have lost it while their files still exist.
  std::set<std::string> unregistering_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::sender
