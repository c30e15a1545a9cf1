// A server of the versions that this daemon's replicas have committed, for other receivers. It has
// the service and the bulk protocol of a sender. The daemon owns it, and it outlives the replicas.
// The calls of Of come before the replicas start, all others from any thread; downstream.h has the
// threads of a Downstream. Errors name the model.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "common/base/stages.h"
#include "common/base/sync.h"
#include "common/serving/pull_desk.h"
#include "receiver/buffer/downstream.h"
#include "receiver/relay/relayed_model.h"

namespace deltawire::receiver {

class Relay : public net::PullSource, public PullHost {
 public:
  struct Options {
    std::string advertise_host;
    uint64_t delta_log_bytes = uint64_t{2} << 30;  ///< per model
    uint64_t rate_limit_per_receiver = 0, rate_limit_per_site = 0;
    /// How long pulls may hold up an update of the file that they read.
    std::chrono::milliseconds grace{250};
    StageObserver stages;  ///< observes each pull that succeeds
    uint64_t number = 0;   ///< of this relay in RelayNews::path
    /// A model that the relay lacks counts as expected for `start_patience` after the relay's own
    /// start, and for `pull_patience` after each sign of progress. Until then, the relay asks
    /// receivers that want the model to try again.
    std::chrono::milliseconds start_patience{3000}, pull_patience{10000};
  };
  Relay(const Options& options, ThreadPool& pool, CoderRates& rates);
  ~Relay() override;

  /// The Downstream for the replica of `model`. It lives as long as the relay. `on_corrupt` is
  /// called from any thread, with the layout's fingerprint, for a chunk that has lost its digest.
  Downstream* Of(const std::string& model,
                 std::function<void(const std::string& fingerprint, uint32_t chunk)> on_corrupt);

  // PullHost and PullSource.
  StatusOr<std::shared_ptr<StateSource>> Source(const std::string& model) const override;
  StatusOr<PullTicket> OpenPull(const PullRequest& request, const PullCaller& caller) override;
  Attachments& attachments() override { return desk_.attachments(); }
  const std::string& advertise_host() const override { return options_.advertise_host; }
  StatusOr<std::shared_ptr<net::PullSession>> Join(const wire::Hello& hello,
                                                   const net::StreamPeer& peer) override {
    return desk_.Join(hello, peer);
  }

  struct Served {
    PullDesk::Counts pulls;
    size_t receivers = 0;  ///< attached ones
    uint64_t log_bytes = 0;
    EncodedCache::Counts encoded;
    EncodedCache::Counts early_encoded;  ///< of versions that went on as they came
  };
  Served ServedOf(const std::string& model) const;

  /// Ends every pull and attachment, and grants no other.
  void Stop();

 private:
  class Channel;
  void SetModel(const std::string& name, std::shared_ptr<RelayedModel> model);
  std::shared_ptr<RelayedModel> Find(const std::string& name) const;

  const Options options_;
  ThreadPool& pool_;
  PullDesk desk_;
  std::map<std::string, std::unique_ptr<Channel>> channels_;  // fixed before the replicas start
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<RelayedModel>> models_;
};

}  // namespace deltawire::receiver
