// The pulls over StateSources that a daemon grants: it ties bulk streams to them by ticket, ends
// those that are late, and counts their bytes. It also keeps the attached receivers. While it holds
// its lock it calls into no source or pull. Thread-safe. Errors name the model.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/log_throttle.h"
#include "common/base/stages.h"
#include "common/base/sync.h"
#include "common/delta/coder_rates.h"
#include "common/net/pull_server.h"
#include "common/serving/admission.h"
#include "common/serving/attachments.h"
#include "common/serving/served_pull.h"
#include "common/serving/state_source.h"

namespace deltawire {

struct PullTicket {
  wire::Ticket ticket{};
  uint32_t history = 0;  ///< the number of deltas that the receiver should keep
  VersionInfo newest;
};

struct PullLimits {
  AttachmentLimits attachments;
  std::chrono::milliseconds ticket_life{30000};
  size_t pulls = 4096;         ///< tickets and running pulls of all models
  size_t pulls_per_peer = 16;  ///< tickets and running pulls of one peer, that is, one connection
  size_t pulls_per_address = 512;
  size_t pulls_per_principal = 1024;
};

/// The daemon's options for pulls.
struct PullTraits {
  std::optional<kernels::Codec> codec = kernels::Codec::kFast;  ///< none: chosen chunk by chunk
  uint32_t history = 0;
  /// Pulls that read a half that the trainer waits for end within this. A frame that reads one for
  /// a quarter of this is late, and the frames after it are copied.
  std::chrono::milliseconds grace{250};
  uint64_t rate_limit_per_receiver = 0;  ///< bytes per second; 0: none
  uint64_t rate_limit_per_site = 0;      ///< for all receivers of a site together
  StageObserver stages;                  ///< called for each pull that ended without an error
  bool in_order = false;                 ///< calls of Announce come in order
};

class PullDesk {
 public:
  using Pulls = std::vector<std::shared_ptr<ServedPull>>;

  PullDesk(const PullTraits& traits, const PullLimits& limits, CoderRates& rates);
  ~PullDesk();

  /// Grants a pull of `source`, or counts a refusal. If the request names `incoming`, which may be
  /// null, the pull forwards that version's chunks as they arrive. `still` returns whether `source`
  /// is still the model of its name. It is called when the pull is in the table, so that a
  /// concurrent CutAll either finds the pull or makes `still` false.
  StatusOr<PullTicket> Open(const PullRequest& request, const PullCaller& caller,
                            const std::shared_ptr<StateSource>& source,
                            std::shared_ptr<IncomingVersion> incoming,
                            const std::function<bool()>& still);
  /// See net::PullSource.
  StatusOr<std::shared_ptr<net::PullSession>> Join(const wire::Hello& hello,
                                                   const net::StreamPeer& peer);

  /// Announces the newest state of `source` to the attached receivers and the running pulls.
  void Announce(const StateSource& source);
  /// Cuts the pulls that still read `half`.
  void CutReaders(const StateSource& source, uint32_t half, std::string_view why);
  /// Cuts and forgets the pulls of a source that has lost its name.
  void CutAll(const StateSource& source, const Status& why);

  struct Counts {
    uint32_t active = 0;
    uint64_t bytes_sent = 0;
    uint64_t bytes_ahead = 0;  ///< of these, those of incoming versions
    uint64_t cut = 0;
    uint64_t refused = 0;
    FormCounts sent;
    Admission::Counts admission;
  };
  Counts CountsOf(const std::string& model) const;
  /// The number of bulk streams whose ticket was unknown or granted to another principal.
  uint64_t streams_refused() const { return streams_refused_; }

  /// The link to a receiver, from its pulls of all models; zeros if it is unknown.
  LinkView LinkTo(const std::string& receiver_id) const;

  Attachments& attachments() { return attachments_; }
  const Attachments& attachments() const { return attachments_; }

  /// Ends every wait and every pull, and grants no other. Does not wait for streams.
  void Stop(const Status& why);
  /// After Stop: ends the thread and drops all pulls.
  void Close();

 private:
  using Tickets = std::map<wire::Ticket, std::shared_ptr<ServedPull>>;

  StatusOr<PullTicket> Grant(const PullRequest& request, const PullCaller& caller,
                             const std::shared_ptr<StateSource>& source,
                             std::shared_ptr<IncomingVersion> incoming,
                             const std::function<bool()>& still);
  Status CheckRequest(const PullRequest& request, const StateSource& source) const;
  /// Adds the session to the table if the limits allow it. Returns the pulls that it replaces.
  StatusOr<Pulls> Enter(const wire::Ticket& ticket, const std::shared_ptr<ServedPull>& session,
                        const std::function<bool()>& still);
  Status Add(const wire::Ticket& ticket, const std::shared_ptr<ServedPull>& session);
  Pulls PullsOf(const StateSource& source) const;
  PullCoding CodingFor(const PullRequest& request);
  /// The bucket of that name; null if `bytes_per_s` is 0.
  std::shared_ptr<TokenBucket> RateFor(const std::string& name, uint64_t bytes_per_s);
  static uint32_t HistoryWanted(const PullCoding& coding, const Published& now);
  void Run();
  /// Cuts late pulls and forgets those that have ended. Returns whether some are left.
  bool Sweep();
  void CountCut(const StateSource& source, const ServedPull& pull, std::string_view why);
  static void AddTo(Counts& counts, const ServedPull& pull);
  Status CheckLimits(const PullTerms& terms) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PullTraits traits_;
  const PullLimits limits_;
  CoderRates& coder_rates_;
  Attachments attachments_;
  const std::shared_ptr<Admission> admission_ = std::make_shared<Admission>();
  std::atomic<uint64_t> streams_refused_{0};

  mutable CheckedMutex mu_;
  CondVar cv_;  // a pull was opened, or the desk is closed
  Status stopped_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  Tickets pulls_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Counts> finished_pulls_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<LinkEstimate>> links_ ABSL_GUARDED_BY(mu_);  // by receiver
  // By model and receiver, and by site.
  std::map<std::string, std::shared_ptr<TokenBucket>> rates_ ABSL_GUARDED_BY(mu_);
  LogThrottle join_refusals_;  // by address
  Thread thread_;
};

/// The interface of a serving daemon to the service for receivers.
class PullHost {
 public:
  virtual ~PullHost() = default;
  /// kNotFound names the models that there are.
  virtual StatusOr<std::shared_ptr<StateSource>> Source(const std::string& model) const = 0;
  virtual StatusOr<PullTicket> OpenPull(const PullRequest& request, const PullCaller& caller) = 0;
  virtual Attachments& attachments() = 0;
  /// The host that receivers dial for weights; empty: the one that they dialed for control.
  virtual const std::string& advertise_host() const = 0;
};

}  // namespace deltawire
