// Where the chunks of a pull land, of all agents and over all rounds until the commit. Whole chunks
// go straight into the buffer; deltas are made fast, checked and staged, and touch it in Apply, or
// as they arrive where they outgrow the staging bound or nobody loads the buffer. What is staged
// when a pull breaks off stays for the next. Owner: a Replica. Threads: frames from IoThreads
// (different chunks at once), the rest from one.
#pragma once

#include <atomic>
#include <cstdint>
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
#include "receiver/buffer.h"
#include "receiver/payload_decoder.h"

namespace deltawire::receiver {

class PullSink : public net::ChunkSink {
 public:
  /// `touch` is called before the first byte of a round is changed, from any thread; an error of it
  /// ends the pull.
  PullSink(Buffer& buffer, uint64_t staging_limit, CoderRates& rates,
           std::function<Status()> touch = nullptr);

  /// Before frames come: drops what the last round left incomplete, and begins to count anew.
  /// `history`, `record`: what led to the buffer's bytes, and where to note what comes (or null).
  /// `at_once`: the buffer may be changed before all is in.
  void BeginRound(LogView history, DeltaBuilder* record, bool at_once);
  /// `have` is of the buffer: becomes that of the buffer with all that is staged applied.
  void Overlay(wire::Have& have) const;
  /// Deltas are staged.
  bool staged() const { return !staged_.empty(); }
  /// Apply will change the buffer.
  bool to_apply() const { return !staged_.empty() || !refused_.empty(); }
  /// Forgets what is staged: everything is to come anew.
  void Drop();
  /// The buffer was touched since it was last committed.
  bool dirty() const { return dirty_; }
  void Committed() { dirty_ = false; }
  /// Deltas that were applied since ForgetApplied, in order of application within a chunk; those
  /// beyond the staging bound are not kept. The payloads live until then.
  void KeepApplied(bool keep) { keep_applied_ = keep; }
  std::vector<Buffer::AppliedDelta> Applied() const;
  void ForgetApplied();

  StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) override;
  /// The first `bytes` of the payload are in place: a whole chunk's are digested while they are in
  /// cache. Pieces may have any size, and not to be told costs nothing but the cache.
  void Arrived(const wire::FrameHeader& header, size_t bytes) override;
  /// A whole chunk whose bytes have another digest than the header says is not an error: the chunk
  /// stays unknown and Apply names it.
  Status Finish(const wire::FrameHeader& header) override;
  void Abandon(const wire::FrameHeader& header) override;

  /// Applies what is staged, in parallel. Returns the chunks whose digest came out wrong or whose
  /// delta did not fit: they are unknown now and must be fetched whole.
  StatusOr<std::vector<uint32_t>> Apply(ThreadPool& pool);
  /// Chunks that came whole and had another digest, also where a later frame was right: the sender
  /// should look at its own bytes. Stable once the pull has ended.
  const std::set<uint32_t>& mismatched() const { return mismatched_; }

  uint64_t bytes() const { return bytes_; }
  /// A delta looked back to others than those that `history` has.
  bool history_misfit() const { return history_misfit_; }
  /// Adds what the round has counted.
  void AddTo(PullStats& stats) const;

 private:
  struct Staged {
    wire::FrameHeader header;
    std::unique_ptr<std::byte[]> payload;  ///< as it came; once complete, the fast one
    size_t bytes = 0;
    bool complete = false;
  };

  Status Touch();
  StatusOr<MutableBytes> BeginDelta(const wire::FrameHeader& header);
  Status FinishDelta(const wire::FrameHeader& header);
  void FinishFull(const wire::FrameHeader& header);
  /// Digests a whole chunk's bytes from where the last call stopped up to `end`.
  void DigestUpTo(uint32_t chunk, size_t end);
  /// Its payload becomes the fast one; false when it does not fit and the chunk was refused.
  StatusOr<bool> Decode(const wire::FrameHeader& header);
  void Refuse(uint32_t chunk);
  void Keep(Staged&& applied);      // REQUIRES: mu_ held
  void DropStaged(uint32_t chunk);  // REQUIRES: mu_ held
  /// False when the digest came out wrong; the chunk is unknown then.
  bool ApplyOne(const Staged& staged);

  Buffer& buffer_;
  const kernels::Backend& backend_;
  const uint64_t staging_limit_;
  CoderRates& rates_;
  const std::function<Status()> touch_;
  std::optional<PayloadDecoder> decoder_;
  DeltaBuilder* record_ = nullptr;
  /// What each chunk's digest will be once what is staged for it is applied.
  std::vector<uint64_t> digest_;
  /// Of a whole chunk that comes in: the digest of its first digested_ bytes.
  std::vector<uint64_t> partial_;
  std::vector<uint32_t> digested_;
  /// Chunks that had a frame since the buffer was last wholly one version.
  std::vector<uint8_t> seen_;
  std::atomic<bool> touched_{false};
  std::atomic<bool> dirty_{false};
  std::atomic<bool> history_misfit_{false};
  std::atomic<uint64_t> bytes_{0};

  Mutex mu_;
  /// Chunks with a frame coming in: its memory must stay where it is until it is finished.
  std::vector<uint8_t> busy_;
  uint64_t staged_bytes_ = 0;
  bool streaming_ = false;
  std::map<uint32_t, std::vector<Staged>> staged_;
  bool keep_applied_ = false;
  std::vector<Staged> applied_;
  uint64_t applied_bytes_ = 0;
  std::vector<uint32_t> bad_;
  std::set<uint32_t> refused_;
  std::set<uint32_t> mismatched_;
  uint64_t refusals_ = 0;
  uint64_t history_chunks_ = 0;
  FormCounts forms_;
};

/// One agent's way into the sink: its own part of the model only, and its progress.
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
