// One receiver's attachment: its last report, its last event, and the sync requests that it has yet
// to answer. A state machine without a lock; the Attachments call it under theirs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/delta/receiver_report.h"
#include "common/delta/sender_event.h"
#include "common/serving/sync_call.h"
#include "common/serving/version_feed.h"

namespace deltawire {

/// Callbacks that are due once the caller has released its locks.
using DueCalls = std::vector<std::shared_ptr<const std::function<void()>>>;

struct AttachmentLimits {
  std::chrono::milliseconds beat{1000};     ///< the longest time between two events
  std::chrono::milliseconds silence{3000};  ///< a receiver that is silent for longer is detached
  size_t most = 4096;                       ///< attached receivers of all models
  size_t most_per_principal = 2048;
};

class AttachedReceiver {
 public:
  using Time = SteadyClock::time_point;
  struct Who {
    std::string model, id, peer, principal;
    SiteOffer offer;
  };
  /// A group's word with a number that differs for each word. A null pointer stands for no word.
  struct Word {
    GroupWord word;
    uint64_t serial = 0;
  };
  struct Due {
    std::optional<SenderEvent> event;  ///< to be sent now
    Time again;                        ///< when to ask again at the latest
  };
  /// The consequences of a report.
  struct Noted {
    bool committed = false;  ///< it is the first report of this commit since the attach
    bool census = false;     ///< its committed state or its engines' has changed
    bool site = false;       ///< it changes the plan of the receiver's site
  };

  AttachedReceiver(uint64_t token, Who who, Time now);

  const Who& who() const { return who_; }
  const ReceiverReport& report() const { return report_; }
  /// The last state that was not empty. A report names none while the only buffer changes.
  const Identity& committed() const { return committed_; }
  Time since() const { return since_; }
  /// Whether reports, or acknowledgements of events, have been missing for longer than `silence`.
  bool IsSilent(Time now, std::chrono::milliseconds silence) const;
  bool HasWord(const Word* word) const { return (word == nullptr ? 0 : word->serial) == word_; }

  /// Sets the callback that asks for TakeEvent.
  void SetNews(std::function<void()> news);
  void Wake(DueCalls& calls) const;
  /// Returns whether the assignment is new.
  bool Assign(const Assignment& assignment);
  /// Adds a caller that waits until the receiver has synced.
  void AddSync(const std::shared_ptr<SyncCall>& call, bool force_full, uint64_t number);
  /// Truncates a long message between characters.
  Noted TakeReport(const ReceiverReport& report, Time now, DueCalls& calls);
  /// `assigns`: this sender assigns upstreams.
  Due TakeEvent(const VersionFeed::State& state, const Word* word, bool assigns,
                const AttachmentLimits& limits, Time now);
  /// Ends the receiver's part in sync calls: with an error as `why` they fail, with OK they learn
  /// that the receiver has gone.
  void EndSyncs(const Status& why, DueCalls& calls);

 private:
  bool IsEventDue(const VersionFeed::State& state, const Word* word) const;

  const uint64_t token_;
  const Who who_;
  const Time since_;
  Time heard_, acknowledged_, sent_{};
  std::shared_ptr<const std::function<void()>> news_;  // null until SetNews
  ReceiverReport report_;
  bool reported_ = false;
  Identity committed_;
  SyncRequests syncs_;
  Assignment assignment_{.upstreams = {}, .undecided = true};
  // Contents of the last event, by serial; 0: none.
  uint64_t number_ = 0, version_ = 0, word_ = 0, incoming_ = 0;
  bool reassigned_ = false;  // since the last event
};

}  // namespace deltawire
