#include "receiver/pull/running_pull.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace deltawire::receiver {
namespace {

constexpr std::chrono::milliseconds kReportEvery{200};

}  // namespace

void RunningPull::Begin(std::shared_ptr<PullRound> round, const Follower::Target& target) {
  state_ = target.unwritten() ? State::kUnwritten
           : target.incoming  ? State::kIncoming
                              : State::kComplete;
  round_ = std::move(round);
  target_ = target.whole;
  parts_ = target.parts;
  std::fill(part_bytes_.begin(), part_bytes_.end(), 0);
  bytes_done_ = bytes_expected_ = 0;
}

void RunningPull::BeginCommit(std::shared_ptr<PullRound> round, const Identity& target) {
  state_ = State::kComplete;
  round_ = std::move(round);
  target_ = target;
}

void RunningPull::MarkPublished() {
  state_ = State::kPublished;
  if (round_ != nullptr) round_->MarkPublished(bytes_done_);
}

void RunningPull::End() {
  state_ = State::kNone;
  round_.reset();
}

void RunningPull::CancelUnwritten() const {
  if (state_ == State::kUnwritten) round_->Cancel();
}

bool RunningPull::NoteProgress(size_t agent, uint64_t bytes, Time now) {
  bytes_done_ += bytes - std::min(bytes, part_bytes_[agent]);
  part_bytes_[agent] = std::max(part_bytes_[agent], bytes);
  if (now < reported_ + kReportEvery) return false;
  reported_ = now;
  return true;
}

}  // namespace deltawire::receiver
