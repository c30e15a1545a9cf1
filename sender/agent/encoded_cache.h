// Chunks of one published version in the form that they travel in, made once for many receivers.
// Owner: the Published state; pulls hold what they send by shared_ptr. Threads: any; who asks for
// what another thread is making waits for it. Cost: payload bytes up to a limit; beyond it payloads
// are made again for each receiver.
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

namespace deltawire::sender {

/// One payload. Without bytes: this codec does not make it smaller (fast: the changes cancelled).
struct Encoded {
  kernels::Codec codec = kernels::Codec::kFast;
  std::vector<std::byte> bytes;
  uint64_t xxh3 = 0;
};

class EncodedCache {
 public:
  /// Names the payload from the state before `first`, a delta of the published state's log.
  struct Key {
    const ChunkDelta* first = nullptr;
    kernels::Codec codec = kernels::Codec::kFast;
    size_t depth = 0;      ///< of history
    uint32_t context = 0;  ///< its check: receivers at other versions have another one
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  using Value = std::shared_ptr<const Encoded>;

  explicit EncodedCache(uint64_t limit_bytes) : limit_(limit_bytes) {}

  /// The payload of `key`; `make` is called, without locks of others, when there is none. A null
  /// from `make` is handed on and not kept.
  Value Get(const Key& key, const std::function<Value()>& make);
  /// Whether Get would not need to make it.
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

}  // namespace deltawire::sender
