// One pull: receives every agent's part, applies the parts, asks again for chunks that came out
// wrong, checks each part's root and the whole's, and commits: a state machine (PullRound::Step).
// Only kCommit commits. An error names the agent and ends the pull; the chunks that came stay in
// sink and buffer for the next one. One thread drives it; Cancel, Announce and MarkPublished may be
// called from any.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/delta/pull_stats.h"
#include "receiver/pull/round_clock.h"
#include "receiver/pull/round_env.h"
#include "receiver/pull/round_part.h"
#include "receiver/pull/round_transfers.h"

namespace deltawire::receiver {

class PullRound {
 public:
  /// kOpen -> kTransfer -> kApply -> kCommit -> kDone; kApply -> kOpen while chunks are bad. With
  /// Wish::hold also kPrepare, once: between kTransfer and kApply where only staged deltas are to
  /// be applied, else between kApply and kCommit.
  enum class Step : uint8_t { kOpen, kTransfer, kPrepare, kApply, kCommit, kDone };
  static constexpr int kMaxRepairs = 3;
  using Env = RoundEnv;
  using Wish = RoundWish;
  using Result = RoundPart::Result;

  /// `agents` are in the target's order. Several agents are asked for exactly the target, a single
  /// agent for its newest state, unless the target is exact.
  PullRound(Env env, std::vector<RoundAgent> agents, Wish wish);

  Step step() const { return step_; }
  /// With Wish::hold: all bytes are here and checked, also as a whole. The further steps need no
  /// agent, unless chunks come out wrong.
  bool prepared() const { return clock_.prepared(); }
  /// Takes the next step. kCommit waits until no engine holds the directory.
  Status Advance();
  /// Ends a running transfer, and makes every later one fail.
  void Cancel() { transfers_.Cancel(); }
  /// An awaited agent has its part, or announces it as incoming.
  void Announce(size_t agent) { transfers_.Announce(agent); }
  /// The unwritten target is published, when `bytes` of it had come.
  void MarkPublished(uint64_t bytes) { clock_.MarkPublished(bytes); }

  // After kTransfer: the state that the buffer will have, as a whole.
  Identity whole() const;
  const PullStats& stats() const { return stats_; }
  /// After kCommit: the delta from the state committed before, if it was recorded; else null.
  const std::shared_ptr<const Delta>& delta() const { return delta_; }
  const Identity& delta_from() const { return delta_from_; }
  const RoundTimes& times() const { return clock_.times(); }
  /// By agent.
  const std::vector<Result>& results() const { return results_; }
  /// An agent's fault, after an error of Advance: its stream broke, or it sent something else than
  /// it named. kCancelled: no fault is known; a call that an agent refused is not here.
  const Status& fault() const { return fault_; }
  /// True when the error was that the received chunks are not the state that an agent named.
  bool root_mismatch() const { return root_mismatch_; }
  /// Bytes of the chunks that are sure to come whole, to show progress; 0: not known.
  uint64_t bytes_expected() const { return bytes_expected_; }

 private:
  Status Open();
  Status Transfer();
  Status Prepare();
  Status Apply();
  Status Commit();
  wire::Have MakeHave() const;
  Status RunParts();
  /// `staged`: of the chunks as they will be when what is staged is applied.
  Status CheckRoots(bool staged);
  Status FetchSideFiles();
  /// All chunks have come, so pulls of served receivers may end.
  void ForwardEnd();

  const Env env_;
  const Wish wish_;
  Step step_ = Step::kOpen;
  RoundClock clock_;
  RoundTransfers transfers_;
  std::vector<Result> results_;
  std::deque<RoundPart> parts_;  // by agent
  int repairs_ = 0;
  std::vector<uint32_t> corrupt_, mismatched_;  // of the last Apply
  PullStats stats_;
  std::shared_ptr<const Delta> delta_;
  Identity delta_from_;
  bool root_mismatch_ = false;
  Status fault_ = absl::CancelledError("no agent is at fault");
  uint64_t bytes_expected_ = 0;
};

}  // namespace deltawire::receiver
