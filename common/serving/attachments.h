// The attached receivers of all models, with their last reports, and the events for them. A change
// calls the receivers that it concerns, and each then takes its newest event. Callbacks run without
// a lock. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/receiver_id.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/serving/attached_receiver.h"
#include "common/serving/member_reports.h"
#include "common/serving/model_watchers.h"
#include "common/serving/version_feed.h"

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

/// An observer of the receivers that name a site. It is called without a lock.
class SiteObserver {
 public:
  virtual ~SiteObserver() = default;
  /// A receiver has reported. This call comes before the receiver's first event. `changed`: it is
  /// the first report, or the receiver's upstream or its ability to serve has changed.
  virtual void SiteReported(const std::string& model, bool changed) = 0;
  virtual void SiteGone(const std::string& model) = 0;
};

/// kInvalidArgument unless it has 1 .. kMaxReceiverId bytes.
Status CheckReceiverId(const std::string& id);

class Attachments {
 public:
  explicit Attachments(const AttachmentLimits& limits = {});

  const AttachmentLimits& limits() const { return limits_; }
  VersionFeed& feed() { return feed_; }
  ModelWatchers& watchers() { return watchers_; }

  /// Sets the callback for a report that is the first to name its state as committed, except the
  /// state that the receiver held when it attached. Call it before Attach.
  using OnCommitted =
      std::function<void(const std::string& model, const Identity& id, const PullStats& pull)>;
  void SetOnCommitted(OnCommitted committed) { on_committed_ = std::move(committed); }
  /// Call it before Attach and SetWords; the observer outlives this.
  void SetMemberObserver(MemberObserver* observer) { member_observer_ = observer; }
  /// Call it before Attach and SetAssignments; the observer outlives this. From then on, receivers
  /// that name a site and have no assignment learn that none is decided yet.
  void SetSiteObserver(SiteObserver* observer) { site_observer_ = observer; }

  /// Returns a token for the calls below. Replaces an older attachment of the same peer and id.
  /// kAlreadyExists when another peer uses that id and was heard of within the silence. `principal`
  /// is empty where the sender knows none.
  StatusOr<uint64_t> Attach(const std::string& model, const std::string& id,
                            const std::string& peer, const std::string& principal = "",
                            const SiteOffer& offer = {});
  void Detach(uint64_t token);
  void Report(uint64_t token, const ReceiverReport& report);
  /// Sets the words of groups to the receivers of `model`, by id, attached or not. A receiver whose
  /// word has changed gets an event at once, and each further event repeats the word.
  void SetWords(const std::string& model, std::map<std::string, GroupWord> words);
  /// Sets the upstreams of the receivers of `model` that name a site, by id. A receiver whose
  /// assignment has changed gets an event at once, and each further event repeats the assignment.
  void SetAssignments(const std::string& model, const std::map<std::string, Assignment>& all);

  using Due = AttachedReceiver::Due;
  /// Returns the receiver's next event without blocking. Fails once no event will come: the
  /// receiver is detached, silent or replaced, or the sender is stopping.
  StatusOr<Due> TakeEvent(uint64_t token);
  /// Sets the callback that runs when TakeEvent should be asked earlier than it said. One such call
  /// may still come after Detach.
  void OnNews(uint64_t token, std::function<void()> news);

  /// Has receivers sync: those in `ids`, or all attached ones when `ids` is empty. `news` runs when
  /// the result's Poll may have something. The call ends when the result is dropped. kNotFound when
  /// no such receiver is attached.
  StatusOr<std::shared_ptr<SyncCall>> AskSync(const std::string& model,
                                              const std::vector<std::string>& ids, bool force_full,
                                              std::function<void()> news);

  std::vector<ReceiverView> Receivers(const std::string& model) const;
  /// Calls `visit` for each attached receiver of the model, under the lock.
  void ForEach(const std::string& model,
               const std::function<void(const AttachedReceiver&)>& visit) const;
  struct Counts {
    size_t attached = 0;   ///< receivers
    size_t followers = 0;  ///< attached receivers that have a version
    uint64_t silent = 0;   ///< attachments that ended by silence, since the start
  };
  Counts CountsOf(const std::string& model) const;
  /// OK, or kAlreadyExists when another peer is attached with that id. `attached`, if not null, is
  /// set to whether this peer is attached with it.
  Status MayUse(const std::string& model, const std::string& id, const std::string& peer,
                bool* attached) const;

  /// Ends every wait with `why`.
  void Stop(const Status& why);

 private:
  using Word = AttachedReceiver::Word;
  using Entry = std::map<uint64_t, AttachedReceiver>::iterator;

  /// Asks the receivers of `model` for TakeEvent.
  void Wake(const std::string& model);
  StatusOr<uint64_t> Enter(AttachedReceiver::Who who, DueCalls& calls);
  void Erase(Entry entry, DueCalls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const Word* WordFor(const std::string& model, const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverReports();

  const AttachmentLimits limits_;
  OnCommitted on_committed_;
  MemberObserver* member_observer_ = nullptr;
  SiteObserver* site_observer_ = nullptr;
  ModelWatchers watchers_;
  VersionFeed feed_;
  MemberReports member_reports_;
  mutable CheckedMutex mu_;
  std::map<uint64_t, AttachedReceiver> attached_ ABSL_GUARDED_BY(mu_);
  // Indices of attached_, since an Attach must not look at each of thousands of receivers.
  std::map<std::pair<std::string, std::string>, uint64_t> by_name_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> of_principal_ ABSL_GUARDED_BY(mu_);
  // By model and id.
  std::map<std::string, std::map<std::string, Word>> words_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, uint64_t> silent_ ABSL_GUARDED_BY(mu_);
  uint64_t next_serial_ ABSL_GUARDED_BY(mu_) = 1;  // of words
  uint64_t next_token_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t next_request_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace deltawire
