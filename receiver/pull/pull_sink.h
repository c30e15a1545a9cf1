// Receives the chunks of a pull, from all agents and in all rounds until the commit. Whole chunks
// go straight into the buffer. Deltas are turned into fast ones, checked and staged until Apply, or
// applied on arrival if they outgrow the staging bound or nobody can be loading the buffer. Staged
// deltas of a broken pull stay for the next. Owner: a Replica. Threads: frames come from IoThreads
// (different chunks at once), other calls from one. Errors: kDataLoss names chunk and tensor.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/delta/pull_stats.h"
#include "common/layout/coverage.h"
#include "common/net/pull_client.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/forwarding.h"
#include "receiver/pull/payload_decoder.h"

namespace deltawire::receiver {

class PullSink : public net::ChunkSink {
 public:
  /// `gate` is asked before a round changes its first byte; its error ends the pull.
  PullSink(Buffer& buffer, BufferGate& gate, uint64_t staging_limit, CoderRates& rates);

  /// To be called before a round's frames come: drops frames that the last round left incomplete,
  /// and starts the counters anew. `history` has the deltas that led to the buffer's bytes,
  /// `record` records what comes (or is null), `at_once` lets the buffer change before the round
  /// ends, `forward` is told of each chunk that has been checked (or is null).
  void BeginRound(LogView history, DeltaBuilder* record, bool at_once,
                  Forwarding* forward = nullptr);
  /// Changes `have` from what the buffer holds to what it will hold once Apply has run.
  void Overlay(wire::Have& have) const;
  /// True when deltas are staged.
  bool staged() const { return !staged_.empty(); }
  /// True when Apply will change the buffer.
  bool to_apply() const { return !staged_.empty() || !refused_.empty(); }
  /// The digest that a chunk will have once what is staged is applied.
  uint64_t digest(uint32_t chunk) const { return digest_[chunk]; }
  /// True when a chunk must be fetched whole, since what came of it does not fit.
  bool refused() const { return !refused_.empty(); }
  /// True when every frame of the round has come out right so far.
  bool clean() const { return refused_.empty() && round_->bad.empty(); }
  /// Forgets all staged deltas.
  void Drop();
  /// Forgets all that came since the last commit, with which Buffer::Discard does the same.
  void Discard();
  /// How many more bytes of deltas can be staged, before a round: at least 1.
  uint64_t staging_room() const {
    return std::max<uint64_t>(1, staging_limit_ - std::min(staging_limit_, staged_bytes_));
  }
  /// True when the buffer was touched since it was last committed.
  bool dirty() const { return dirty_; }
  void Committed() { dirty_ = false; }
  /// Applied() has the deltas applied since ForgetApplied, in order of application within a chunk;
  /// of more than the staging bound the newest. Their payloads live until the next delta is applied
  /// or ForgetApplied.
  void KeepApplied(bool keep) { keep_applied_ = keep; }
  std::vector<AppliedDelta> Applied() const;
  void ForgetApplied();

  StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) override;
  /// Digests the new bytes of a whole chunk while they are in the cache. Pieces may have any size;
  /// bytes that no call announces are digested in Finish.
  void Arrived(const wire::FrameHeader& header, size_t bytes) override;
  /// A whole chunk whose bytes have another digest than the header says is not an error: the chunk
  /// stays unknown, and Apply returns it.
  Status Finish(const wire::FrameHeader& header) override;
  void Abandon(const wire::FrameHeader& header) override;

  /// Applies the staged deltas, in parallel. Returns the chunks whose digest came out wrong or
  /// whose delta did not fit; they are unknown now and must be fetched whole.
  StatusOr<std::vector<uint32_t>> Apply(ThreadPool& pool);
  /// Chunks that came whole with another digest, even if a later frame was right: the sender should
  /// check its own bytes. Stable once the pull has ended.
  const std::set<uint32_t>& mismatched() const { return round_->mismatched; }

  uint64_t bytes() const { return round_->bytes; }
  /// Time that all streams together took in this round to check and decode what came.
  double stage_seconds() const { return round_->stage_seconds; }
  /// True when the round failed since the buffer could not be made ready, which is not the sender's
  /// doing.
  bool touch_failed() const { return round_->touch_failed; }
  /// True when a tight delta did not fit the receiver's history or bytes.
  bool history_misfit() const { return round_->history_misfit; }
  /// Adds the round's counters to `stats`.
  void AddTo(PullStats& stats) const;

 private:
  struct Staged {
    wire::FrameHeader header;
    std::shared_ptr<std::byte[]> payload;  ///< as received; once complete, the fast payload
    size_t bytes = 0;
    std::shared_ptr<std::byte[]> came;  ///< as received, if it was not fast and goes on
    bool complete = false;
  };

  /// The facts of one round, from BeginRound to the next.
  struct Round {
    Round(Buffer& buffer, CoderRates& rates, LogView history)
        : decoder(buffer, rates, std::move(history)),
          partial(buffer.chunks().size()),
          digested(buffer.chunks().size()),
          seen(buffer.chunks().size()),
          busy(buffer.chunks().size()) {}

    const PayloadDecoder decoder;
    DeltaBuilder* record = nullptr;
    Forwarding* forward = nullptr;
    /// For a whole chunk that is arriving: the digest of its first `digested` bytes.
    std::vector<uint64_t> partial;
    std::vector<uint32_t> digested;
    /// Chunks that have had a frame, or have staged deltas from an earlier round.
    std::vector<uint8_t> seen;
    std::atomic<bool> touched{false}, touch_failed{false}, history_misfit{false};
    std::atomic<uint64_t> bytes{0};
    std::atomic<double> stage_seconds{0};
    // Under mu_.
    /// Chunks of which a frame is arriving. Its memory must not move until the frame is finished.
    std::vector<uint8_t> busy;
    bool streaming = false;
    std::vector<uint32_t> bad;
    std::set<uint32_t> mismatched;
    uint64_t refusals = 0, history_chunks = 0;
    FormCounts forms;
  };

  Status Touch();
  Status Complete(const wire::FrameHeader& header);
  StatusOr<MutableBytes> BeginDelta(const wire::FrameHeader& header);
  Status FinishDelta(const wire::FrameHeader& header);
  void FinishFull(const wire::FrameHeader& header);
  /// Digests a whole chunk's bytes from where the last call stopped up to `end`.
  void DigestUpTo(uint32_t chunk, size_t end);
  /// Turns the frame's payload into the fast one. False when the payload does not fit and the chunk
  /// was refused.
  StatusOr<bool> Decode(const wire::FrameHeader& header);
  void Refuse(uint32_t chunk);
  /// Has the chunk served on. `staged`: of a delta; null for a whole chunk.
  void Forward(const wire::FrameHeader& header, const Staged* staged);
  void Keep(Staged&& applied);      // REQUIRES: mu_ held
  void DropStaged(uint32_t chunk);  // REQUIRES: mu_ held
  /// False when the base or the resulting digest is wrong; the chunk is unknown then.
  bool ApplyOne(const Staged& staged);

  Buffer& buffer_;
  ChunkBases& bases_;
  BufferGate& gate_;
  const kernels::Backend& backend_;
  const uint64_t staging_limit_;
  CoderRates& rates_;
  /// Each chunk's digest as it will be once its staged deltas are applied.
  std::vector<uint64_t> digest_;
  std::atomic<bool> dirty_{false};
  std::optional<Round> round_;

  Mutex mu_;
  uint64_t staged_bytes_ = 0;
  std::map<uint32_t, std::vector<Staged>> staged_;
  bool keep_applied_ = false;
  std::deque<Staged> applied_;
  uint64_t applied_bytes_ = 0;
  std::set<uint32_t> refused_;
};

/// Passes one agent's frames to the PullSink, refuses chunks that are not in the agent's part, and
/// reports its progress.
class PartSink : public net::ChunkSink {
 public:
  /// `progress(bytes)` is called after each chunk with this part's payload bytes so far.
  PartSink(PullSink& sink, const Coverage& part, std::string agent,
           std::function<void(uint64_t)> progress)
      : sink_(sink), part_(part), agent_(std::move(agent)), progress_(std::move(progress)) {}

  StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) override;
  void Arrived(const wire::FrameHeader& header, size_t bytes) override {
    sink_.Arrived(header, bytes);
  }
  Status Finish(const wire::FrameHeader& header) override;
  void Abandon(const wire::FrameHeader& header) override { sink_.Abandon(header); }

 private:
  PullSink& sink_;
  const Coverage part_;
  const std::string agent_;
  const std::function<void(uint64_t)> progress_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace deltawire::receiver
