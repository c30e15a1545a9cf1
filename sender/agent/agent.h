// The sender agent: the models of this node, the pulls that run, the receivers that are attached.
// Owner: main. Threads: every method from any thread (gRPC's, bulk streams'); one of its own ends
// pulls whose time is over. Its lock is held while no model, pull or other lock is asked for.
// Structs in and out: no gRPC type here; sender/agent/service.cc translates. Errors name the model.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/config/options.h"
#include "common/net/pull_server.h"
#include "sender/agent/attachments.h"
#include "sender/agent/model.h"
#include "sender/agent/served_pull.h"

namespace deltawire::sender {

/// A receiver's wish to pull.
struct PullRequest {
  std::string model;
  std::string receiver_id;
  std::string peer;         ///< the address that it asks from
  std::string fingerprint;  ///< of its layout
  uint32_t streams = 0;
  CoderSpeeds decode;       ///< of the receiver, all threads; 0: not said
  uint64_t owned_hash = 0;  ///< of the part that it takes this agent for; 0: the whole
  /// Where the pull shall end; epoch 0: at the newest. Root and attempt 0, lineage 0: not said.
  Identity at;
  std::vector<uint32_t> suspects;  ///< chunks whose bytes came with another digest before
};
struct PullTicket {
  wire::Ticket ticket{};
  uint32_t history = 0;  ///< deltas that the receiver should keep
  VersionInfo newest;
};

struct AgentLimits {
  AttachmentLimits attachments;
  std::chrono::milliseconds ticket_life{30000};
  size_t pulls = 4096;         ///< tickets and pulls in all
  size_t pulls_per_peer = 16;  ///< of one connection
  /// A model that is replaced is let go by those who still use it within so long.
  std::chrono::milliseconds letting_go{10000};
};

class Agent : public net::PullSource {
 public:
  Agent(const SenderOptions& options, ThreadPool& pool, const AgentLimits& limits = {});
  ~Agent() override;

  /// Takes up every model that an earlier process left below data_dir.
  Status RecoverModels();

  /// `owned`: the chunks that this agent publishes; empty: all. With `replace`, a model of another
  /// layout or part makes way: its pulls are cut first. When the new one cannot be made, the old
  /// one stays if its files still do; the error says which.
  StatusOr<std::shared_ptr<Model>> Register(const std::string& name, std::vector<TensorMeta> meta,
                                            const std::vector<ChunkRange>& owned,
                                            std::vector<SideFile> side_files, bool replace,
                                            bool keep_side_files = false);
  StatusOr<std::shared_ptr<Model>> Find(const std::string& name) const;
  std::vector<std::shared_ptr<Model>> Models() const;

  // Pulls.
  StatusOr<PullTicket> OpenPull(const PullRequest& request);
  StatusOr<std::shared_ptr<net::PullSession>> Join(const wire::Hello& hello,
                                                   const std::string& peer) override;
  struct PullCounts {
    uint32_t active = 0;
    uint64_t bytes_sent = 0;
    uint64_t cut = 0;
    uint64_t refused = 0;
    FormCounts sent;
  };
  PullCounts Pulls(const std::string& model) const;
  const CoderRates& coder_rates() const { return coder_rates_; }

  Attachments& attachments() { return attachments_; }
  const Attachments& attachments() const { return attachments_; }

  /// Ends every wait and every pull; what is being published now is the last. Does not wait for
  /// streams.
  void Stop();
  const SenderOptions& options() const { return options_; }

 private:
  /// Tells when a model has gone, and with it the lock of its directory.
  struct Leaving {
    Mutex mu;
    CondVar cv;
    bool gone = false;
  };
  /// What the agent's own thread has to do. Outlives the agent with the last model: the last
  /// reference may go on the model's own publisher thread, which could not wait for itself.
  struct Chores {
    Mutex mu;
    CondVar cv;
    bool stopping = false;
    bool closed = false;  // the thread has ended
    bool opened = false;  // a pull
    std::vector<std::pair<std::shared_ptr<Model>, std::shared_ptr<Leaving>>> models;
  };
  struct Entry {
    std::shared_ptr<Model> model;
    std::shared_ptr<Leaving> leaving;
  };
  using ServedPulls = std::vector<std::shared_ptr<ServedPull>>;

  std::shared_ptr<Model> Adopt(std::shared_ptr<Model> model);
  void Changed(const Model& model);  ///< after a publish
  static VersionInfo InfoOf(const Model& model, const Published* state);
  /// The model if it is the one wanted already; null: make it. REQUIRES: the turn of `name`.
  StatusOr<std::shared_ptr<Model>> Registered(const std::string& name, const Layout& layout,
                                              const Coverage& part, bool replace) const;
  /// Takes the model out of use and waits until nobody has it any more.
  Status LetGo(const std::string& name);
  StatusOr<std::shared_ptr<Model>> Make(const std::string& name, Layout layout, Coverage part,
                                        std::vector<SideFile> side_files, bool replaces);

  Status CheckRequest(const PullRequest& request, const Model& model) const;
  StatusOr<std::shared_ptr<const Published>> Pinned(const PullRequest& request, Model& model) const;
  StatusOr<PullTicket> Grant(const PullRequest& request);
  /// Adds the session, if it may be; what it takes the place of comes back.
  StatusOr<ServedPulls> Enter(const PullRequest& request, const wire::Ticket& ticket,
                              const std::shared_ptr<ServedPull>& session);
  ServedPulls PullsOf(const Model& model) const;
  void Refused(const std::string& model);
  PullCoding CodingFor(const PullRequest& request);
  static uint32_t HistoryWanted(const PullCoding& coding, const Published& now);
  void CutReaders(const Model* model, uint32_t half);
  void DoChores();
  static void Bury(std::shared_ptr<Model> model, Leaving& leaving);
  /// Cuts pulls whose time is over and forgets those that have ended. True when some are left.
  bool Sweep();
  void CountFinished(const ServedPull& pull);  // REQUIRES: mu_ held

  const SenderOptions options_;
  const ModelOptions model_options_;
  const AgentLimits limits_;
  ThreadPool& pool_;
  CoderRates coder_rates_;
  Attachments attachments_;

  mutable Mutex mu_;
  CondVar cv_;  // a name's turn is over, or stopping
  bool stopping_ = false;
  std::map<std::string, Entry> models_;
  std::map<std::string, std::shared_ptr<Leaving>> leaving_;
  std::set<std::string> registering_;
  std::map<wire::Ticket, std::shared_ptr<ServedPull>> pulls_;
  std::map<std::string, PullCounts> finished_pulls_;
  std::map<std::string, std::shared_ptr<LinkEstimate>> links_;  // by receiver
  const std::shared_ptr<Chores> chores_ = std::make_shared<Chores>();
  Thread thread_;
};

}  // namespace deltawire::sender
