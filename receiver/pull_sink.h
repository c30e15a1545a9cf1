// Where one pull's chunks land. Whole chunks go straight into the buffer; deltas are staged and
// checked first, and touch the buffer in Apply, when all are in. A pull whose deltas outgrow the
// staging bound applies the rest as they arrive.
// Owner: one Replica::Pull call. Threads: Begin/Finish/Abandon from IoThreads (different chunks at
// once), Apply from the owner after the pull has ended. Cost: the staged payloads, 8 bytes a chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/net/pull_client.h"
#include "receiver/buffer.h"
#include "receiver/pull_stats.h"

namespace deltawire::receiver {

class PullSink : public net::ChunkSink {
 public:
  /// `progress(bytes)` is called after each chunk with the payload bytes so far.
  PullSink(Buffer& buffer, uint64_t staging_limit, std::function<void(uint64_t)> progress);

  StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) override;
  Status Finish(const wire::FrameHeader& header) override;
  void Abandon(const wire::FrameHeader& header) override;

  /// Applies what is staged, in parallel. Returns the chunks whose digest came out wrong: they are
  /// unknown now and must be fetched whole.
  StatusOr<std::vector<uint32_t>> Apply(ThreadPool& pool);

  bool touched() const { return touched_; }
  /// Adds what this sink has counted.
  void AddTo(PullStats& stats) const;

 private:
  struct Staged {
    wire::FrameHeader header;
    std::unique_ptr<std::byte[]> payload;
    bool complete = false;
  };

  Status Touch();
  StatusOr<MutableBytes> BeginDelta(const wire::FrameHeader& header);
  Status FinishDelta(const wire::FrameHeader& header);
  /// False when the digest came out wrong; the chunk is unknown then.
  bool ApplyOne(const Staged& staged);

  Buffer& buffer_;
  const kernels::Backend& backend_;
  const uint64_t staging_limit_;
  const std::function<void(uint64_t)> progress_;
  /// What each chunk's digest will be once what is staged for it is applied.
  std::vector<uint64_t> digest_;
  std::atomic<bool> touched_{false};
  std::atomic<uint64_t> bytes_{0}, full_{0}, delta_{0};

  std::mutex mu_;
  uint64_t staged_bytes_ = 0;
  bool streaming_ = false;
  std::map<uint32_t, std::vector<Staged>> staged_;
  std::vector<uint32_t> bad_;
};

}  // namespace deltawire::receiver
