// The sender's daemon without gRPC: the models of this node, and the desk that serves their pulls.
// Every method may be called from any thread. A thread of its own destroys replaced models. While
// the agent holds its lock it calls into no model or pull. Errors name the model.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/stages.h"
#include "common/base/sync.h"
#include "common/config/options.h"
#include "common/net/pull_server.h"
#include "common/serving/pull_desk.h"
#include "sender/agent/fleet/assigner.h"
#include "sender/agent/fleet/groups.h"
#include "sender/agent/model.h"
#include "sender/agent/model_files.h"
#include "sender/agent/model_users.h"

namespace deltawire::sender {

struct AgentLimits {
  PullLimits pulls;
  /// How long a replacement waits until every call and stream has dropped the old model.
  std::chrono::milliseconds letting_go{10000};
};

class Agent : public net::PullSource, public PullHost {
 public:
  Agent(const SenderOptions& options, ThreadPool& pool, const AgentLimits& limits = {},
        StageObserver stages = nullptr);
  ~Agent() override;

  /// Takes up every model that an earlier process left below data_dir.
  Status RecoverModels();

  /// `owned`: the chunks that this agent publishes; empty: all. With `replace`, a registered model
  /// of another layout or part is dropped: its pulls are cut first. When the new model cannot be
  /// made, the old one is registered again if its files still exist; the error says whether it was.
  StatusOr<std::shared_ptr<Model>> Register(const std::string& name, std::vector<TensorMeta> meta,
                                            const std::vector<ChunkRange>& owned,
                                            std::vector<SideFile> side_files, bool replace,
                                            bool keep_side_files = false);
  struct Unregistered {
    std::filesystem::path directory;
    RemovedModel files;
  };
  /// Ends a model: its pulls are cut, its receivers and watchers are told, its memory is freed and
  /// its files are removed. kFailedPrecondition while an offload is under way, or while trainers
  /// use the model. kDeadlineExceeded: it is not served any more but still in use; call again.
  StatusOr<Unregistered> Unregister(const std::string& name);
  StatusOr<std::shared_ptr<Model>> Find(const std::string& name) const;
  /// The same for a trainer, which opens the model's files by name. If they were removed, the model
  /// is made anew, under a new lineage and with nothing published. kFailedPrecondition if its
  /// directory's name is now that of something else.
  StatusOr<std::shared_ptr<Model>> FindInPlace(const std::string& name);
  /// kNotFound while the model is about to be unregistered, even if that will be refused. A trainer
  /// that has entered users() before it asks is seen by Unregister, or sees it.
  Status CheckStays(const std::string& name) const;
  std::vector<std::shared_ptr<Model>> Models() const;

  // Pulls.
  StatusOr<std::shared_ptr<StateSource>> Source(const std::string& model) const override;
  StatusOr<PullTicket> OpenPull(const PullRequest& request) override;
  StatusOr<std::shared_ptr<net::PullSession>> Join(const wire::Hello& hello,
                                                   const net::StreamPeer& peer) override {
    return desk_.Join(hello, peer);
  }
  const PullDesk& desk() const { return desk_; }
  const CoderRates& coder_rates() const { return coder_rates_; }

  ModelUsers& users() { return users_; }
  Attachments& attachments() override { return desk_.attachments(); }
  const Attachments& attachments() const { return desk_.attachments(); }
  Groups& groups() { return groups_; }
  const Groups& groups() const { return groups_; }
  const Assigner& assigner() const { return assigner_; }
  const std::string& advertise_host() const override { return options_.advertise_host; }

  /// Ends every wait and every pull; a publish that is running finishes, and no other begins. Does
  /// not wait for streams.
  void Stop();
  const SenderOptions& options() const { return options_; }

 private:
  /// Tells when a model is destroyed, and the lock of its directory released.
  struct Leaving {
    CheckedMutex mu;
    CondVar cv;
    bool gone ABSL_GUARDED_BY(mu) = false;
  };
  /// What the agent's own thread has to do. Shared with the models, since the last one may outlive
  /// the agent: the last reference to a model may be dropped on that model's own publisher thread,
  /// which cannot wait for itself, so the model is handed to this thread.
  struct Chores {
    CheckedMutex mu;
    CondVar cv;
    bool stopping ABSL_GUARDED_BY(mu) = false;
    bool closed ABSL_GUARDED_BY(mu) = false;  // the thread has ended
    std::vector<std::pair<std::shared_ptr<Model>, std::shared_ptr<Leaving>>> models
        ABSL_GUARDED_BY(mu);
  };
  struct Entry {
    std::shared_ptr<Model> model;
    std::shared_ptr<Leaving> leaving;
  };

  std::shared_ptr<Model> Adopt(std::shared_ptr<Model> model);
  /// Whether it is this model that its name stands for now.
  bool IsServed(const Model& model) const;
  void Changed(const Model& model);  ///< after a publish
  /// Tells the receivers which version is being written, if chunks of it can be had.
  void Coming(const Model& model);
  /// A receiver said that it has committed `id`.
  void Delivered(const std::string& model, const Identity& id, const PullStats& pull);
  /// The registered model if its layout and part are these; null: make the model. REQUIRES: the
  /// caller has `name` in registering_.
  StatusOr<std::shared_ptr<Model>> Registered(const std::string& name, const Layout& layout,
                                              const Coverage& part, bool replace) const;
  /// Waits until no other thread registers or unregisters `name`; that name is the caller's until
  /// the result is dropped.
  StatusOr<std::shared_ptr<void>> TakeTurn(const std::string& name);
  /// Has a model that nobody uses begin no offload any more.
  Status Retire(Model& model, const Status& ended) const;
  /// Takes the model out of use and waits until nobody holds a reference to it. `ended`: why there
  /// is no model of that name any more; OK: another one takes its place.
  Status LetGo(const std::string& name, const Status& ended = absl::OkStatus());
  /// Whether the model, whose files are gone, may be made anew; says so in the log.
  static Status MayRenew(const Model& lost);
  StatusOr<std::shared_ptr<Model>> Make(const std::string& name, Layout layout, Coverage part,
                                        std::vector<SideFile> side_files, bool replaces);

  void DoChores();
  static void Bury(std::shared_ptr<Model> model, Leaving& leaving);

  const SenderOptions options_;
  const StageObserver stages_;
  const AgentLimits limits_;
  ThreadPool& pool_;
  CoderRates coder_rates_;
  PullDesk desk_;
  Groups groups_;
  Assigner assigner_;
  ModelUsers users_;

  // Held while receivers are told, to keep the order.
  CheckedMutex coming_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable CheckedMutex mu_;
  CondVar cv_;  // a name left registering_, or the agent stops
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Entry> models_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Leaving>> leaving_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> registering_ ABSL_GUARDED_BY(mu_);
  // Models that are about to lose their name, or have lost it while their files are still there.
  std::set<std::string> unregistering_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<Chores> chores_ = std::make_shared<Chores>();
  Thread thread_;
};

}  // namespace deltawire::sender
