// The sender agent: the models of this node, the pulls that run, the receivers that are attached.
// Owner: main. Threads: every method from any thread (gRPC's, bulk streams'). Structs in and out:
// no gRPC type here; sender/service.cc translates. Errors name the model.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/config/options.h"
#include "common/net/pull_server.h"
#include "sender/model.h"
#include "sender/pull_session.h"

namespace deltawire::sender {

/// What a receiver last said of itself.
struct ReceiverReport {
  StateId committed;
  std::string phase;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  std::string message;
  uint64_t sync_request = 0;  ///< that this report answers; 0: none
  /// Of the last pull: chunks, bytes, seconds; opaque to the agent, shown in status.
  struct {
    uint64_t chunks_full = 0, chunks_delta = 0, chunks_unchanged = 0, payload_bytes = 0;
    double seconds = 0, transfer_seconds = 0, apply_seconds = 0;
    uint64_t repaired_chunks = 0;
    uint64_t chunks_tight = 0, chunks_dense = 0, refused_chunks = 0, history_chunks = 0;
  } last_pull;
};

struct ReceiverView {
  std::string id;
  std::string model;
  std::string peer;
  double attached_seconds = 0;
  ReceiverReport report;
};

/// What goes down to a receiver.
struct SenderEvent {
  VersionInfo newest;
  uint64_t side_files_hash = 0;
  uint64_t sync_request = 0;
  bool force_full = false;
};

/// A receiver's wish to pull.
struct PullRequest {
  std::string model;
  std::string receiver_id;
  std::string fingerprint;  ///< of its layout
  uint32_t streams = 0;
  CoderSpeeds decode;       ///< of the receiver, all threads; 0: not said
  uint64_t owned_hash = 0;  ///< of the part that it takes this agent for; 0: the whole
  StateId at;               ///< where the pull shall end; epoch 0: at the newest
};
struct PullTicket {
  wire::Ticket ticket{};
  uint32_t history = 0;  ///< deltas that the receiver should keep
};

class Agent : public net::PullSource {
 public:
  Agent(const SenderOptions& options, ThreadPool& pool);
  ~Agent() override;

  /// Takes up every model that an earlier process left below data_dir.
  Status RecoverModels();

  /// `owned`: the chunks that this agent publishes; empty: all.
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
    CodecCounts sent;
  };
  PullCounts Pulls(const std::string& model) const;
  const CoderRates& coder_rates() const { return coder_rates_; }

  // Attached receivers. Attach returns a token; NextEvent blocks until there is one, the token was
  // replaced by a newer Attach of the same receiver, or `gone`.
  uint64_t Attach(const std::string& model, const std::string& id, const std::string& peer);
  void Detach(uint64_t token);
  void Report(uint64_t token, const ReceiverReport& report);
  std::optional<SenderEvent> NextEvent(uint64_t token, const std::function<bool()>& gone);
  std::vector<ReceiverView> Receivers(const std::string& model) const;

  /// Asks receivers (all attached when `ids` is empty) to sync; `progress` is called with each
  /// change until every one has committed, failed or gone. kNotFound when none is attached.
  struct Progress {
    std::string receiver_id;
    std::string phase;
    StateId target;
    ReceiverReport report;
  };
  Status TriggerSync(const std::string& model, std::vector<std::string> ids, bool force_full,
                     const std::function<bool(const Progress&)>& progress,
                     const std::function<bool()>& gone);

  /// Blocks until the model has a state other than `seen_serial`; null when stopping or gone.
  std::shared_ptr<const Published> WaitChange(const std::string& model, uint64_t seen_serial,
                                              const std::function<bool()>& gone);

  void Stop();
  const SenderOptions& options() const { return options_; }

 private:
  struct Attached {
    std::string model, id, peer;
    std::chrono::steady_clock::time_point since;
    ReceiverReport report;
    uint64_t report_serial = 0;
    uint64_t seen_serial = 0;  // of the last version event sent down
    bool first = true;
    std::vector<SenderEvent> requests;
    std::map<uint64_t, ReceiverReport> answers;  // by sync request, until TriggerSync takes them
  };

  void Adopt(const std::shared_ptr<Model>& model);
  PullCoding CodingFor(const PullRequest& request);
  static uint32_t HistoryWanted(const PullCoding& coding, const Published& now);
  void CutReaders(const Model* model, uint32_t half);
  void Sweep();
  std::vector<uint64_t> AskToSync(const std::string& model, std::vector<std::string>& ids,
                                  bool force_full, uint64_t request);

  const SenderOptions options_;
  const ModelOptions model_options_;
  ThreadPool& pool_;
  CoderRates coder_rates_;

  std::mutex register_mu_;  // taken before mu_
  mutable std::mutex mu_;
  std::condition_variable cv_;
  bool stopping_ = false;
  std::map<std::string, std::shared_ptr<Model>> models_;
  std::map<wire::Ticket, std::shared_ptr<PullSession>> pulls_;
  std::map<std::string, PullCounts> finished_pulls_;
  std::map<std::string, std::shared_ptr<LinkEstimate>> links_;  // by receiver
  std::map<uint64_t, Attached> attached_;
  uint64_t next_token_ = 1;
  uint64_t next_request_ = 1;
};

}  // namespace deltawire::sender
