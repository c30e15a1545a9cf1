// Whether a replica runs, is paused or stops, and whether its driving thread uses the buffer. A
// Replica owns it. Begin and End are for the driving thread; every other method may be called from
// any thread.
#pragma once

#include <cstdint>

#include "common/base/checked_mutex.h"
#include "receiver/buffer/buffer_gate.h"

namespace deltawire::receiver {

class RunState {
 public:
  /// kRunning <-> kPaused (SetPaused); both -> kStopped (Stop).
  enum class State : uint8_t { kRunning, kPaused, kStopped };
  /// kNone -> any other by Begin -> kNone by End.
  enum class Use : uint8_t {
    kNone,
    kFollow,   ///< a pause forbids it, and ends a pull
    kRequest,  ///< a pull that a caller waits for, which a pause lets go on
    kUpkeep,   ///< goes on in a pause, which is complete after it
  };

  /// `follow`: new versions are pulled without a request.
  RunState(BufferGate& gate, bool follow) : gate_(gate), follow_(follow) {}

  State state() const ABSL_LOCKS_EXCLUDED(mu_);
  bool stopping() const { return state() == State::kStopped; }
  bool paused() const { return state() == State::kPaused; }
  /// Whether the next version is pulled without a request.
  bool follows() const { return follow_ && state() == State::kRunning; }

  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  /// Returns true if the caller is to cancel the pull that runs. A pull that has begun to change
  /// the only weight file goes on to the commit, however many pulls that takes: a half-updated file
  /// could not be loaded at all.
  bool SetPaused(bool paused) ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether nothing changes the buffer while this is paused.
  bool settled() const ABSL_LOCKS_EXCLUDED(mu_);

  /// Begins a use of the buffer. Returns false if a pause forbids it.
  bool Begin(Use use) ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether the pull that runs must end.
  bool EndsPull() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  /// Whether a pause forbids to follow.
  bool Forbids() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return state_ == State::kPaused && !gate_.version().half_updated();
  }
  /// Has waits at the gate end if a pause ends the pull that waits there.
  void SetYielding() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    gate_.SetYielding(state_ == State::kPaused && use_ != Use::kRequest);
  }

  BufferGate& gate_;
  const bool follow_;
  mutable CheckedMutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kRunning;
  Use use_ ABSL_GUARDED_BY(mu_) = Use::kNone;
};

}  // namespace deltawire::receiver
