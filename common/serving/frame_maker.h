// Makes one pull's frames: a chunk of a published state, whole or as a delta, or a piece of the
// incoming version, each in the codec that suits the link. Thread-safe, without a lock while it
// copies, folds or encodes. StateSource, terms and tally outlive it.
#pragma once

#include <optional>

#include "common/base/status.h"
#include "common/delta/chunk_history.h"
#include "common/net/pull_server.h"
#include "common/serving/chunk_bytes.h"
#include "common/serving/chunk_encoder.h"
#include "common/serving/pull_tally.h"
#include "common/serving/pull_terms.h"
#include "common/serving/state_source.h"

namespace deltawire {

/// A frame to make from one chunk.
struct FrameTask {
  uint32_t chunk = 0;
  bool lift = false;  ///< from the version that this pull sent to the one that overtook it
  /// Behavior while another thread makes the payload. kSkip leaves the chunk for later.
  EncodedCache::IfBusy if_busy = EncodedCache::IfBusy::kSkip;
  ChunkPlan plan;
  ChunkHistory history;
  /// Set: a piece of the incoming version, instead of a chunk of the published state.
  std::optional<IncomingVersion::Piece> piece = {};
  wire::Have::Entry before = {};  ///< the receiver's chunk when the piece was taken
  bool as_fast = false;           ///< the receiver is missing history that the payload refers to
  kernels::Codec codec = kernels::Codec::kFast;  ///< another codec encodes the piece anew
  LeasedState base = {};                         ///< the state to encode it against
};

struct MadeFrame {
  /// Nullopt: the changes cancel out, or the chunk is left for later.
  std::optional<net::OutFrame> frame = {};
  /// The bytes of the piece are gone, or another thread is making its payload.
  bool later = false;
  std::optional<uint32_t> half = {};  ///< the half that the frame is sent from
  bool whole = false;                 ///< the frame carries the whole chunk
};

class FrameMaker {
 public:
  FrameMaker(StateSource& model, const PullTerms& terms, PullTally& tally)
      : model_(model),
        terms_(terms),
        tally_(tally),
        encoder_(model, *terms.coding.rates),
        bytes_(model) {}

  /// `leased`: the published state that the chunk is planned from.
  StatusOr<MadeFrame> Make(const FrameTask& task, LeasedState leased);

  struct Choice {
    kernels::Codec codec = kernels::Codec::kFast;
    bool made = false;  ///< the payload is in the cache
  };
  /// Chooses a piece's codec by the rule for published chunks. REQUIRES: its delta and base are
  /// set.
  Choice ChooseFor(const FrameTask& task) const;
  /// Leases the state against which pieces are encoded anew. Empty if they are forwarded unchanged.
  LeasedState LeaseBase() const;
  /// Whether the receiver found the chunk corrupt.
  bool IsCorrupt(uint32_t chunk) const;

 private:
  StatusOr<MadeFrame> MakeDelta(const FrameTask& task, const LeasedState& leased);
  StatusOr<MadeFrame> MakeFull(uint32_t chunk, const LeasedState& leased);
  MadeFrame MakePiece(const FrameTask& task);
  /// Nullopt: another thread is making the payload.
  std::optional<ChunkPayload> EncodePiece(const FrameTask& task) const;
  ChunkEncoder::Job PieceJob(const FrameTask& task, const kernels::History& history) const;
  /// The part of the task's history that the options allow.
  kernels::History HistoryFor(const FrameTask& task) const;
  kernels::Codec Choose(const ChunkEncoder::Job& job, size_t fast_bytes) const;
  void CountDecode(kernels::Codec codec, uint32_t chunk, size_t fast_bytes);

  StateSource& model_;
  const PullTerms& terms_;
  PullTally& tally_;
  const ChunkEncoder encoder_;
  ChunkBytes bytes_;
};

}  // namespace deltawire
