// The deltas of a pull that wait to be applied, in memory, up to a limit of bytes, and the chunks
// that must be fetched whole since what came of them does not fit. Those of a broken pull stay for
// the next. A PullSink owns it. Every method may be called from any thread, those of one delta for
// different chunks at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"
#include "receiver/buffer/chunk_bases.h"

namespace deltawire::receiver {

/// A delta that is coming in or has come.
struct StagedDelta {
  wire::FrameHeader header;
  std::shared_ptr<std::byte[]> payload;  ///< as received; once complete, the fast payload
  size_t bytes = 0;
  std::shared_ptr<std::byte[]> came;  ///< as received, if it was not fast and is forwarded
  bool complete = false;

  Bytes fast() const { return {payload.get(), bytes}; }
};

class StagedDeltas {
 public:
  explicit StagedDeltas(uint64_t limit_bytes) : limit_(limit_bytes) {}

  /// Discards incomplete deltas, and those that do not start at their chunk's base. With
  /// `at_once`, or above the limit, deltas are applied as they arrive.
  void BeginRound(const ChunkBases& bases, bool at_once);
  bool empty() const;
  bool has_refused() const;
  /// How many more bytes can be staged, before a round: at least 1.
  uint64_t room() const;
  /// The last delta of each chunk.
  std::vector<wire::FrameHeader> Ends() const;
  /// Changes `have` from what the buffer holds to what it will hold with these deltas.
  void Overlay(wire::Have& have) const;
  void Clear();
  struct All {
    std::vector<std::vector<StagedDelta>> chunks;  ///< each chunk's deltas, in order
    std::set<uint32_t> refused;
  };
  All TakeAll();

  // The calls of one delta. A chunk's last delta stays in place until the next one is added.
  /// Begins a delta. Returns the place for its payload.
  MutableBytes Add(const wire::FrameHeader& header);
  /// The chunk's last delta, with the payloads of those before it; null if the chunk was refused.
  StagedDelta* Last(uint32_t chunk, std::vector<Bytes>* before);
  /// Replaces the payload of Last by the fast one. `keep`: as `came`, for others.
  void SetFast(StagedDelta& last, std::shared_ptr<std::byte[]> fast, size_t bytes, bool keep);
  /// Last is complete. Returns the chunk's deltas if they are to be applied now.
  std::vector<StagedDelta> Complete(uint32_t chunk);
  /// Discards Last, of which not all has come.
  void Abandon(uint32_t chunk);
  /// Discards all deltas of the chunk.
  void Discard(uint32_t chunk);
  /// Discard; the chunk must be fetched whole.
  void Refuse(uint32_t chunk);
  /// The chunk has come whole, with its digest or without.
  void SetWhole(uint32_t chunk, bool right);

 private:
  void DiscardUnder(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t limit_;
  mutable CheckedMutex mu_;
  std::map<uint32_t, std::vector<StagedDelta>> staged_ ABSL_GUARDED_BY(mu_);
  std::set<uint32_t> refused_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool streaming_ ABSL_GUARDED_BY(mu_) = false;  // apply as they arrive
};

}  // namespace deltawire::receiver
