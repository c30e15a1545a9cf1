// The way back to the bytes of one published state whose half may be written to: later deltas up to
// a limit, and old bytes of the chunks to which no delta leads back. The VersionStore feeds it. The
// old bytes of all states of a model share one budget, so a chunk may have no way back.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/delta/delta_log.h"

namespace deltawire {

/// A chunk's bytes in one state, shared by the ways back to that state and to earlier ones.
class OldBytes {
 public:
  struct Budget {
    explicit Budget(uint64_t bytes) : limit(bytes), left(bytes) {}
    uint64_t used() const { return limit - left; }
    const uint64_t limit;
    std::atomic<uint64_t> left;
  };
  /// Null: the budget is spent.
  static std::shared_ptr<const OldBytes> Copy(std::shared_ptr<Budget> budget, Bytes from);
  ~OldBytes() { budget_->left += size_; }
  OldBytes(const OldBytes&) = delete;
  OldBytes& operator=(const OldBytes&) = delete;
  Bytes bytes() const { return {memory_.get(), size_}; }

 private:
  OldBytes(std::shared_ptr<Budget> budget, size_t size) : budget_(std::move(budget)), size_(size) {}
  const std::shared_ptr<Budget> budget_;
  const size_t size_;
  std::unique_ptr<std::byte[]> memory_;
};

class WayBack {
 public:
  /// Old bytes replace deltas beyond `delta_limit` bytes.
  explicit WayBack(uint64_t delta_limit) : delta_limit_(delta_limit) {}

  // For the VersionStore.
  /// Sets the state. `serial`: its place among all states of the process; 0: unknown, and no delta
  /// leads back to it. REQUIRES: no other thread has this object yet.
  void Begin(uint64_t serial, std::shared_ptr<const std::vector<uint64_t>> digests);
  uint64_t serial() const { return serial_; }
  /// Marks the state as the end of a pull while the result lives.
  static std::shared_ptr<const void> Pin(std::shared_ptr<WayBack> way);
  bool pinned() const { return pins_ > 0; }
  /// Begins with the deltas that lead from the state to the newest one.
  void Start(LogView since);
  /// Appends `delta`, which leads to the newest state, the `serial`-th.
  void Follow(std::shared_ptr<const Delta> delta, uint64_t serial);
  /// Forgets all deltas until Start, since one is unknown or no pull needs them.
  void Break();
  /// A chunk in the newest state.
  struct Base {
    uint32_t chunk = 0;
    uint64_t serial = 0;  ///< of that state
    uint64_t digest = 0;
  };
  /// Whether the old bytes of the chunk, which the next version changes, are needed. `undoable`:
  /// the version's delta can undo the change.
  bool Wants(const Base& base, bool undoable) const;
  void Keep(const Base& base, std::shared_ptr<const OldBytes> old);
  void ForgetOldBytes();
  /// Has the pulls that end at this state cut, since pulls hold too many old deltas.
  void Discard() { discarded_ = true; }
  bool discarded() const { return discarded_; }
  /// The newest state to which a delta leads.
  uint64_t reached() const;

  // For pulls.
  struct Way {
    std::shared_ptr<const OldBytes> from;  ///< null: the newest state's bytes
    std::vector<const ChunkDelta*> chain;  ///< deltas to undo on these, the newest last
    LogView keep;                          ///< owns the chain
  };
  /// Finds the way from `newest`, the caller's chunk; serial 0: the caller has none. Nullopt: some
  /// change cannot be undone.
  std::optional<Way> FindFrom(const Base& newest) const;

 private:
  struct Old {
    std::shared_ptr<const OldBytes> bytes;
    Base base;
  };
  bool full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return followed_ && since_bytes_ >= delta_limit_;
  }
  /// Finds the deltas from the chunk of `base`.
  std::optional<Way> ChainTo(const Base& base) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t delta_limit_;
  uint64_t serial_ = 0;
  std::shared_ptr<const std::vector<uint64_t>> digests_;
  std::atomic<int> pins_{0};
  std::atomic<bool> discarded_{false};
  mutable CheckedMutex mu_;
  LogView since_ ABSL_GUARDED_BY(mu_);  // the n-th leads to the state of serial_ + n + 1
  uint64_t since_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool followed_ ABSL_GUARDED_BY(mu_) = false;  // a delta, since Start
  std::map<uint32_t, Old> old_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
