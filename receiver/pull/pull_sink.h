// Receives the chunks of a pull, from all agents and in all rounds until the commit. Whole chunks
// go straight into the buffer. Deltas are turned into fast ones, checked and staged until Apply, or
// applied on arrival if they outgrow the staging bound or nobody can be loading the buffer. Errors
// are kDataLoss and name chunk and tensor. Frames may come from any thread, for different chunks;
// other calls from one, while no frame comes.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/net/pull_client.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/applied_deltas.h"
#include "receiver/pull/arriving_digests.h"
#include "receiver/pull/forwarding.h"
#include "receiver/pull/payload_decoder.h"
#include "receiver/pull/round_tally.h"
#include "receiver/pull/staged_deltas.h"

namespace deltawire::receiver {

class PullSink : public net::ChunkSink {
 public:
  /// `gate` is asked before a round changes its first byte; its error ends the pull.
  PullSink(Buffer& buffer, BufferGate& gate, uint64_t staging_limit, CoderRates& rates);

  /// Begins a round, before its frames come: drops frames that the last round left incomplete, and
  /// starts its tally anew. `history` has the deltas that led to the buffer's bytes, `record`
  /// records what comes (or is null), `at_once` lets the buffer change before the round ends,
  /// `forward` gets each chunk that has been checked (or is null).
  void BeginRound(LogView history, DeltaBuilder* record, bool at_once,
                  Forwarding* forward = nullptr);
  /// Applies the staged deltas, in parallel. Returns the chunks whose digest came out wrong or
  /// whose delta did not fit; they are unknown now and must be fetched whole.
  StatusOr<std::vector<uint32_t>> Apply(ThreadPool& pool);
  /// Discards all that came since the last commit, with which BufferUpdate::Discard does the same.
  void Discard();
  void MarkCommitted() { dirty_ = false; }

  const RoundTally& tally() const { return round_->tally; }
  StagedDeltas& staged() { return staged_; }
  const StagedDeltas& staged() const { return staged_; }
  AppliedDeltas& applied() { return applied_; }
  /// True when Apply will change the buffer.
  bool to_apply() const { return !staged_.empty() || staged_.has_refused(); }
  /// True when every frame of the round has come out right so far.
  bool clean() const { return !staged_.has_refused() && !tally().has_corrupt(); }
  /// True when the buffer was touched since it was last committed.
  bool dirty() const { return dirty_; }
  /// The digest that a chunk will have once what is staged is applied.
  uint64_t digest(uint32_t chunk) const { return digest_[chunk]; }

  StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) override;
  void Arrived(const wire::FrameHeader& header, size_t bytes) override;
  /// A whole chunk whose bytes have another digest than the header says is not an error: the chunk
  /// stays unknown, and Apply returns it.
  Status Finish(const wire::FrameHeader& header) override;
  void Abandon(const wire::FrameHeader& header) override;

 private:
  /// The facts of one round, from BeginRound to the next.
  struct Round {
    Round(Buffer& buffer, CoderRates& rates, LogView history)
        : decoder(buffer, rates, std::move(history)),
          digests(buffer),
          seen(buffer.chunks().size()),
          busy(buffer.chunks().size()) {}

    const PayloadDecoder decoder;
    DeltaBuilder* record = nullptr;
    Forwarding* forward = nullptr;
    ArrivingDigests digests;
    RoundTally tally;
    /// Chunks that have had a frame, or have staged deltas from an earlier round.
    std::vector<uint8_t> seen;
    /// Chunks of which a frame is arriving. Its memory must not move until the frame is finished.
    std::vector<std::atomic<bool>> busy;
    std::atomic<bool> touched{false};
  };

  /// Makes the buffer ready for its first change of the round.
  Status Touch();
  StatusOr<MutableBytes> BeginDelta(const wire::FrameHeader& header);
  Status FinishDelta(const wire::FrameHeader& header);
  void FinishWhole(const wire::FrameHeader& header);
  /// Turns the payload of the chunk's last delta into the fast one, checks and records it. Null
  /// when it does not fit and the chunk was refused.
  StatusOr<StagedDelta*> Decode(const wire::FrameHeader& header);
  /// Has the chunk served on. `staged`: of a delta; null for a whole chunk.
  void Forward(const wire::FrameHeader& header, const StagedDelta* staged);
  /// Applies a chunk's deltas in order, up to the first one that comes out wrong.
  void ApplyAll(std::vector<StagedDelta> deltas);
  /// False when the base or the resulting digest is wrong; the chunk is unknown then.
  bool ApplyOne(const StagedDelta& staged);

  Buffer& buffer_;
  ChunkBases& bases_;
  BufferGate& gate_;
  const kernels::Backend& backend_;
  CoderRates& rates_;
  StagedDeltas staged_;
  AppliedDeltas applied_;
  /// Each chunk's digest as it will be once its staged deltas are applied.
  std::vector<uint64_t> digest_;
  std::atomic<bool> dirty_{false};
  std::optional<Round> round_;
};

}  // namespace deltawire::receiver
