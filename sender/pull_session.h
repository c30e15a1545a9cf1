// One receiver's pull: what it holds, what it was sent, and the next frame for each of its streams.
// Chunks go to whichever stream asks next and then stay on that stream, so a chunk's frames arrive
// in order. When a publish overtakes the pull, chunks not yet sent go out new and those already
// sent are lifted by delta. Owner: the agent's pull table and the bulk streams, by shared_ptr.
// Threads: all methods from any. Cost: 28 bytes per chunk while it runs.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/net/pull_server.h"
#include "sender/model.h"

namespace deltawire::sender {

class PullSession : public net::PullSession {
 public:
  PullSession(std::shared_ptr<Model> model, std::string receiver_id, uint16_t streams);

  uint32_t chunks() const override { return model_->chunks().size(); }
  Status Start(const wire::Have& have) override;
  StatusOr<std::optional<net::OutFrame>> Next(uint16_t stream, std::function<void()> wake) override;
  void StreamOpened(uint16_t stream, std::function<void()> cut) override;
  void StreamClosed(uint16_t stream, const Status& why) override;

  /// kInvalidArgument when the stream is out of range or was there before.
  Status Reserve(uint16_t stream, uint16_t streams);
  /// Ends the pull: its streams are closed.
  void Cut(const Status& why);
  /// Cuts it if one of its streams still reads `half`. True when it did.
  bool CutIfReading(uint32_t half);

  const std::string& receiver_id() const { return receiver_id_; }
  const std::shared_ptr<Model>& model() const { return model_; }
  uint64_t bytes_sent() const;
  /// No stream is open, and either all have ended or nobody came in time.
  bool Finished(std::chrono::steady_clock::time_point now) const;

 private:
  struct Stream {
    bool reserved = false;
    bool open = false;
    bool closed = false;
    std::function<void()> cut;
    std::function<void()> wake;
    std::vector<uint32_t> chunks;     // that this stream has taken
    uint64_t lifted_to = 0;           // serial of the state that all of them are at
    std::optional<uint32_t> reading;  // half that the frame being made or sent may read
  };

  struct Task {
    uint32_t chunk = 0;
    ChunkPlan plan;
  };
  /// Under the lock: the next chunk of this stream that needs bytes; sets end_ when none ever will.
  std::optional<Task> NextTask(Stream& stream, const Published& now);
  /// Without the lock, since hashing and folding take time. Empty when a fold cancels out.
  StatusOr<std::optional<net::OutFrame>> MakeFrame(const Task& task, const LeasedState& leased);
  net::OutFrame MakeFull(uint32_t chunk, const LeasedState& leased);
  StatusOr<std::optional<net::OutFrame>> MakeFolded(const Task& task, const LeasedState& leased);
  void WakeOthers(const Stream& but);

  const std::shared_ptr<Model> model_;
  const std::string receiver_id_;
  const std::chrono::steady_clock::time_point created_;

  mutable std::mutex mu_;
  bool started_ = false;
  Status failed_;
  std::vector<wire::Have::Entry> have_;
  std::vector<uint64_t> sent_serial_;
  std::vector<Stream> streams_;
  uint32_t cursor_ = 0;
  std::optional<StateId> end_;
  std::atomic<uint64_t> bytes_sent_{0};
  uint64_t refused_bases_ = 0;
};

}  // namespace deltawire::sender
