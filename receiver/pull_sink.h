// Where one pull's chunks land. Whole chunks go straight into the buffer; deltas are turned into
// fast ones, checked and staged first, and touch the buffer in Apply, when all are in. A pull whose
// deltas outgrow the staging bound applies the rest as they arrive.
// Owner: one Replica::Pull call. Threads: Begin/Finish/Abandon from IoThreads (different chunks at
// once), Apply from the owner after the pull has ended. Cost: the staged payloads, 9 bytes a chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/layout/coverage.h"
#include "common/net/pull_client.h"
#include "receiver/buffer.h"
#include "receiver/payload_decoder.h"
#include "receiver/pull_stats.h"

namespace deltawire::receiver {

class PullSink : public net::ChunkSink {
 public:
  /// `history`, `record`: what led to the buffer's bytes, and where to note what comes (or null).
  /// `progress(bytes)` is called after each chunk with the payload bytes so far. `part`: the chunks
  /// that may come; without it all.
  PullSink(Buffer& buffer, uint64_t staging_limit, CoderRates& rates, LogView history,
           DeltaBuilder* record, std::function<void(uint64_t)> progress,
           std::optional<Coverage> part = std::nullopt);

  StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) override;
  Status Finish(const wire::FrameHeader& header) override;
  void Abandon(const wire::FrameHeader& header) override;

  /// Applies what is staged, in parallel. Returns the chunks whose digest came out wrong or whose
  /// delta did not fit: they are unknown now and must be fetched whole.
  StatusOr<std::vector<uint32_t>> Apply(ThreadPool& pool);

  bool touched() const { return touched_; }
  /// A delta looked back to others than those that `history` has.
  bool history_misfit() const { return history_misfit_; }
  /// Adds what this sink has counted.
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
  /// Its payload becomes the fast one; false when it does not fit and the chunk was refused.
  StatusOr<bool> Decode(const wire::FrameHeader& header);
  void Refuse(uint32_t chunk);
  void DropStaged(uint32_t chunk);  // REQUIRES: mu_ held
  /// False when the digest came out wrong; the chunk is unknown then.
  bool ApplyOne(const Staged& staged);

  Buffer& buffer_;
  const kernels::Backend& backend_;
  const uint64_t staging_limit_;
  const std::optional<Coverage> part_;
  const PayloadDecoder decoder_;
  DeltaBuilder* const record_;
  const std::function<void(uint64_t)> progress_;
  /// What each chunk's digest will be once what is staged for it is applied.
  std::vector<uint64_t> digest_;
  /// Chunks that had a frame in this pull.
  std::vector<uint8_t> seen_;
  std::atomic<bool> touched_{false};
  std::atomic<bool> history_misfit_{false};
  std::atomic<uint64_t> bytes_{0};

  std::mutex mu_;
  /// Chunks with a frame coming in: its memory must stay where it is until it is finished.
  std::vector<uint8_t> busy_;
  uint64_t staged_bytes_ = 0;
  bool streaming_ = false;
  std::map<uint32_t, std::vector<Staged>> staged_;
  std::vector<uint32_t> bad_;
  std::set<uint32_t> refused_;
  uint64_t refusals_ = 0;
  uint64_t history_chunks_ = 0;
  FormCounts forms_;
};

}  // namespace deltawire::receiver
