// A caller's request that receivers sync (SyncCall), and one receiver's requests with the callers
// that each serves (SyncRequests).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/receiver_report.h"

namespace deltawire {

/// The progress that a caller has yet to read. Attachments write it, the caller polls it.
/// Thread-safe.
class SyncCall {
 public:
  struct Progress {
    std::string receiver_id;
    ReceiverPhase phase = ReceiverPhase::kNone;
    Identity target;
    ReceiverReport report;
  };
  struct Step {
    std::optional<Progress> tell;  ///< a change of one receiver
    bool over = false;  ///< every receiver has answered or gone, and the caller has read it
  };
  using News = std::shared_ptr<const std::function<void()>>;

  /// `target`: the newest state when the caller asked. `news` runs when Poll may have something.
  SyncCall(const Identity& target, std::function<void()> news);

  /// The callback, which is due after Report returned true, Answer, Leave or Stop, without a lock.
  const News& news() const { return news_; }

  /// Adds the receiver of the attachment `token`.
  void Add(uint64_t token, const std::string& id);
  /// Records a receiver's progress. Returns whether it is new to the caller.
  bool Report(uint64_t token, const ReceiverReport& report);
  /// Records how a receiver's sync ended.
  void Answer(uint64_t token, const ReceiverReport& report);
  /// Records that an attachment has ended without an answer.
  void Leave(uint64_t token);
  /// Fails the call with `why`.
  void Stop(const Status& why);

  /// Returns the next change without blocking. Only the newest change of each receiver is kept.
  StatusOr<Step> Poll();

 private:
  struct Open {
    std::string id;
    std::optional<Progress> last;  // queued for the caller
  };
  void Queue(uint64_t token, Progress progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Identity target_;
  const News news_;
  CheckedMutex mu_;
  Status stopped_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Open> open_ ABSL_GUARDED_BY(mu_);         // receivers without an answer
  std::map<uint64_t, Progress> waiting_ ABSL_GUARDED_BY(mu_);  // for the caller
  std::deque<uint64_t> order_ ABSL_GUARDED_BY(mu_);            // of waiting_, the oldest first
};

/// The requests to one receiver. A request that was sent may already be served by a pull of an
/// older state, so a later caller needs another request. Callers share the request that has not
/// been sent yet. The attachment owns this and guards it.
class SyncRequests {
 public:
  /// Bound on the requests that were sent and not answered. Further callers share the next one,
  /// which is sent after an answer.
  static constexpr size_t kMostSent = 16;

  struct Request {
    uint64_t number = 0;
    bool force_full = false;
  };

  /// Adds a caller that waits for a sync that begins from now on. `number` becomes that of its
  /// request if there is none to share; numbers rise.
  void Add(const std::shared_ptr<SyncCall>& call, bool force_full, uint64_t number);
  /// Whether a request should be sent now. One whose callers have all gone should not.
  bool due() const;
  /// Takes the request to send. It is full if one of its remaining callers wants that.
  std::optional<Request> Send();
  /// Removes an answered request and returns its callers; none if it was not sent.
  std::vector<std::shared_ptr<SyncCall>> TakeAnswered(uint64_t number);
  /// All callers that wait.
  std::vector<std::shared_ptr<SyncCall>> callers() const;

 private:
  using Callers = std::vector<std::weak_ptr<SyncCall>>;
  struct Caller {
    std::weak_ptr<SyncCall> call;
    bool force_full = false;
  };
  struct Unsent {
    uint64_t number = 0;
    std::vector<Caller> callers;
  };
  std::optional<Unsent> unsent_;
  std::map<uint64_t, Callers> sent_;  // by number, until answered
};

}  // namespace deltawire
