// Decides who goes first where a sender's way out is full: followers, which need a delta, before
// newcomers, which need most of the model whole. While a follower's pull is young, newcomers share
// a fixed part of what the sender is known to send; at other times TCP alone divides the way. Like
// TokenBucket it returns times to wait. Owner: the PullDesk. Threads: any. Cost: a lock for each
// piece that is sent. Errors: none. No sockets and no clock of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"

namespace deltawire {

enum class PullClass : uint8_t { kFollower, kNewcomer };

/// A pull is a newcomer's if more than half of the bytes that are served here must go whole, since
/// the receiver has no base for them that the sender knows.
inline PullClass ClassOf(uint64_t whole_bytes, uint64_t served_bytes) {
  return 2 * whole_bytes > served_bytes ? PullClass::kNewcomer : PullClass::kFollower;
}

struct AdmissionRules {
  /// What newcomers together get of the sender's best rate while a follower goes first.
  double newcomers_share = 0.25;
  /// A follower goes first for so long from its pull's beginning. A longer pull is bound by the
  /// follower's own link, and would hold newcomers up for nothing.
  std::chrono::milliseconds first_for{2000};
  /// After a publish the followers that are expected go first for so long even before their pulls
  /// begin, so that their requests and connections meet no full queue.
  std::chrono::milliseconds expected_for{300};
  /// The best rate is that of the best `window` since the span before this one began; a span is as
  /// long as `lately`.
  std::chrono::milliseconds window{200}, lately{30000};
};

class Admission {
 public:
  using Time = SteadyClock::time_point;
  explicit Admission(const AdmissionRules& rules = {}) : rules_(rules) {}

  /// A pull of `model` with so many streams is known to be of this class; returns a name for End.
  uint64_t Begin(const std::string& model, PullClass who, uint32_t streams, Time now);
  void End(uint64_t pull);
  /// A version of `model` was published, and so many followers want it. Those whose pulls run get
  /// it by these, as with a version that was sent early. The others are expected to ask for it:
  /// each pull that begins counts as one of theirs, until as many have begun.
  void Expect(const std::string& model, size_t followers, Time now);

  /// How long a newcomer must wait before it sends `bytes` more. The answer holds only as long as
  /// first() is true: whoever waits asks first() again, and goes on at once when it is false.
  std::chrono::nanoseconds Take(uint64_t bytes, Time now);
  /// How much a newcomer's stream should take at a time, at most `most`: small enough that each
  /// gets a turn ten times a second, as far as 4 KiB pieces allow that.
  size_t PieceBytes(size_t most, Time now) const;
  /// So many bytes of any pull have reached the receiver's kernel.
  void Sent(uint64_t bytes, Time now);
  /// Whether newcomers are held back now.
  bool first(Time now) const;
  /// A newcomer of `model` has waited for so long.
  void Waited(const std::string& model, std::chrono::nanoseconds time);

  struct Counts {
    size_t followers = 0, newcomers = 0;  ///< pulls that run
    double held_back_seconds = 0;         ///< that newcomers' streams have waited, all together
  };
  Counts CountsOf(const std::string& model) const;
  /// Bytes per second; 0: not known yet.
  double best_rate(Time now) const;

 private:
  struct Pull {
    std::string model;
    PullClass who = PullClass::kFollower;
    uint32_t streams = 1;
    Time began;
  };
  bool First(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double Best(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double Share(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AdmissionRules rules_;
  mutable CheckedMutex mu_;
  std::map<uint64_t, Pull> pulls_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, double> held_back_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t newcomer_streams_ ABSL_GUARDED_BY(mu_) = 0;
  Time expected_ ABSL_GUARDED_BY(mu_){};     // until when followers are
  size_t awaited_ ABSL_GUARDED_BY(mu_) = 0;  // of these, those that have not begun
  Time free_at_ ABSL_GUARDED_BY(mu_){};      // when all that newcomers have taken has gone out
  // What was sent: the window that runs, and the best windows of this span and the one before.
  Time window_began_ ABSL_GUARDED_BY(mu_){};
  Time span_began_ ABSL_GUARDED_BY(mu_){};
  uint64_t window_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  double best_now_ ABSL_GUARDED_BY(mu_) = 0;
  double best_before_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace deltawire
