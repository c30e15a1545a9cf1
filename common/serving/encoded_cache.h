// Encoded payloads of one published version's chunks, made once for many receivers. The Published
// state owns it, and pulls hold payloads by shared_ptr. No thread waits for a payload that another
// one is making. Payloads and their entries take memory up to a limit. Half of it keeps the first
// payloads, for receivers that come late; in the other half the newest replace the oldest.
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

/// One payload. Empty `bytes`: this codec would not make the chunk smaller (fast: the changes
/// cancel out).
struct Encoded {
  kernels::Codec codec = kernels::Codec::kFast;
  Bytes bytes;  ///< as long as `keep`
  uint64_t xxh3 = 0;
  std::shared_ptr<const void> keep;
};

class EncodedCache {
 public:
  /// The limit for each published state; a version's deltas are usually much smaller.
  static constexpr uint64_t kUsualBytes = uint64_t{256} << 20;
  /// What a payload takes beside its bytes, rounded up.
  static constexpr uint64_t kEntryBytes = 512;

  /// Names the payload that leads to the published state from the state before `first`, a delta of
  /// the published state's log.
  struct Key {
    const ChunkDelta* first = nullptr;
    kernels::Codec codec = kernels::Codec::kFast;
    size_t depth = 0;  ///< deltas of history that the payload refers to
    /// Check value of that history: it differs between receivers at different versions.
    uint32_t context = 0;
    // clang-tidy takes what the compiler makes of this operator for our code.
    // NOLINTNEXTLINE(modernize-use-nullptr)
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  using Value = std::shared_ptr<const Encoded>;

  struct Counts {
    uint64_t bytes = 0;    ///< that are kept now, kEntryBytes for each included
    uint64_t evicted = 0;  ///< payloads that gave way to newer ones
  };
  /// Sums over all caches that were made with this object: the caches of a model's states, also of
  /// older states that pulls still hold.
  struct Totals {
    std::atomic<uint64_t> bytes{0}, evicted{0};
    std::atomic<uint64_t> retired{0};  ///< of `bytes`, those of retired caches
    Counts counts() const { return {.bytes = bytes, .evicted = evicted}; }
  };

  explicit EncodedCache(uint64_t limit_bytes,
                        std::shared_ptr<Totals> totals = std::make_shared<Totals>())
      : limit_(limit_bytes), totals_(std::move(totals)) {}
  ~EncodedCache();
  /// A newer state has come. From now on, all retired caches together keep `limit` bytes; those
  /// beyond go, but never from another cache than this one.
  void Retire(uint64_t limit);

  struct Got {
    Value value;
    bool busy = false;  ///< another thread is making it
  };
  /// Get's way on if another thread is making the payload.
  enum class IfBusy : uint8_t {
    kSkip,  ///< returns `busy`
    kMake,  ///< makes it a second time, for this caller alone
  };
  /// Returns the payload of `key`. If there is none, calls `make`, without the cache's lock, and
  /// keeps its result unless that is null.
  Got Get(const Key& key, const std::function<Value()>& make, IfBusy if_busy);
  /// Keeps a payload that was made elsewhere, unless there is one.
  void Put(const Key& key, Value value);
  /// Whether Get would find the payload.
  bool Has(const Key& key) const;
  /// Whether payloads were Put here, whose histories are longer than those that are used here.
  bool has_foreign() const;

  Counts counts() const;
  const std::shared_ptr<Totals>& totals() const { return totals_; }

 private:
  struct Entry {
    Value value;           // null: it is being made
    std::list<Key> place;  // the node that Keep moves to newest_, so that Keep cannot fail
  };
  using Entries = std::map<Key, Entry>;
  /// A new entry, without a value.
  Entries::iterator Insert(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Gives the entry its value, or erases it where there is no room.
  void Keep(Entries::iterator entry, Value value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Whether the limit of the retired caches has room for `bytes`, which are then taken.
  bool TakeRetired(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Evict(Entries::iterator entry, uint64_t& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t limit_;
  const std::shared_ptr<Totals> totals_;
  mutable CheckedMutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  std::list<Key> newest_ ABSL_GUARDED_BY(mu_);  // those of the second half, the oldest first
  uint64_t first_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t newest_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t evicted_ ABSL_GUARDED_BY(mu_) = 0;
  bool foreign_ ABSL_GUARDED_BY(mu_) = false;
  bool retired_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t retired_limit_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace deltawire
