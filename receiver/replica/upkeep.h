// The upkeep of a buffer while nothing is pulled: checks of its files every second, the catch-up of
// the hidden file, the second file before the first version, and scrubbing at a limited rate. It
// decides what is due and does it. A Replica owns it; its driving thread alone uses it, but
// totals() is for any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/layout/scrub_walk.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/buffer/catch_up.h"
#include "receiver/buffer/check.h"
#include "receiver/pull/downstream_link.h"
#include "receiver/pull/pull_sink.h"
#include "receiver/replica/corrupt_chunks.h"
#include "receiver/replica/replica_line.h"
#include "receiver/replica/run_state.h"

namespace deltawire::receiver {

/// Sums of this process.
struct UpkeepTotals {
  uint64_t scrubbed_bytes = 0;
  uint64_t files_put_back = 0;  ///< weights and side files that another process removed or changed
};

class Upkeep {
 public:
  using Time = SteadyClock::time_point;
  enum class Task : uint8_t { kNothing, kCheck, kCatchUp, kMakeSpare, kScrub };
  struct Options {
    std::string model;
    uint64_t scrub_bytes_per_s = 0;
    bool serves = false;  ///< other receivers pull the committed version before the catch-up
  };
  /// The objects that the tasks change. They outlive this.
  struct Env {
    BufferGate& gate;
    RunState& run;
    ReplicaLine& line;
    CorruptChunks& corrupt;
    DownstreamLink& downstream;
  };
  Upkeep(Options options, const Env& env) : options_(std::move(options)), env_(env) {}

  struct Situation {
    bool committed = false;
    bool paused = false;
    bool prepared = false;   ///< the hidden file has a version that waits for its group
    bool corrupt = false;    ///< chunks of the committed file are fetched first
    bool verifying = false;  ///< callers wait for a check, which reads the same memory
  };
  struct Choice {
    Task task = Task::kNothing;
    Time again = Time::max();  ///< with kNothing: when to ask again
  };
  Choice Next(const Buffer& buffer, const Situation& s, Time now) const;
  /// Whether the hidden file is behind, and may be brought up `now`.
  bool MayCatchUp(const Situation& s, Time now) const;

  /// Does `task`, unless a pause forbids it. `sink` has the deltas that were applied since the
  /// catch-up before. `stop`, which is called from any thread, says whether something else is to be
  /// done first.
  void Run(Task task, Buffer& buffer, PullSink* sink, const std::function<bool()>& stop);
  UpkeepTotals totals() const ABSL_LOCKS_EXCLUDED(mu_);

  /// A version was committed, so the hidden file is behind.
  void NoteCommit(const Buffer& buffer);
  /// The hidden file may be behind: the buffer was made, or an incoming version was discarded.
  void NoteBuffer(const Buffer& buffer) { behind_ = CanCatchUp(buffer); }

 private:
  void Check(Buffer& buffer);
  void CatchUp(Buffer& buffer, PullSink& sink, const std::function<bool()>& stop);
  void MakeSpare(Buffer& buffer, const std::function<bool()>& stop);
  void Scrub(const Buffer& buffer);
  /// Has the next pull fetch `chunk`.
  void AddCorrupt(const Buffer& buffer, uint32_t chunk);

  const Options options_;
  const Env env_;
  bool behind_ = false;  // the hidden one of two files is not at the committed version
  StatusCode catch_up_failed_ = StatusCode::kOk;  // the last attempt to bring it there
  // A pull may have to wait for a batch, which takes about a millisecond.
  ScrubWalk scrub_walk_{8 << 20};
  Time check_at_{}, catch_up_at_{}, scrub_at_{};
  mutable CheckedMutex mu_;
  UpkeepTotals totals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
