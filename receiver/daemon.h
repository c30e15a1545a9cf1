// The receiver daemon: its replicas and their engines, and the CPU workers and bulk stream threads
// that the replicas share. main owns it. After Start, methods may be called from any thread. Errors
// name the model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/stages.h"
#include "common/base/thread_pool.h"
#include "common/config/options.h"
#include "common/net/io_threads.h"
#include "common/net/pull_transport.h"
#include "common/security/credentials.h"
#include "receiver/engine/engines.h"
#include "receiver/relay/relay.h"
#include "receiver/replica/replica.h"

namespace deltawire::receiver {

class Daemon {
 public:
  /// `receiver_id` is the name under which senders list this daemon.
  Daemon(const ReceiverOptions& options, std::string receiver_id,
         std::shared_ptr<security::Credentials> credentials, StageObserver stages = nullptr);
  ~Daemon();

  /// Starts a replica per configured model. kAlreadyExists when a directory has another owner.
  Status Start();
  /// Reads the files with the engines' keys and certificate authorities again.
  void ReloadEngineAccess();
  /// Ends all calls that wait, here and in the replicas; Stop must follow.
  void BeginStop();
  void Stop();

  StatusOr<Replica*> Find(const std::string& model) const;
  std::vector<Replica*> Replicas() const;
  /// The model's engines; null when none is configured.
  Engines* EnginesOf(const std::string& model) const;
  /// Serves the replicas' versions to other receivers; null without --bulk-listen.
  Relay* relay() const { return relay_.get(); }
  const ReceiverOptions& options() const { return options_; }
  const std::string& receiver_id() const { return receiver_id_; }
  const CoderRates& coder_rates() const { return rates_; }
  size_t pool_threads() const { return pool_.size(); }

 private:
  const ReceiverOptions options_;
  const std::string receiver_id_;
  const uint64_t relay_number_;  // by which this daemon knows itself in RelayNews::path; 0: none
  ThreadPool pool_;
  net::IoThreads io_;
  const std::shared_ptr<security::Credentials> credentials_;
  const StageObserver stages_;
  std::shared_ptr<net::Tls> tls_;  // null: bulk streams are plaintext; fixed after Start
  CoderRates rates_;
  /// Lets engines read a replica's directory.
  class Source;
  void StartEngines(const std::string& model);
  /// The senders of a replica with these options, as its upstreams.
  std::vector<std::unique_ptr<Upstream>> UpstreamsOf(const ReplicaOptions& o) const;
  /// A receiver that is served here has reported a chunk, which has lost its digest.
  void Doubted(const std::string& model, const std::string& layout, uint32_t chunk);

  std::vector<std::shared_ptr<EngineAccess>> engine_access_;  // by engine of options_; fixed
  std::unique_ptr<Relay> relay_;                              // outlives the replicas
  std::map<std::string, std::unique_ptr<Replica>> replicas_;  // fixed after Start
  std::map<std::string, std::unique_ptr<Source>> sources_;    // the same
  std::map<std::string, std::unique_ptr<Engines>> engines_;   // the same; end before the replicas
  std::vector<Listeners::Listener> engine_listeners_;
};

}  // namespace deltawire::receiver
