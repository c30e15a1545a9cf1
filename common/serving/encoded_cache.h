// Encoded payloads of one published version's chunks, made once for many receivers. No thread waits
// for a payload that another one makes. Half of the memory limit keeps the first payloads, for late
// receivers. In the other half the newest payloads replace the oldest. Thread-safe.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/delta/delta.h"
#include "kernels/kernels.h"

namespace deltawire {

/// One payload. Empty `bytes` mean that this codec would not make the chunk smaller, or, for fast,
/// that the changes cancel out.
struct Encoded {
  kernels::Codec codec = kernels::Codec::kFast;
  Bytes bytes;  ///< live as long as `keep`
  uint64_t xxh3 = 0;
  std::shared_ptr<const void> keep;
};

class EncodedCache {
 public:
  /// The limit for each published state; a version's deltas are usually much smaller.
  static constexpr uint64_t kUsualBytes = uint64_t{256} << 20;
  /// The memory of an entry beside its payload's bytes, rounded up.
  static constexpr uint64_t kEntryBytes = 512;

  /// Names the payload that leads to the published state from the state before `first`, a delta of
  /// the published state's log.
  struct Key {
    const ChunkDelta* first = nullptr;
    kernels::Codec codec = kernels::Codec::kFast;
    size_t depth = 0;  ///< deltas of history that the payload refers to
    /// Check value of that history: it differs between receivers at different versions.
    uint32_t context = 0;
    // clang-tidy reports the code that the compiler generates for this operator.
    // NOLINTNEXTLINE(modernize-use-nullptr)
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  using Value = std::shared_ptr<const Encoded>;

  struct Counts {
    uint64_t bytes = 0;    ///< of the payloads, and kEntryBytes for each
    uint64_t evicted = 0;  ///< payloads that newer ones have replaced
  };
  /// Sums over the caches of a model's states, including older states that pulls still hold.
  struct Totals {
    std::atomic<uint64_t> bytes{0}, evicted{0};
    std::atomic<uint64_t> retired{0};  ///< the part of `bytes` in retired caches
    Counts counts() const { return {.bytes = bytes, .evicted = evicted}; }
  };

  explicit EncodedCache(uint64_t limit_bytes,
                        std::shared_ptr<Totals> totals = std::make_shared<Totals>())
      : limit_(limit_bytes), totals_(std::move(totals)) {}
  ~EncodedCache();
  /// Retires the cache of a state that is not the newest any more. All retired caches together keep
  /// `limit` bytes; this one discards payloads beyond that.
  void Retire(uint64_t limit);

  struct Got {
    Value value;
    bool busy = false;  ///< another thread is making it
  };
  /// Get's behavior while another thread makes the payload.
  enum class IfBusy : uint8_t {
    kSkip,  ///< returns `busy`
    kMake,  ///< makes the payload again, for this caller alone
  };
  /// Returns the payload of `key`. If there is none, calls `make`, without the cache's lock, and
  /// keeps its result unless that is null.
  Got Get(const Key& key, const std::function<Value()>& make, IfBusy if_busy);
  /// Keeps a payload from another sender, unless there is one.
  void Put(const Key& key, Value value);
  /// Whether Get would find the payload.
  bool Has(const Key& key) const;
  /// Whether payloads were Put here. Their histories may be longer than this daemon's option.
  bool has_foreign() const;

  Counts counts() const;
  const std::shared_ptr<Totals>& totals() const { return totals_; }

 private:
  struct Entry {
    Value value;           // null while it is made
    std::list<Key> place;  // a node that Keep moves to newest_, so that Keep cannot fail
  };
  using Entries = std::map<Key, Entry>;
  /// Adds an entry without a value.
  Entries::iterator Insert(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Gives the entry its value, or erases it if there is no room.
  void Keep(Entries::iterator entry, Value value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Takes `bytes` of the retired caches' limit. Returns false if there is no room.
  bool TakeRetired(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Evict(Entries::iterator entry, uint64_t& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t limit_;
  const std::shared_ptr<Totals> totals_;
  mutable CheckedMutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  std::list<Key> newest_ ABSL_GUARDED_BY(mu_);  // the second half, the oldest first
  uint64_t first_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t newest_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t evicted_ ABSL_GUARDED_BY(mu_) = 0;
  bool foreign_ ABSL_GUARDED_BY(mu_) = false;
  bool retired_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t retired_limit_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace deltawire
