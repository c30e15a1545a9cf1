// The attachments of a replica to its agents. It takes their events, reports to them, and notifies
// callers and served receivers of progress. A Replica owns it. Every method may be called from any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bell.h"
#include "common/base/checked_mutex.h"
#include "common/base/engines_serve.h"
#include "common/base/group_word.h"
#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/base/relay_news.h"
#include "common/base/status.h"
#include "receiver/attach/attachment_keeper.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/downstream_link.h"
#include "receiver/replica/buffer_setup.h"
#include "receiver/replica/commit_log.h"
#include "receiver/replica/planner.h"
#include "receiver/replica/puller.h"
#include "receiver/replica/replica_line.h"
#include "receiver/replica/replica_options.h"
#include "receiver/replica/request_queue.h"
#include "receiver/replica/run_state.h"

namespace deltawire::receiver {

class AgentAttachments : private AttachmentKeeper::Owner {
 public:
  /// The objects that events change, and that reports are made of. They outlive this.
  struct Env {
    const ReplicaOptions& options;
    const BufferGate& gate;
    const RunState& run;
    ReplicaLine& line;
    CommitLog& commits;
    RequestQueue& requests;
    DownstreamLink& downstream;
    Planner& planner;
    BufferSetup& setup;
    Puller& puller;
    Bell& bell;  ///< of the driving thread
  };
  AgentAttachments(std::vector<std::unique_ptr<Upstream>> upstreams, const Env& env);
  /// Ends the attachments. REQUIRES: Stop and Join.
  ~AgentAttachments() override;

  /// Begins to attach.
  void Start() { keeper_.Start(); }
  /// Ends all calls to the agents.
  void Stop();
  void Join() { keeper_.Join(); }

  /// Sets what reports say of the engines from now on, and sends one if that is news.
  void SetEngines(const EnginesServe& engines) ABSL_LOCKS_EXCLUDED(mu_);
  /// Sends reports to all agents, and notifies the callers.
  void SendReports() ABSL_LOCKS_EXCLUDED(mu_);
  /// The same if the phase or the answer to the group has changed since; returns whether it has.
  bool SendReportsIfNews() ABSL_LOCKS_EXCLUDED(mu_);
  /// Notifies the served receivers of what this receiver and its upstreams fetch.
  void NotifyDownstream() ABSL_LOCKS_EXCLUDED(mu_);
  /// Ends the requests of `batch` with `status`.
  void Answer(const RequestQueue::Batch& batch, const Status& status);

  struct View {
    std::string address;
    std::string in_use;
    std::optional<Identity> sender_newest;  ///< see Upstream
  };
  /// By agent.
  std::vector<View> views() const;
  /// Attachments that ended because of silence or lost events.
  uint64_t lost() const { return keeper_.lost(); }

 private:
  struct Agent {
    std::optional<SenderEvent> heard;  ///< the last event of the attachment
    std::string ended;  ///< why the last attachment ended, as it was logged; "": attached since
  };
  struct Reported {
    ReceiverPhase phase = ReceiverPhase::kNone;
    GroupReport group;
    friend bool operator==(const Reported&, const Reported&) = default;
  };

  ReceiverReport MakeReport(size_t agent) override;
  /// Refuses the events of a relay that gets its versions from this daemon.
  bool Accepts(size_t agent, const SenderEvent& event) override;
  void OnEvent(size_t agent, uint64_t attachment, const SenderEvent& event) override;
  void OnEnded(size_t agent, const Status& why) override;
  /// Returns false if the event is of an attachment that has ended.
  bool TakeEvent(size_t agent, uint64_t attachment, const SenderEvent& event)
      ABSL_LOCKS_EXCLUDED(mu_);
  /// Logs and shows why the attachment ended, or was refused.
  void ShowEnd(size_t agent, bool was_attached, const Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Reported ToReport() const;

  const Env env_;
  mutable CheckedMutex mu_;
  std::vector<Agent> agents_ ABSL_GUARDED_BY(mu_);
  EnginesServe engines_ ABSL_GUARDED_BY(mu_);
  RelayNews upstream_news_ ABSL_GUARDED_BY(mu_);  // a single agent's last, which may be a relay
  Reported reported_ ABSL_GUARDED_BY(mu_);        // by the last SendReports
  AttachmentKeeper keeper_;
  /// The last member: until an upstream is destroyed, its thread may say that an attachment ended.
  const std::vector<std::unique_ptr<Upstream>> upstreams_;
};

}  // namespace deltawire::receiver
