// The receivers that are attached, what each last reported, and the events that go down to them;
// also what orchestrators watch, and the wait for the answers to sync requests. Owner: the
// PullDesk. Threads: every method from any; its lock is a leaf. Cost: a change calls the callbacks
// of those whom it concerns, each of which then takes what is newest. Errors name the model and the
// receiver.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/assignment.h"
#include "common/base/checked_mutex.h"
#include "common/base/group_word.h"
#include "common/base/incoming_news.h"
#include "common/base/receiver_id.h"
#include "common/base/receiver_phase.h"
#include "common/base/relay_news.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/pull_stats.h"
#include "common/delta/version_info.h"
#include "common/serving/receiver_report.h"
#include "common/serving/sync_call.h"

namespace deltawire {

struct ReceiverView {
  std::string id;
  std::string model;
  std::string peer;
  double attached_seconds = 0;
  ReceiverReport report;
  SiteOffer offer;
  bool member = false;  ///< of a group
};

/// What goes down to a receiver: a new version, a request, or a beat that repeats the newest
/// version.
struct SenderEvent {
  uint64_t number = 0;  ///< 1, 2, 3, ... within the attachment
  VersionInfo newest;
  uint64_t sync_request = 0;
  bool force_full = false;
  RelayNews relay;                       ///< where a relay serves
  GroupWord group;                       ///< of a member of a group
  std::optional<Assignment> assignment;  ///< of a receiver that says a site
  IncomingNews incoming;                 ///< the version that is on its way to the sender itself
};

/// Is told of the receivers that have a word (SetWords), without a lock, in the order in which it
/// happened and by one thread at a time: so an attachment that has ended is told of before the one
/// that took its place reports. A call of Attachments may return before the observer has heard of
/// it, where another thread is telling it.
class MemberObserver {
 public:
  virtual ~MemberObserver() = default;
  virtual void Reported(const std::string& model, const std::string& id,
                        const ReceiverReport& report) = 0;
  /// The attachment has ended; another one may have taken its place. Also told of a receiver that
  /// is not attached when it is given its first word.
  virtual void Detached(const std::string& model, const std::string& id) = 0;
};

/// Is told of the receivers that say a site, without a lock.
class SiteObserver {
 public:
  virtual ~SiteObserver() = default;
  /// A receiver has reported; the observer hears so before the receiver's first event goes down.
  /// `changed`: this is its first report, or it follows somebody else than before, or whether it
  /// can serve has changed.
  virtual void SiteReported(const std::string& model, bool changed) = 0;
  virtual void SiteGone(const std::string& model) = 0;
};

struct AttachmentLimits {
  std::chrono::milliseconds beat{1000};     ///< the longest time between two events
  std::chrono::milliseconds silence{3000};  ///< a receiver that says nothing for longer is detached
  size_t most = 4096;                       ///< attached receivers of all models
  size_t most_per_principal = 2048;
};

/// The most bytes of a report's message that are kept: operators see it, in lists of all receivers.
inline constexpr size_t kMaxReportMessage = 4096;
/// kInvalidArgument unless it has 1 .. kMaxReceiverId bytes.
Status CheckReceiverId(const std::string& id);

class Attachments {
 public:
  explicit Attachments(const AttachmentLimits& limits = {}) : limits_(limits) {}

  const AttachmentLimits& limits() const { return limits_; }

  /// `model` has published `info`, or a new model has taken that name. An older version than the
  /// one before is a publish that was overtaken on its way here, and is ignored, unless `in_order`
  /// says that it was indeed taken after the newer one.
  void Publish(const std::string& model, const VersionInfo& info, bool in_order = false);
  /// What events say of the relay that serves `model`, from the next one on.
  void SetRelay(const std::string& model, const RelayNews& relay);
  /// What events say of the version that is coming. Receivers hear at once of a version that comes,
  /// but only with their next event that none is coming any more.
  void SetIncoming(const std::string& model, const IncomingNews& incoming);
  /// `model` is not registered any more. With an error as `ended`, every attachment to it, watch
  /// and wait of it ends with that error, until the next Publish of that name. With OK they last,
  /// since another model takes its place.
  void Forget(const std::string& model, const Status& ended = absl::OkStatus());

  /// Returns a token for the calls below. Replaces an older attachment of the same peer and id.
  /// kAlreadyExists when another peer uses that id and was heard of within the silence. `principal`
  /// is empty where the sender knows none.
  StatusOr<uint64_t> Attach(const std::string& model, const std::string& id,
                            const std::string& peer, const std::string& principal = "",
                            const SiteOffer& offer = {});
  void Detach(uint64_t token);
  /// A message that is too long is cut between characters.
  void Report(uint64_t token, const ReceiverReport& report);
  /// `committed` is called, without a lock, when a report is the first that names its state as
  /// committed; not for what a receiver already held when it attached. Set once, before Attach.
  using OnCommitted =
      std::function<void(const std::string& model, const Identity& id, const PullStats& pull)>;
  void SetOnCommitted(OnCommitted committed) { on_committed_ = std::move(committed); }
  /// What receivers of `model` are told as members of groups, by id, attached or not. A receiver
  /// whose word has changed gets an event at once, and each further event repeats the word.
  void SetWords(const std::string& model, std::map<std::string, GroupWord> words);
  /// Set once, before Attach and SetWords; it outlives this.
  void SetMemberObserver(MemberObserver* observer) { observer_ = observer; }
  /// Whom the receivers of `model` that say a site are to follow, by id. A receiver whose
  /// assignment has changed gets an event at once, and each further event repeats the assignment.
  void SetAssignments(const std::string& model, const std::map<std::string, Assignment>& all);
  /// Set once, before Attach and SetAssignments; it outlives this. Receivers that say a site and
  /// have no assignment are told from then on that none is decided yet.
  void SetSiteObserver(SiteObserver* observer) { site_observer_ = observer; }
  /// What is to go down now, or else when to ask again at the latest.
  struct Due {
    std::optional<SenderEvent> event;
    SteadyClock::time_point again;
  };
  /// Does not block. An error says why no event will come any more: detached, silent, replaced,
  /// stopping.
  StatusOr<Due> TakeEvent(uint64_t token);
  /// `news` is called, from any thread and without a lock, when TakeEvent should be asked again
  /// earlier than it said. One such call may still come after Detach.
  void OnNews(uint64_t token, std::function<void()> news);

  std::vector<ReceiverView> Receivers(const std::string& model) const;
  size_t attached(const std::string& model) const;   ///< receivers
  size_t followers(const std::string& model) const;  ///< of these, those that have a version
  /// OK, or kAlreadyExists when another peer is attached with that id. `attached`, if not null, is
  /// set to whether this peer is attached with it.
  Status MayUse(const std::string& model, const std::string& id, const std::string& peer,
                bool* attached) const;
  /// Attachments that ended by silence.
  uint64_t silent(const std::string& model) const;

  /// Asks receivers (all attached ones when `ids` is empty) to sync. The result is the caller's
  /// wait, which ends when it is dropped; `news` is called, from any thread and without a lock,
  /// when Poll may have something. kNotFound when none is attached.
  StatusOr<std::shared_ptr<SyncCall>> AskSync(const std::string& model,
                                              const std::vector<std::string>& ids, bool force_full,
                                              std::function<void()> news);
  struct SyncStep {
    std::optional<SyncCall::Progress> tell;  ///< a change of one receiver
    bool over = false;  ///< every receiver has committed, failed or gone, and all is told
  };
  /// Does not block. An error: stopping.
  StatusOr<SyncStep> Poll(SyncCall& call) const;

  struct Change {
    uint64_t serial = 0;  ///< never 0; different for each change
    VersionInfo info;
  };
  /// The model's published state, if its serial is not `seen`. An error: stopping.
  StatusOr<std::optional<Change>> ChangeAfter(const std::string& model, uint64_t seen) const;

  /// Where the attached receivers stand, seen from a version that is waited for.
  struct Census {
    uint64_t version = 0;             ///< 0: nothing is published yet
    Identity newest;                  ///< the sender's
    size_t attached = 0;              ///< receivers; Until::kServed: those that drive engines
    size_t committed = 0;             ///< those that have got the version or a later one so far
    std::vector<std::string> behind;  ///< ids of the others, kMostBehind at most
    bool operator==(const Census&) const = default;
  };
  static constexpr size_t kMostBehind = 16;
  enum class Until : uint8_t {
    kCommitted,  ///< the receiver has committed it
    kServed,     ///< all engines of the receiver serve it
  };
  /// How receivers stand to `version` (0: the newest); see CommitWait. An error: stopping.
  StatusOr<Census> CensusOf(const std::string& model, uint64_t version, bool part,
                            Until until) const;

  enum class Of : uint8_t {
    kVersions,   ///< what is published
    kReceivers,  ///< that, and receivers that come, go, commit, or whose engines serve others
  };
  /// `news` is called, from any thread and without a lock, when there may be something new of the
  /// model, also when this stops. When the result has been dropped, one last call may still come.
  using Listener = std::shared_ptr<const std::function<void()>>;
  [[nodiscard]] Listener Listen(const std::string& model, Of what, std::function<void()> news);

  /// Ends every wait with `why`.
  void Stop(const Status& why);

 private:
  struct Attached {
    std::string model, id, peer, principal;
    SiteOffer offer;
    Assignment assignment{.upstreams = {}, .undecided = true};
    bool reassigned = false;                            // since the last event that was sent down
    std::shared_ptr<const std::function<void()>> news;  // null until OnNews
    SteadyClock::time_point since, heard, acknowledged;
    ReceiverReport report;
    Identity committed;  // the last that was not empty, as it is while the only buffer changes
    uint64_t report_serial = 0;
    uint64_t seen = 0;      // serial of the Change that was last sent down
    uint64_t word = 0;      // serial of the Word that was last sent down; 0: none
    uint64_t incoming = 0;  // serial of the Coming that was last sent down; 0: none
    uint64_t number = 0;    // of the last event that was sent down
    SteadyClock::time_point sent;
    SyncRequests syncs;
  };

  /// Callbacks that are due; its owner calls them when it has released mu_.
  using News = std::vector<std::shared_ptr<const std::function<void()>>>;
  static void Call(const News& news);
  StatusOr<uint64_t> Enter(const std::string& model, const std::string& id, const std::string& peer,
                           const std::string& principal, const SiteOffer& offer, News& news);
  /// Adds the callback by which this receiver's events are asked for.
  static void Wake(const Attached& a, News& news);
  /// Adds the listeners whom a change concerns; an empty model stands for all.
  void Tell(const std::string& model, Of what, News& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  using Entry = std::map<uint64_t, Attached>::iterator;
  void Erase(Entry entry, News& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Note(const std::string& model, const VersionInfo& info, bool in_order, News& news)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// `news` is of the observer alone: whoever asks is told by the error.
  StatusOr<Due> Take(uint64_t token, News& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  struct Word {
    GroupWord word;
    uint64_t serial = 0;
  };
  const Word* WordFor(const std::string& model, const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Has the observers told that the attachment of a member, or of one of a site, is over. Callers
  /// then call TellMembers.
  void TellGone(const Attached& a, News& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The error that ends whatever is about `model` now; OK: nothing does.
  Status Ended(const std::string& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Tells the member observer what it has not heard yet, unless another thread does.
  void TellMembers() ABSL_LOCKS_EXCLUDED(mu_);
  /// To be told by TellMembers; no report: the receiver has gone.
  void NoteMember(const std::string& model, const std::string& id,
                  std::optional<ReceiverReport> report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Silent(const Attached& a, SteadyClock::time_point now) const;
  /// Tells those who asked the receiver to sync what it has just reported, or that it has gone.
  static void TellCallers(uint64_t token, Attached& a, News& news);
  static void TellCallersGone(uint64_t token, Attached& a, News& news);

  Census Count(const std::string& model, uint64_t version, bool part, Until until) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Whether a state of several senders' parts holds what this one published in its newest epoch.
  bool HoldsPart(const std::string& model, const Identity& committed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AttachmentLimits limits_;
  OnCommitted on_committed_;
  /// What the member observer is to hear.
  struct MemberEvent {
    std::string model, id;
    std::optional<ReceiverReport> report;  // none: it has gone
  };
  MemberObserver* observer_ = nullptr;
  SiteObserver* site_observer_ = nullptr;
  mutable CheckedMutex mu_;
  // In the order in which they happened.
  std::list<MemberEvent> member_events_ ABSL_GUARDED_BY(mu_);
  // The newest of them of each member: one that has not been told is replaced by the next report.
  std::map<std::pair<std::string, std::string>, std::list<MemberEvent>::iterator> newest_event_
      ABSL_GUARDED_BY(mu_);
  bool telling_members_ ABSL_GUARDED_BY(mu_) = false;
  Status stopped_ ABSL_GUARDED_BY(mu_);  // not OK: why every wait ends
  std::map<std::string, Change> newest_ ABSL_GUARDED_BY(mu_);
  // The last kRemembered that were published.
  std::map<std::string, std::deque<Identity>> recent_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Status> ended_ ABSL_GUARDED_BY(mu_);  // by model; see Forget
  std::map<std::string, RelayNews> relays_ ABSL_GUARDED_BY(mu_);
  struct Coming {
    IncomingNews news;
    uint64_t serial = 0;
  };
  std::map<std::string, Coming> incoming_ ABSL_GUARDED_BY(mu_);
  // By model and id.
  std::map<std::string, std::map<std::string, Word>> words_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Attached> attached_ ABSL_GUARDED_BY(mu_);
  // Of attached_. With thousands of receivers nobody who comes shall look at each of them.
  // By model and id.
  std::map<std::pair<std::string, std::string>, uint64_t> by_name_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> of_principal_ ABSL_GUARDED_BY(mu_);
  struct Hearer {
    std::string model;
    Of what = Of::kVersions;
    std::weak_ptr<const std::function<void()>> news;
  };
  std::vector<Hearer> hearers_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, uint64_t> silent_ ABSL_GUARDED_BY(mu_);
  uint64_t next_serial_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t next_token_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t next_request_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace deltawire
