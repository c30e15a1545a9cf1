// Encoded payloads of one published version's chunks, made once for many receivers.
// Owner: the Published state; pulls hold payloads by shared_ptr. Threads: any; a thread that asks
// for a payload which another thread is making waits for it. Cost: payload bytes up to a limit;
// beyond it payloads are made again for each receiver. Errors: none of its own.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/sync.h"
#include "common/delta/delta.h"
#include "kernels/kernels.h"

namespace deltawire {

/// One payload. Empty `bytes`: this codec would not make the chunk smaller (fast: the changes
/// cancel out).
struct Encoded {
  kernels::Codec codec = kernels::Codec::kFast;
  std::vector<std::byte> bytes;
  uint64_t xxh3 = 0;
};

class EncodedCache {
 public:
  /// The limit for each published state; a version's deltas are usually much smaller.
  static constexpr uint64_t kUsualBytes = uint64_t{256} << 20;

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

  explicit EncodedCache(uint64_t limit_bytes) : limit_(limit_bytes) {}

  /// The payload of `key`. If there is none, `make` is called, without the cache's lock. A null
  /// from `make` is returned and not kept.
  Value Get(const Key& key, const std::function<Value()>& make);
  /// Whether Get would find the payload.
  bool Has(const Key& key) const;

 private:
  struct Entry {
    Mutex mu;
    Value value;
  };
  const uint64_t limit_;
  mutable Mutex mu_;
  std::map<Key, std::shared_ptr<Entry>> entries_;
  std::set<Key> made_;
  uint64_t bytes_ = 0;
};

}  // namespace deltawire
