// The pull that a replica runs: its round, its version, whether the trainer still writes that
// version, and its progress, which stays readable after the end. A Puller owns it, under its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/identity.h"
#include "common/base/sync.h"
#include "receiver/attach/follower.h"
#include "receiver/pull/pull_round.h"

namespace deltawire::receiver {

class RunningPull {
 public:
  using Time = SteadyClock::time_point;
  /// kNone -> kComplete (the upstream has the target), kIncoming (the upstream is pulling it) or
  /// kUnwritten (the trainer still writes it) by Begin; kUnwritten -> kPublished; all of them ->
  /// kNone by End.
  enum class State : uint8_t { kNone, kComplete, kIncoming, kUnwritten, kPublished };

  explicit RunningPull(size_t agents) : part_bytes_(agents) {}

  void Begin(std::shared_ptr<PullRound> round, const Follower::Target& target);
  /// The commit of a round that was prepared before. It has no progress of its own.
  void BeginCommit(std::shared_ptr<PullRound> round, const Identity& target);
  /// All agents have published what was kUnwritten. Tells the round.
  void MarkPublished();
  void End();
  /// Cancels the round if it is of an unwritten version, which could take long.
  void CancelUnwritten() const;

  State state() const { return state_; }
  /// The trainer wrote the target when the pull began.
  bool began_unwritten() const {
    return state_ == State::kUnwritten || state_ == State::kPublished;
  }
  /// The round may wait for events of the agents.
  bool awaits_agents() const { return began_unwritten() || state_ == State::kIncoming; }
  /// Null: none runs.
  const std::shared_ptr<PullRound>& round() const { return round_; }
  const Identity& target() const { return target_; }
  /// By agent. REQUIRES: Begin.
  const std::vector<Identity>& parts() const { return parts_; }

  /// `bytes` of payload have come from `agent` in all. True: it is time for another report.
  bool NoteProgress(size_t agent, uint64_t bytes, Time now);
  void Expect(uint64_t bytes) { bytes_expected_ = bytes; }
  uint64_t bytes_done() const { return bytes_done_; }
  uint64_t bytes_expected() const { return bytes_expected_; }

 private:
  State state_ = State::kNone;
  std::shared_ptr<PullRound> round_;
  Identity target_;
  std::vector<Identity> parts_;
  std::vector<uint64_t> part_bytes_;
  uint64_t bytes_done_ = 0, bytes_expected_ = 0;
  Time reported_{};
};

}  // namespace deltawire::receiver
