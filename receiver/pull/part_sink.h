// The sink of one agent's part of a pull: passes the agent's frames to the PullSink, refuses chunks
// that are not in the part, and reports progress. A part of a PullRound owns it. Frames may come
// from any thread, for different chunks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "common/layout/coverage.h"
#include "receiver/pull/pull_sink.h"

namespace deltawire::receiver {

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
