// The sender agent: the models of this node, the pulls that run, the receivers that are attached.
// Owner: main. Threads: every method from any; the agent's own thread ends pulls whose time is
// over. While it holds its lock it calls into no model or pull. Cost: one thread, 4096 pulls at
// most. It takes and returns structs without gRPC types (sender/agent/service.cc translates them).
// Errors name the model.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/log_throttle.h"
#include "common/base/stages.h"
#include "common/base/sync.h"
#include "common/config/options.h"
#include "common/net/pull_server.h"
#include "sender/agent/attachments.h"
#include "sender/agent/model.h"
#include "sender/agent/served_pull.h"

namespace deltawire::sender {

/// A receiver's request to pull.
struct PullRequest {
  std::string model;
  std::string receiver_id;
  std::string peer;         ///< the address that the receiver asks from
  std::string fingerprint;  ///< of the receiver's layout
  uint32_t streams = 0;
  CoderSpeeds decode;       ///< of the receiver, all its threads; 0: not said
  uint64_t owned_hash = 0;  ///< of the part that the receiver expects here; 0: the whole
  /// The state to end at; epoch 0: the newest. A root, attempt or lineage of 0 is not compared.
  Identity at;
  std::vector<uint32_t> suspects;  ///< chunks whose bytes came with another digest before
  std::string principal;           ///< who asks; empty: the sender knows no principals
  /// Whether a stream comes from whoever asks; null: its ticket is proof enough.
  std::function<Status(const wire::Hello&, const net::StreamPeer&)> admits;
};
struct PullTicket {
  wire::Ticket ticket{};
  uint32_t history = 0;  ///< how many deltas the receiver should keep
  VersionInfo newest;
};

struct AgentLimits {
  AttachmentLimits attachments;
  std::chrono::milliseconds ticket_life{30000};
  size_t pulls = 4096;         ///< tickets and running pulls of all models
  size_t pulls_per_peer = 16;  ///< tickets and running pulls of one peer, that is, one connection
  size_t pulls_per_address = 512;
  size_t pulls_per_principal = 1024;
  /// How long a replacement waits until every call and stream has dropped the old model.
  std::chrono::milliseconds letting_go{10000};
};

class Agent : public net::PullSource {
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
  StatusOr<std::shared_ptr<Model>> Find(const std::string& name) const;
  std::vector<std::shared_ptr<Model>> Models() const;

  // Pulls.
  StatusOr<PullTicket> OpenPull(const PullRequest& request);
  StatusOr<std::shared_ptr<net::PullSession>> Join(const wire::Hello& hello,
                                                   const net::StreamPeer& peer) override;
  struct PullCounts {
    uint32_t active = 0;
    uint64_t bytes_sent = 0;
    uint64_t cut = 0;
    uint64_t refused = 0;
    FormCounts sent;
  };
  PullCounts Pulls(const std::string& model) const;
  /// Bulk streams that were turned away since their ticket was not one, or another's.
  uint64_t streams_refused() const { return streams_refused_; }
  const CoderRates& coder_rates() const { return coder_rates_; }

  Attachments& attachments() { return attachments_; }
  const Attachments& attachments() const { return attachments_; }

  /// Ends every wait and every pull; a publish that is running finishes, and no other begins. Does
  /// not wait for streams.
  void Stop();
  const SenderOptions& options() const { return options_; }

 private:
  /// Tells when a model is destroyed, and the lock of its directory released.
  struct Leaving {
    Mutex mu;
    CondVar cv;
    bool gone = false;
  };
  /// What the agent's own thread has to do. Shared with the models, since the last one may outlive
  /// the agent: the last reference to a model may be dropped on that model's own publisher thread,
  /// which cannot wait for itself, so the model is handed to this thread.
  struct Chores {
    Mutex mu;
    CondVar cv;
    bool stopping = false;
    bool closed = false;  // the thread has ended
    bool opened = false;  // a pull was opened
    std::vector<std::pair<std::shared_ptr<Model>, std::shared_ptr<Leaving>>> models;
  };
  struct Entry {
    std::shared_ptr<Model> model;
    std::shared_ptr<Leaving> leaving;
  };
  using ServedPulls = std::vector<std::shared_ptr<ServedPull>>;

  std::shared_ptr<Model> Adopt(std::shared_ptr<Model> model);
  void Changed(const Model& model);  ///< after a publish
  /// A receiver said that it has committed `id`.
  void Delivered(const std::string& model, const Identity& id, const PullStats& pull);
  static VersionInfo InfoOf(const Model& model, const Published* state);
  /// The registered model if its layout and part are these; null: make the model. REQUIRES: the
  /// caller has `name` in registering_.
  StatusOr<std::shared_ptr<Model>> Registered(const std::string& name, const Layout& layout,
                                              const Coverage& part, bool replace) const;
  /// Takes the model out of use and waits until nobody holds a reference to it.
  Status LetGo(const std::string& name);
  StatusOr<std::shared_ptr<Model>> Make(const std::string& name, Layout layout, Coverage part,
                                        std::vector<SideFile> side_files, bool replaces);

  Status CheckRequest(const PullRequest& request, const Model& model) const;
  StatusOr<std::shared_ptr<const Published>> Pinned(const PullRequest& request, Model& model) const;
  StatusOr<PullTicket> Grant(const PullRequest& request);
  /// Adds the session to the table, if the limits allow it; returns the pulls that it replaces.
  StatusOr<ServedPulls> Enter(const PullRequest& request, const wire::Ticket& ticket,
                              const std::shared_ptr<ServedPull>& session);
  ServedPulls PullsOf(const Model& model) const;
  void Refused(const std::string& model);
  PullCoding CodingFor(const PullRequest& request);
  std::shared_ptr<TokenBucket> RateFor(const PullRequest& request);
  static uint32_t HistoryWanted(const PullCoding& coding, const Published& now);
  void CutReaders(const Model* model, uint32_t half);
  void DoChores();
  static void Bury(std::shared_ptr<Model> model, Leaving& leaving);
  /// Cuts pulls whose time is over and forgets those that have ended. True when some are left.
  bool Sweep();
  void CountFinished(const ServedPull& pull);  // REQUIRES (here and below): mu_ held
  Status CheckLimits(const PullRequest& request) const;

  const SenderOptions options_;
  const ModelOptions model_options_;
  const AgentLimits limits_;
  ThreadPool& pool_;
  CoderRates coder_rates_;
  std::atomic<uint64_t> streams_refused_{0};
  Attachments attachments_;

  mutable Mutex mu_;
  CondVar cv_;  // a name left registering_, or the agent stops
  bool stopping_ = false;
  std::map<std::string, Entry> models_;
  std::map<std::string, std::shared_ptr<Leaving>> leaving_;
  std::set<std::string> registering_;
  std::map<wire::Ticket, std::shared_ptr<ServedPull>> pulls_;
  std::map<std::string, PullCounts> finished_pulls_;
  std::map<std::string, std::shared_ptr<LinkEstimate>> links_;  // by receiver
  std::map<std::string, std::shared_ptr<TokenBucket>> rates_;   // by model and receiver
  LogThrottle join_refusals_;                                   // by address
  const std::shared_ptr<Chores> chores_ = std::make_shared<Chores>();
  Thread thread_;
};

}  // namespace deltawire::sender
