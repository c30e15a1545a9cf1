// The published version, the incoming version and the relay of each model, as receivers and
// watchers learn them. Its lock is a leaf, and callbacks run without it. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/incoming_news.h"
#include "common/base/relay_news.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/version_info.h"
#include "common/serving/model_watchers.h"

namespace deltawire {

class VersionFeed {
 public:
  struct Change {
    uint64_t serial = 0;  ///< different for each change; 0: the model is unknown
    VersionInfo info;
  };
  /// The content of events to a model's receivers.
  struct State {
    Change newest;
    IncomingNews incoming;
    uint64_t incoming_serial = 0;  ///< different for each incoming version; 0: none
    RelayNews relay;
  };

  /// `changed` runs when the receivers of a model should get an event at once. `watchers` outlives
  /// this.
  VersionFeed(ModelWatchers& watchers, std::function<void(const std::string& model)> changed);

  /// Records a version that `model` has published, or a new model of that name. A version older
  /// than the newest was overtaken by another thread's call and is ignored, unless `in_order` says
  /// that calls come in order.
  void Publish(const std::string& model, const VersionInfo& info, bool in_order = false);
  /// Later events carry `relay`.
  void SetRelay(const std::string& model, const RelayNews& relay);
  /// Receivers learn of an incoming version at once. They learn that it is gone with their next
  /// event.
  void SetIncoming(const std::string& model, const IncomingNews& incoming);
  /// Removes a model. With an error as `ended`, its attachments, watches and waits end with that
  /// error, until the next Publish of that name. With OK they last, since another model replaces
  /// it.
  void Forget(const std::string& model, const Status& ended = absl::OkStatus());

  /// Fails with the error that ended the model or stopped the feed.
  StatusOr<State> StateOf(const std::string& model) const;
  /// The newest change, if its serial is not `seen`. Fails as StateOf does.
  StatusOr<std::optional<Change>> ChangeAfter(const std::string& model, uint64_t seen) const;
  /// Returns whether `committed`, which may combine the parts of several senders, holds a version
  /// that the model published in its newest epoch.
  bool HasPublished(const std::string& model, const Identity& committed) const;

  /// Fails every later question with `why`.
  void Stop(const Status& why);
  Status stopped() const;

 private:
  struct Model {
    State state;
    std::deque<Identity> recent;  // the last kRemembered published versions
    Status ended;
  };
  bool Record(Model& model, const VersionInfo& info, bool in_order)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Returns the model, or null if it is unknown.
  StatusOr<const Model*> Find(const std::string& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ModelWatchers& watchers_;
  const std::function<void(const std::string&)> changed_;
  mutable CheckedMutex mu_;
  Status stopped_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Model> models_ ABSL_GUARDED_BY(mu_);
  uint64_t next_serial_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace deltawire
