// Callers that asked receivers to sync: what each is yet to be told (SyncCall), and which request
// of a receiver serves whom (SyncRequests). State machines without threads. Owner: a call by its
// caller, requests by a receiver's attachment. Threads: both under the Attachments' lock. Cost: a
// receiver's report looks at those who wait for that receiver. No errors.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/serving/receiver_report.h"

namespace deltawire {

class SyncCall {
 public:
  struct Progress {
    std::string receiver_id;
    ReceiverPhase phase = ReceiverPhase::kNone;
    Identity target;
    ReceiverReport report;
  };
  using News = std::shared_ptr<const std::function<void()>>;

  /// `target`: the state that was the newest when the caller asked.
  SyncCall(const Identity& target, std::function<void()> news);

  /// What is called, without a lock, after a call below that returned true, Answered or Gone.
  const News& news() const { return news_; }

  /// The receiver of the attachment `token` was asked.
  void Asked(uint64_t token, const std::string& id);
  /// It has said how it is getting on. False: that is nothing new.
  bool Reported(uint64_t token, const ReceiverReport& report);
  /// It has said how the sync ended.
  void Answered(uint64_t token, const ReceiverReport& report);
  /// Its attachment has ended before that.
  void Gone(uint64_t token);

  /// The next thing to tell the caller. Of each receiver only the newest is kept.
  std::optional<Progress> Take();
  /// Every receiver has ended, and the caller has been told.
  bool over() const { return open_.empty() && order_.empty(); }

 private:
  struct Open {
    std::string id;
    std::optional<Progress> last;  // that was to be told
  };
  void Tell(uint64_t token, Progress progress);

  const Identity target_;
  const News news_;
  std::map<uint64_t, Open> open_;         // receivers that have not ended
  std::map<uint64_t, Progress> waiting_;  // to be told
  std::deque<uint64_t> order_;            // of waiting_, the oldest first
};

/// The requests of one receiver. A request that was sent down may be served already by a pull for
/// an older state, so a caller that comes later needs a request of its own; those who come before
/// that is sent share it.
class SyncRequests {
 public:
  /// So many may have been sent and not answered. Callers beyond them share the next one, which
  /// goes down when one of these is answered.
  static constexpr size_t kMostSent = 16;

  struct Request {
    uint64_t number = 0;
    bool force_full = false;
  };

  /// `call` waits for a sync that begins from now on. `number` is used if there is no request yet
  /// that it can share; numbers rise.
  void Add(const std::shared_ptr<SyncCall>& call, bool force_full, uint64_t number);
  /// Whether a request is to go down now. One whose callers have all gone is not.
  bool due() const;
  /// What goes down is full if one of those who still wait wants that.
  std::optional<Request> Send();
  /// Takes those whose request was answered; none if it was not sent.
  std::vector<std::shared_ptr<SyncCall>> Answered(uint64_t number);
  /// All who wait.
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
