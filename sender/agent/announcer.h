// Announces a model's published and incoming versions to receivers, pulls and groups, unless the
// model has lost its name. Thread-safe.
#pragma once

#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/serving/pull_desk.h"
#include "sender/agent/fleet/groups.h"
#include "sender/agent/model_table.h"

namespace deltawire::sender {

class Announcer {
 public:
  /// All of these outlive this.
  Announcer(const ModelTable& models, PullDesk& desk, Groups& groups)
      : models_(models), desk_(desk), groups_(groups) {}

  void AnnouncePublished(const Model& model);
  /// Announces the version that is being written, or that there is none, if its chunks can be
  /// pulled.
  void AnnounceIncoming(const Model& model);
  /// Withdraws a model that has lost its name. `ended`: see VersionFeed::Forget.
  void Forget(const std::string& name, const Status& ended);

 private:
  const ModelTable& models_;
  PullDesk& desk_;
  Groups& groups_;
  // Orders announcements. It is held from the look at the model until receivers are called, so that
  // a model that was replaced meanwhile is not announced after Forget.
  CheckedMutex mu_;
};

}  // namespace deltawire::sender
