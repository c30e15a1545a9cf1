// Digests of whole chunks that arrive piece by piece, taken while the bytes are in the cache. A
// PullSink owns it. May be called from any thread, for different chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

class ArrivingDigests {
 public:
  explicit ArrivingDigests(const Buffer& buffer)
      : key_(buffer.key()),
        backend_(kernels::Best()),
        partial_(buffer.chunks().size()),
        digested_(buffer.chunks().size()) {}

  /// The chunk arrives from its first byte.
  void Start(uint32_t chunk) { partial_[chunk] = digested_[chunk] = 0; }
  /// The first `bytes` of the chunk's memory are there. Pieces may have any size.
  void Extend(uint32_t chunk, Bytes memory, size_t bytes) {
    // The digest has blocks, which only the chunk's end may cut.
    if (bytes < memory.size()) bytes -= bytes % kernels::DigestKey::kBlockBytes;
    const size_t from = digested_[chunk];
    if (bytes <= from) return;
    partial_[chunk] += backend_.digest_range(key_, memory.subspan(from, bytes - from), from);
    digested_[chunk] = static_cast<uint32_t>(bytes);
  }
  /// The digest of the bytes so far.
  uint64_t digest(uint32_t chunk) const { return partial_[chunk]; }

 private:
  const kernels::DigestKey& key_;
  const kernels::Backend& backend_;
  std::vector<uint64_t> partial_;
  std::vector<uint32_t> digested_;
};

}  // namespace deltawire::receiver
