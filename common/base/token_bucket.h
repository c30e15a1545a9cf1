// A rate limit: computes how long bytes must wait so that at most `rate` are sent a second, with
// bursts of a tenth of a second. It does not wait itself, and keeps only the order of the calls.
// Thread-safe.
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
  /// Unused credit accumulates up to this duration, then bursts.
  static constexpr std::chrono::milliseconds kBurst{100};

  /// `bytes_per_s` 0 means no limit.
  explicit TokenBucket(uint64_t bytes_per_s) : rate_(static_cast<double>(bytes_per_s)) {}

  /// Reserves `bytes` now and returns how long the caller must wait before it sends them. A caller
  /// that sends nothing has still used its share, and later callers wait for it.
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

  /// Count the senders that share the bucket.
  void Join() { ++senders_; }
  void Leave() { --senders_; }
  /// Returns how much one sender should take at a time, at most `most`. Pieces are small enough
  /// that each sender gets a turn ten times a second, but not below 4 KiB.
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
  SteadyClock::time_point free_at_ ABSL_GUARDED_BY(mu_){};  // when all reserved bytes are sent
};

}  // namespace deltawire
