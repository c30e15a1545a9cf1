// The sender's daemon without gRPC: the models of this node, and the desk that serves their pulls.
// While the agent holds a lock it calls into no model or pull. Thread-safe. Errors name the model.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/stages.h"
#include "common/config/options.h"
#include "common/net/pull_server.h"
#include "common/serving/pull_desk.h"
#include "sender/agent/announcer.h"
#include "sender/agent/fleet/assigner.h"
#include "sender/agent/fleet/groups.h"
#include "sender/agent/model.h"
#include "sender/agent/model_disposal.h"
#include "sender/agent/model_files.h"
#include "sender/agent/model_table.h"
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

  /// Registers every model that an earlier process left below data_dir.
  Status RecoverModels();

  /// `owned`: the chunks that this agent publishes; empty: all. With `replace`, a registered model
  /// of another layout or part is discarded: its pulls are cut first. When the new model cannot be
  /// made, the old one is registered again if its files still exist; the error says whether it was.
  StatusOr<std::shared_ptr<Model>> Register(const std::string& name, std::vector<TensorMeta> meta,
                                            const std::vector<ChunkRange>& owned,
                                            std::vector<SideFile> side_files, bool replace,
                                            bool keep_side_files = false);
  struct Unregistered {
    std::filesystem::path directory;
    RemovedModel files;
  };
  /// Ends a model: cuts its pulls, ends its attachments and watches, frees its memory and removes
  /// its files. kFailedPrecondition while an offload runs, or while trainers use the model.
  /// kDeadlineExceeded: it is not served any more but still in use; call again.
  StatusOr<Unregistered> Unregister(const std::string& name);
  /// Finds the model for a trainer, which opens the model's files by name. If they were removed,
  /// the model is made anew, under a new lineage and with nothing published. kFailedPrecondition if
  /// its directory's name is now that of something else.
  StatusOr<std::shared_ptr<Model>> FindInPlace(const std::string& name);

  // Pulls.
  StatusOr<std::shared_ptr<StateSource>> Source(const std::string& model) const override;
  StatusOr<PullTicket> OpenPull(const PullRequest& request, const PullCaller& caller) override;
  StatusOr<std::shared_ptr<net::PullSession>> Join(const wire::Hello& hello,
                                                   const net::StreamPeer& peer) override {
    return desk_.Join(hello, peer);
  }
  Attachments& attachments() override { return desk_.attachments(); }
  const std::string& advertise_host() const override { return options_.advertise_host; }

  const ModelTable& models() const { return models_; }
  const PullDesk& desk() const { return desk_; }
  const CoderRates& coder_rates() const { return coder_rates_; }
  ModelUsers& users() { return users_; }
  Groups& groups() { return groups_; }
  const Groups& groups() const { return groups_; }
  const Assigner& assigner() const { return assigner_; }
  const SenderOptions& options() const { return options_; }

  /// Ends every wait and every pull. A running publish finishes, and no other begins. Does not wait
  /// for streams.
  void Stop();

 private:
  std::shared_ptr<Model> Adopt(std::shared_ptr<Model> model);
  /// Takes the model out of use and waits until nobody holds a reference to it. `ended`: why there
  /// is no model of that name any more; OK: another one takes its place.
  Status LetGo(const std::string& name, const Status& ended = absl::OkStatus());
  StatusOr<std::shared_ptr<Model>> Make(const std::string& name, Layout layout, Coverage part,
                                        std::vector<SideFile> side_files, bool replaces);

  const SenderOptions options_;
  const StageObserver stages_;
  const AgentLimits limits_;
  ThreadPool& pool_;
  CoderRates coder_rates_;
  PullDesk desk_;
  Groups groups_;
  Assigner assigner_;
  ModelUsers users_;
  ModelTable models_;
  Announcer announcer_{models_, desk_, groups_};
  ModelDisposal disposal_;
};

}  // namespace deltawire::sender
