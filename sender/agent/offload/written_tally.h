// The tensors and bytes that the ranks of one offload report as written or unchanged. It finds
// tensors that no rank wrote, that two ranks claim, or that are both written and unchanged. Errors
// name model, version and ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/diffed_chunk.h"
#include "common/layout/layout.h"

namespace deltawire::sender {

/// The tensors and chunks that a rank has finished so far.
struct WrittenNotice {
  uint32_t rank = 0;
  std::vector<uint32_t> tensors;
  bool sole = false;  ///< no other rank writes any part of `tensors`
  /// Chunks, and the bytes of each that this rank has finished since its last notice.
  std::vector<uint32_t> chunks, chunk_bytes;
  /// Places that hold payloads. Each counts its bytes.
  std::vector<DiffedChunk> payloads;
};

struct ReadyNotice {
  uint64_t version = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t lease = 0;
  bool wrote_all = false;
  std::vector<uint32_t> written;
  std::vector<uint32_t> unchanged;
  std::string diffed_on;  ///< the device, for people; empty: this rank diffed nothing
};

class WrittenTally {
 public:
  struct Offload {
    std::string model;
    uint64_t version = 0;
    uint32_t world = 1;
  };
  /// `layout`, `chunks` and `owned` outlive the tally.
  WrittenTally(Offload offload, const Layout& layout, const ChunkTable& chunks,
               const Coverage& owned);

  /// kInvalidArgument if the notice is wrong, after which the offload can go on.
  Status Check(const WrittenNotice& notice) const;
  /// The tensors and chunks that may be diffed although other ranks still write.
  struct Final {
    std::vector<uint32_t> tensors;
    std::vector<uint32_t> chunks;
  };
  /// Adds the notice. An error concerns the whole offload. REQUIRES: Check returned OK.
  StatusOr<Final> Add(const WrittenNotice& notice);
  /// Adds the notice of a rank that is ready. An error concerns the whole offload.
  Status Mark(const ReadyNotice& notice);
  /// Fails if a tensor is neither written nor unchanged, or both. `published`: the version from
  /// which unchanged tensors are carried over, or empty.
  Status CheckComplete(const Identity& published) const;
  /// Per tensor, whether the ranks declared it unchanged.
  std::vector<bool> unchanged() const;

 private:
  /// The bytes of a chunk that ranks have reported so far.
  struct Counted {
    uint32_t bytes = 0;
    uint32_t first_rank = 0;
    bool several = false;
  };

  Status CheckTensors(const std::vector<uint32_t>& tensors) const;
  Status ClaimSole(uint32_t tensor, uint32_t rank);
  /// Returns whether the chunk is whole now.
  StatusOr<bool> Count(uint32_t chunk, uint32_t bytes, uint32_t rank);

  Offload offload_;
  const Layout& layout_;
  const ChunkTable& chunks_;
  const Coverage& owned_;
  std::vector<uint8_t> marks_;    // per tensor: kWritten | kUnchanged | kEarly
  std::vector<uint32_t> sole_;    // per tensor: 1 + its only rank, or 0
  std::vector<Counted> counted_;  // per chunk, once a rank reports chunks
};

}  // namespace deltawire::sender
