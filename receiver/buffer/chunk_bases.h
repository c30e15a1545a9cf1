// The base of every chunk: its newest verified bytes, from which an update of a buffer starts or
// goes on. It lies in the file that the update changes once the update has touched the chunk, else
// in the other one. A Buffer owns it. Chunk calls may come from any thread, for different
// chunks; the rest from one at a time. It takes a byte per chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/wire/messages.h"
#include "receiver/buffer/weight_files.h"

namespace deltawire::receiver {

class ChunkBases {
 public:
  ChunkBases(WeightFiles& files, const Layout& layout, const ChunkTable& chunks, ThreadPool* pool);

  /// The slot with chunk i's base; -1: it has none.
  int slot_of(uint32_t i) const;
  /// Whether chunk i has a base, and the base's digest and bytes. The bytes are read-only, and
  /// valid until Prepare(i) or MarkUnknown(i).
  bool known(uint32_t i) const { return slot_of(i) >= 0; }
  uint64_t digest(uint32_t i) const;
  Bytes bytes(uint32_t i) const;
  /// The identity that the buffer last was wholly, and every chunk's base.
  wire::Have have() const;

  /// The slot of the file that the update changes, or was changing when it broke off; -1: none.
  int slot() const { return slot_; }
  /// An update begins, or goes on, in the slot's file. `fresh`: that file has no chunk yet.
  void Begin(int slot, bool fresh);
  /// Takes up an update of the slot's file that an earlier process has left. False: it had brought
  /// no chunk.
  bool Resume(int slot);
  /// The update's file has become the front one.
  void End() { slot_ = -1; }
  /// Forgets the chunks that the update has touched. REQUIRES: a front file.
  void Revert();

  // REQUIRES for the next four: an update has begun.
  /// Ensures that chunk i of the update's file has the bytes with `digest` (if needed by a checked
  /// copy from the other file), marks the chunk unknown and returns its bytes. kDataLoss when the
  /// base has another digest, or other bytes than its digest.
  StatusOr<MutableBytes> Prepare(uint32_t i, uint64_t digest);
  void MarkUnknown(uint32_t i);
  /// Chunk i of the update's file, to be written whole. REQUIRES: MarkUnknown(i) before.
  MutableBytes chunk(uint32_t i) { return files_.slot(slot_).bytes(i); }
  /// Records chunk i's new version and digest. REQUIRES: its bytes are whole and verified.
  void Set(uint32_t i, uint64_t version, uint64_t digest);

  /// The digests of all bases. kInternal when a chunk has none; kDataLoss when they have another
  /// root than `whole`.
  StatusOr<std::vector<uint64_t>> DigestsOf(const Identity& whole) const;
  /// Copies the bases that the update's file lacks into it. kDataLoss when a base has lost its
  /// digest: such chunks are withdrawn.
  Status FillFile(const std::vector<uint64_t>& digests);
  /// Checks `chunks` in both files and marks those unknown that lack their digest. If the front
  /// file has such a chunk, it loses its name until the next commit.
  Status Withdraw(std::span<const uint32_t> chunks);
  /// The chunks that FillFile has found corrupt since the last call.
  std::vector<uint32_t> TakeCorrupt() { return std::exchange(corrupt_, {}); }

 private:
  WeightFiles& files_;
  const Layout& layout_;
  const ChunkTable& chunks_;
  ThreadPool* const pool_;
  std::atomic<int> slot_{-1};
  std::vector<uint8_t> touched_;  // chunks that the update has touched
  std::vector<uint32_t> corrupt_;
};

}  // namespace deltawire::receiver
