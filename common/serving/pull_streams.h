// The bulk streams of one pull: the state, the current frame and the times of each. ServedPull owns
// and guards them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/serving/stream_clock.h"

namespace deltawire {

class PullStreams {
 public:
  using Time = SteadyClock::time_point;
  using Callbacks = std::vector<std::function<void()>>;  // to be called without the lock

  /// kAwaited -> kReserved -> kOpen -> kClosed.
  enum class State : uint8_t { kAwaited, kReserved, kOpen, kClosed };
  struct Stream {
    State state = State::kAwaited;
    std::function<void()> cut, wake;
    std::optional<uint32_t> reading;  ///< the half that its current frame may read
    /// The start and the size of a whole chunk that the socket is taking.
    std::optional<Time> handed_over;
    uint64_t handed_bytes = 0;
    StreamClock clock;
  };

  explicit PullStreams(size_t streams) : streams_(streams) {}

  Stream& operator[](uint16_t stream) { return streams_[stream]; }
  uint16_t size() const { return static_cast<uint16_t>(streams_.size()); }

  /// kInvalidArgument when the stream is out of range or was reserved before.
  Status Reserve(uint16_t stream, uint16_t streams);
  /// Whether all streams have come so far.
  bool HaveAll(State state) const;
  bool HaveOpen() const;
  bool IsRead(uint32_t half) const;

  /// Returns the callbacks of streams that wait, which are then awake. `only`, if given, chooses
  /// among them.
  Callbacks TakeWakes(const std::function<bool(uint16_t)>& only = nullptr);
  Callbacks Cuts() const;

  /// The streams' times together.
  struct Times {
    std::optional<Time> first_frame;
    double longest = 0;       ///< of one stream, in seconds
    double coding = 0;        ///< of all, in seconds
    uint64_t idle_bytes = 0;  ///< sent by the kernel while streams had nothing to send
  };
  Times times() const;

 private:
  std::vector<Stream> streams_;
};

}  // namespace deltawire
