// The upkeep of a buffer while nothing is pulled: checks of its files every second, the catch-up of
// the hidden file, the second file before the first version, and scrubbing at a limited rate. It
// decides what is due and does it. A Replica owns it; its driving thread alone uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "receiver/buffer/buffer.h"
#include "receiver/pull/pull_sink.h"

namespace deltawire::receiver {

class Upkeep {
 public:
  using Time = SteadyClock::time_point;
  enum class Task : uint8_t { kNothing, kCheck, kCatchUp, kMakeSpare, kScrub };
  struct Options {
    std::string model;
    uint64_t scrub_bytes_per_s = 0;
    bool serves = false;  ///< others take the committed version, so the catch-up comes later
  };
  explicit Upkeep(Options options) : options_(std::move(options)) {}

  struct Situation {
    bool committed = false;
    bool paused = false;
    bool prepared = false;  ///< a round waits for its group's word in the hidden file
    bool corrupt = false;   ///< chunks of the committed file are to be fetched first
    bool verifying =
        false;  ///< callers wait for a check of all chunks, which reads the same memory
  };
  struct Choice {
    Task task = Task::kNothing;
    Time again = Time::max();  ///< of kNothing: when to ask again
  };
  Choice Next(const Buffer& buffer, const Situation& s, Time now) const;
  /// Whether the hidden file is behind, and may be brought up `now`.
  bool MayCatchUp(const Situation& s, Time now) const;

  struct Outcome {
    StatusOr<Buffer::Health> health = Buffer::Health();  ///< of kCheck
    std::vector<uint32_t> corrupt;                       ///< chunks found by another task
    uint64_t scrubbed_bytes = 0;
  };
  /// Does `task`. `sink` has the deltas that were applied since the catch-up before. `stop`, which
  /// is called from any thread, says whether something else is to be done first.
  Outcome Run(Task task, Buffer& buffer, PullSink* sink, const std::function<bool()>& stop);

  /// A version was committed.
  void Committed(const Buffer& buffer);
  /// The hidden file may be behind: the buffer was made, or an incoming version was discarded.
  void Look(const Buffer& buffer) { behind_ = buffer.catches_up(); }

 private:
  void CatchUp(Buffer& buffer, PullSink& sink, const std::function<bool()>& stop, Outcome& out);
  void MakeSpare(Buffer& buffer, const std::function<bool()>& stop);
  void Scrub(const Buffer& buffer, Outcome& out);

  const Options options_;
  bool behind_ = false;  // the hidden one of two files is not at the committed version
  StatusCode catch_up_failed_ = StatusCode::kOk;  // the last attempt to bring it there
  uint32_t scrub_next_ = 0;
  Time check_at_{}, catch_up_at_{}, scrub_at_{};
};

}  // namespace deltawire::receiver
