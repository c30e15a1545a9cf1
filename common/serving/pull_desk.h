// Grants pulls over StateSources, ties bulk streams to them by ticket, ends those whose time is
// over, and counts what they moved; it also keeps the attached receivers. Owner: the daemon that
// serves. Threads: every method from any; a thread of its own ends pulls. While it holds its lock
// it calls into no source or pull. Cost: one thread, 4096 pulls at most. Errors name the model.
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
  /// The version that is still coming here and that the receiver can take; epoch 0: none. If `at`
  /// is set as well, it is the same version, and the pull ends there.
  Identity incoming;
  uint64_t ahead_bytes = 0;        ///< see PullTerms
  std::vector<uint32_t> suspects;  ///< chunks whose bytes came with another digest before
  std::string site;                ///< label of the receiver's site; empty: it says none
  std::string principal;           ///< who asks; empty: the daemon knows no principals
  /// Whether a stream comes from whoever asks; null: its ticket is proof enough.
  std::function<Status(const wire::Hello&, const net::StreamPeer&)> admits;
};
struct PullTicket {
  wire::Ticket ticket{};
  uint32_t history = 0;  ///< how many deltas the receiver should keep
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

/// What the daemon's options say of pulls.
struct PullTraits {
  std::optional<kernels::Codec> codec = kernels::Codec::kFast;  ///< none: chosen chunk by chunk
  uint32_t history = 0;
  /// Pulls that read a half when it is to be written end within this. A frame that reads one for a
  /// quarter of this is late, and the frames after it are copied.
  std::chrono::milliseconds grace{250};
  uint64_t rate_limit_per_receiver = 0;  ///< bytes per second; 0: none
  uint64_t rate_limit_per_site = 0;      ///< the same for all receivers of a site together
  StageObserver stages;                  ///< told of each pull that has ended as it should
  bool in_order = false;  ///< Changed is called by one at a time; see VersionFeed::Publish
};

class PullDesk {
 public:
  using Pulls = std::vector<std::shared_ptr<ServedPull>>;

  PullDesk(const PullTraits& traits, const PullLimits& limits, CoderRates& rates);
  ~PullDesk();

  /// Grants a pull of `source`. `still` returns whether `source` is still the model of its name. It
  /// is called when the pull stands in the table, so that a Drop at the same time either finds the
  /// pull or makes `still` false.
  /// With `incoming` the pull is of a version that still comes: chunks go out as they come, and the
  /// pull ends at that version.
  StatusOr<PullTicket> Open(const PullRequest& request, const std::shared_ptr<StateSource>& source,
                            const std::function<bool()>& still,
                            std::shared_ptr<IncomingVersion> incoming = nullptr);
  void Refused(const std::string& model);
  /// See net::PullSource.
  StatusOr<std::shared_ptr<net::PullSession>> Join(const wire::Hello& hello,
                                                   const net::StreamPeer& peer);

  /// Tells the attached receivers and the running pulls what `source` has published.
  void Changed(const StateSource& source);
  /// Cuts the pulls that still read `half`.
  void CutReaders(const StateSource& source, uint32_t half, std::string_view why);
  /// Forgets and cuts the pulls of a source that has lost its name.
  void Drop(const StateSource& source, const Status& why);

  struct Counts {
    uint32_t active = 0;
    uint64_t bytes_sent = 0;
    uint64_t bytes_ahead = 0;  ///< of these, sent on as they came; see PullTally
    uint64_t cut = 0;
    uint64_t refused = 0;
    FormCounts sent;
    Admission::Counts admission;
  };
  Counts CountsOf(const std::string& model) const;
  /// The number of bulk streams that were refused because their ticket was unknown or granted to
  /// somebody else.
  uint64_t streams_refused() const { return streams_refused_; }

  /// The link to a receiver, over its pulls of all models; zeros: it is not known.
  LinkView LinkTo(const std::string& receiver_id) const;

  Attachments& attachments() { return attachments_; }
  const Attachments& attachments() const { return attachments_; }

  /// Ends every wait and every pull, and grants no other. Does not wait for streams.
  void Stop(const Status& why);
  /// After Stop: ends the thread and drops all pulls.
  void Close();

 private:
  using Tickets = std::map<wire::Ticket, std::shared_ptr<ServedPull>>;

  Status CheckRequest(const PullRequest& request, const StateSource& source) const;
  /// Adds the session to the table, if the limits allow it; returns the pulls that it replaces.
  StatusOr<Pulls> Enter(const PullRequest& request, const wire::Ticket& ticket,
                        const std::shared_ptr<ServedPull>& session,
                        const std::function<bool()>& still);
  Status Add(const PullRequest& request, const wire::Ticket& ticket,
             const std::shared_ptr<ServedPull>& session);
  Pulls PullsOf(const StateSource& source) const;
  PullCoding CodingFor(const PullRequest& request);
  /// The bucket of that name, which is made if it is new; null where `bytes_per_s` is no limit.
  std::shared_ptr<TokenBucket> RateFor(const std::string& name, uint64_t bytes_per_s);
  static uint32_t HistoryWanted(const PullCoding& coding, const Published& now);
  void Run();
  /// Cuts pulls whose time is over and forgets those that have ended. True when some are left.
  bool Sweep();
  void CountCut(const StateSource& source, const ServedPull& pull, std::string_view why);
  static void AddTo(Counts& counts, const ServedPull& pull);
  Status CheckLimits(const PullRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

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

/// The version that `request` wants while it comes, if that is what is coming; null: it is
/// published or nothing is wanted but what is. kAborted: it does not come any more.
StatusOr<std::shared_ptr<IncomingVersion>> IncomingFor(const PullRequest& request,
                                                       std::shared_ptr<IncomingVersion> coming,
                                                       const StateSource& source);

/// What the service for receivers needs of the daemon that serves them.
class PullHost {
 public:
  virtual ~PullHost() = default;
  /// kNotFound names the models that there are.
  virtual StatusOr<std::shared_ptr<StateSource>> Source(const std::string& model) const = 0;
  virtual StatusOr<PullTicket> OpenPull(const PullRequest& request) = 0;
  virtual Attachments& attachments() = 0;
  /// Host that receivers dial for weights; empty: the one that they dialled for control.
  virtual const std::string& advertise_host() const = 0;
};

}  // namespace deltawire
