// One version's delta: for every changed chunk an encoded payload (docs/delta_format.md), or a note
// that the chunk must be sent whole. Immutable and held by shared_ptr: streams send straight from
// its memory, so the log can evict it during a send. Many threads build it through a DeltaBuilder.
// Costs the payload bytes plus 56 per changed chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/state_id.h"
#include "common/base/sync.h"

namespace deltawire {

/// Returns false for a payload nearly as large as its chunk: the whole chunk saves the receiver the
/// decoding. The delta keeps the payload, since a rollback can undo it.
inline bool WorthSending(size_t payload_bytes, size_t chunk_bytes) {
  return payload_bytes * 10 < chunk_bytes * 9;
}

struct ChunkDelta {
  uint32_t chunk = 0;
  bool full = false;     ///< no payload: the change can be neither sent as a delta nor undone
  uint64_t changed = 0;  ///< elements that differ
  uint64_t digest_before = 0;
  uint64_t digest_after = 0;
  uint64_t payload_xxh3 = 0;
  Bytes payload;  ///< points into the delta's memory; empty when full
};

class Delta {
 public:
  StateId from() const { return from_; }
  StateId to() const { return to_; }
  /// Sorted by chunk number; a chunk without an entry did not change.
  const std::vector<ChunkDelta>& chunks() const { return chunks_; }
  /// Returns the entry of `chunk`, or null when it did not change.
  const ChunkDelta* Find(uint32_t chunk) const;
  uint64_t payload_bytes() const { return payload_bytes_; }
  /// The memory counted against the log's limit: payload slabs and the table of chunks.
  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  friend class DeltaBuilder;
  Delta() = default;
  StateId from_, to_;
  std::vector<ChunkDelta> chunks_;
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  uint64_t payload_bytes_ = 0;
  uint64_t memory_bytes_ = 0;
};

/// Collects chunk deltas from many threads; Finish makes the immutable Delta.
class DeltaBuilder {
 public:
  /// Once payloads reach `payload_limit` bytes in all, further ones are discarded and their chunks
  /// marked full, so that one huge version cannot outgrow the log.
  explicit DeltaBuilder(uint64_t payload_limit) : limit_(payload_limit) {}

  /// Copies `payload`; an empty one marks the entry full. A chunk that is added twice becomes full
  /// too, because one payload no longer holds its whole change. Returns whether the payload is
  /// kept. Thread-safe.
  bool Add(ChunkDelta entry, Bytes payload);

  /// REQUIRES: no Add is running. The builder cannot be used afterwards.
  std::shared_ptr<const Delta> Finish(StateId from, StateId to);

 private:
  // Slabs grow with the delta, so that a small delta does not take a large slab.
  static constexpr size_t kFirstSlabBytes = size_t{16} << 10;
  static constexpr size_t kMaxSlabBytes = size_t{1} << 20;
  const uint64_t limit_;
  Mutex mu_;
  std::vector<ChunkDelta> chunks_;
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  uint64_t slab_bytes_ = 0;
  std::byte* cursor_ = nullptr;
  size_t room_ = 0;
  uint64_t payload_bytes_ = 0;
};

}  // namespace deltawire
