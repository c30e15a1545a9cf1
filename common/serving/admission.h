// Gives followers, which need a delta, priority over newcomers, which need most of the model whole.
// While a follower's pull is young, newcomers share a fixed part of the sender's best rate. At
// other times TCP alone divides the bandwidth. Like TokenBucket, it returns times to wait and has
// no clock of its own. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"

namespace deltawire {

enum class PullClass : uint8_t { kFollower, kNewcomer };

/// A pull is a newcomer's if more than half of the served bytes must go whole, since the receiver
/// has no base for a delta.
inline PullClass ClassOf(uint64_t whole_bytes, uint64_t served_bytes) {
  return 2 * whole_bytes > served_bytes ? PullClass::kNewcomer : PullClass::kFollower;
}

struct AdmissionRules {
  /// The share of the sender's best rate left to newcomers while a follower goes first.
  double newcomers_share = 0.25;
  /// How long a follower goes first, from its pull's beginning. A longer pull is limited by the
  /// follower's own link, and would hold newcomers back in vain.
  std::chrono::milliseconds first_for{2000};
  /// How long after a publish expected followers go first before their pulls begin, so that their
  /// requests and connections meet no full queue.
  std::chrono::milliseconds expected_for{300};
  /// The best rate is that of the best `window` in this span and the one before. A span lasts for
  /// `lately`.
  std::chrono::milliseconds window{200}, lately{30000};
};

class Admission {
 public:
  using Time = SteadyClock::time_point;
  explicit Admission(const AdmissionRules& rules = {}) : rules_(rules) {}

  /// Adds a pull of `model`. Returns a name for End.
  uint64_t Begin(const std::string& model, PullClass who, uint32_t streams, Time now);
  void End(uint64_t pull);
  /// Announces that `followers` want a new version of `model`. Running pulls bring it to their
  /// followers. The others are expected to ask for it: each pull that begins counts as one of them.
  void Expect(const std::string& model, size_t followers, Time now);

  /// Returns how long a newcomer must wait before it sends `bytes` more. The wait ends at once when
  /// IsHoldingBack() becomes false.
  std::chrono::nanoseconds Take(uint64_t bytes, Time now);
  /// The size of a newcomer's next piece, at most `most`. It gives each stream a turn ten times a
  /// second, but is at least 4 KiB.
  size_t PieceBytes(size_t most, Time now) const;
  /// Counts bytes of any pull that have reached the receiver's kernel.
  void AddSent(uint64_t bytes, Time now);
  /// Whether newcomers are held back now.
  bool IsHoldingBack(Time now) const;
  /// Counts the time for which a newcomer of `model` has waited.
  void AddWait(const std::string& model, std::chrono::nanoseconds time);

  struct Counts {
    size_t followers = 0, newcomers = 0;  ///< running pulls
    double held_back_seconds = 0;         ///< sum of the waits of newcomers' streams
  };
  Counts CountsOf(const std::string& model) const;

 private:
  struct Pull {
    std::string model;
    PullClass who = PullClass::kFollower;
    uint32_t streams = 1;
    Time began;
  };
  bool HasPriority(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Bytes per second; 0: not known yet.
  double BestRate(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double NewcomersRate(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AdmissionRules rules_;
  mutable CheckedMutex mu_;
  std::map<uint64_t, Pull> pulls_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, double> held_back_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t newcomer_streams_ ABSL_GUARDED_BY(mu_) = 0;
  Time expected_ ABSL_GUARDED_BY(mu_){};     // until then, followers are expected
  size_t awaited_ ABSL_GUARDED_BY(mu_) = 0;  // expected followers whose pulls have not begun
  Time free_at_ ABSL_GUARDED_BY(mu_){};      // when all that newcomers took has been sent
  // The running window, and the best windows of this span and the one before.
  Time window_began_ ABSL_GUARDED_BY(mu_){};
  Time span_began_ ABSL_GUARDED_BY(mu_){};
  uint64_t window_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  double best_now_ ABSL_GUARDED_BY(mu_) = 0;
  double best_before_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace deltawire
