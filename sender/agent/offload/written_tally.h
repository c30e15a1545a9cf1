// The tensors and bytes that the ranks of one offload say they have written, or left unchanged. It
// finds tensors that no rank wrote, that two ranks claim, or that are both written and unchanged.
// It costs 5 bytes per tensor, and 12 per chunk once a rank counts bytes. Errors name model,
// version and ranks.
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
  /// Chunks, and how many bytes of each this rank has finished since its last notice; equally long.
  std::vector<uint32_t> chunks, chunk_bytes;
  /// Chunks that hold payloads: of the only rank, or `sole`.
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
  std::string diffed_on;  ///< for people; empty: nothing was diffed at this rank
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

  /// kInvalidArgument if the notice itself is wrong; the offload can go on then.
  Status Check(const WrittenNotice& notice) const;
  /// The tensors and chunks that may be diffed although other ranks still write.
  struct Final {
    std::vector<uint32_t> tensors;
    std::vector<uint32_t> chunks;
  };
  /// Adds the notice. An error concerns the whole offload. REQUIRES: Check returned OK.
  StatusOr<Final> Add(const WrittenNotice& notice);
  /// Adds what a rank declares when it is ready. An error concerns the whole offload.
  Status Mark(const ReadyNotice& notice);
  /// An error if a tensor is not accounted for, or is both written and unchanged. `published`: the
  /// version to carry unchanged tensors over from; may be empty.
  Status CheckComplete(const Identity& published) const;
  /// Per tensor, whether the ranks declared it unchanged.
  std::vector<bool> unchanged() const;

 private:
  /// Bytes of a chunk that ranks have counted so far.
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
  std::vector<uint32_t> sole_;    // per tensor: 1 + the rank that alone writes it, or 0
  std::vector<Counted> counted_;  // per chunk, once a rank counts
};

}  // namespace deltawire::sender
