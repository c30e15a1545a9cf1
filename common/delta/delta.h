// One version's delta: for every changed chunk an encoded payload, or a note that it goes whole.
// Immutable once built, held by shared_ptr: streams send straight from its memory, so eviction from
// the log never pulls bytes from under a send. Built by many threads through DeltaBuilder.
// Cost: payload bytes plus 56 per changed chunk. Payloads: docs/delta_format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/state_id.h"
#include "common/base/sync.h"

namespace deltawire {

/// A payload that is nearly as large as its chunk is kept, since it can be undone, but not sent:
/// the chunk costs no decoding.
inline bool WorthSending(size_t payload_bytes, size_t chunk_bytes) {
  return payload_bytes * 10 < chunk_bytes * 9;
}

struct ChunkDelta {
  uint32_t chunk = 0;
  bool full = false;     ///< there is no payload: the change can be neither sent nor undone
  uint64_t changed = 0;  ///< elements that differ
  uint64_t digest_before = 0;
  uint64_t digest_after = 0;
  uint64_t payload_xxh3 = 0;
  Bytes payload;  ///< into the delta's memory; empty when full
};

class Delta {
 public:
  StateId from() const { return from_; }
  StateId to() const { return to_; }
  /// Sorted by chunk; chunks that are not here did not change.
  const std::vector<ChunkDelta>& chunks() const { return chunks_; }
  /// The entry of `chunk`, or null when it did not change.
  const ChunkDelta* Find(uint32_t chunk) const;
  uint64_t payload_bytes() const { return payload_bytes_; }
  /// What the log is charged: payload bytes and the table.
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
  /// Payloads beyond `payload_limit` bytes in all are dropped and their chunks marked full, so that
  /// one huge version cannot outgrow the log.
  explicit DeltaBuilder(uint64_t payload_limit) : limit_(payload_limit) {}

  /// Copies `payload`; an empty one means `entry.full`. A chunk that is added twice is full: its
  /// change is no longer one payload. Thread-safe.
  void Add(ChunkDelta entry, Bytes payload);

  /// REQUIRES: no Add is running. The builder is spent afterwards.
  std::shared_ptr<const Delta> Finish(StateId from, StateId to);

 private:
  // Slabs grow with the delta, so that a small one is not charged for a large one's memory.
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
