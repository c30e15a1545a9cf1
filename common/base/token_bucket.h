// A rate limit: how long bytes must wait so that no more than `rate` go out a second, with bursts
// of up to a tenth of a second's worth. Owner: shared by whoever sends. Threads: any. Cost: a lock.
// It does not wait itself, and keeps no order beyond that of the calls.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"

namespace deltawire {

class TokenBucket {
 public:
  /// What was not taken for so long may be taken at once.
  static constexpr std::chrono::milliseconds kBurst{100};

  /// `bytes_per_s` 0 means no limit.
  explicit TokenBucket(uint64_t bytes_per_s) : rate_(static_cast<double>(bytes_per_s)) {}

  /// Takes `bytes` now and returns how long the caller must wait before it sends them. A caller
  /// that sends nothing after all has used up its share; the next ones wait for it.
  std::chrono::nanoseconds Take(uint64_t bytes, SteadyClock::time_point now = SteadyClock::now()) {
    using std::chrono::nanoseconds;
    if (rate_ <= 0) return nanoseconds(0);
    MutexLock lock(mu_);
    free_at_ = std::max(free_at_, now - kBurst);
    const auto wait = std::chrono::duration_cast<nanoseconds>(free_at_ - now);
    free_at_ += std::chrono::duration_cast<SteadyClock::duration>(
        std::chrono::duration<double>(static_cast<double>(bytes) / rate_));
    return std::max(wait, nanoseconds(0));
  }
  bool limits() const { return rate_ > 0; }

  /// A sender that shares the bucket comes and goes.
  void Join() { ++senders_; }
  void Leave() { --senders_; }
  /// How much one sender should take at a time, at most `most`: small enough that each of those who
  /// share the bucket gets a turn ten times a second, as far as 4 KiB pieces allow that.
  size_t PieceBytes(size_t most) const {
    if (rate_ <= 0) return most;
    const double senders = static_cast<double>(std::max<int64_t>(1, senders_));
    const auto fair = static_cast<uint64_t>(std::min(rate_ / 10 / senders, 1e18));
    return std::min(most, static_cast<size_t>(std::max(kLeastPiece, fair)));
  }

 private:
  static constexpr uint64_t kLeastPiece = 4096;
  const double rate_;
  std::atomic<int64_t> senders_{0};
  CheckedMutex mu_;
  SteadyClock::time_point free_at_ ABSL_GUARDED_BY(mu_){};  // when all that was taken has gone out
};

}  // namespace deltawire
