#include "sender/agent/fleet/group_course.h"

#include <algorithm>

namespace deltawire::sender {
namespace {

using Phase = GroupPhase;
using State = GroupMemberState;

double Seconds(GroupCourse::Time from, GroupCourse::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

std::string_view ToString(GroupPhase phase) {
  constexpr std::string_view kNames[] = {"idle", "preparing", "deciding", "committing"};
  return kNames[static_cast<size_t>(phase)];
}

GroupCourse::GroupCourse(Traits traits, GroupDecision last, uint64_t first_round, Time now)
    : traits_(std::move(traits)),
      roster_(traits_.members, now),
      status_{.round = last.round, .target = {}, .decision = last, .last = {}},
      next_round_(first_round) {}

Status GroupCourse::Begin(const Identity& target, Time now) {
  const bool same = status_.target == target;
  if (status_.phase == Phase::kPreparing && same) return absl::OkStatus();
  if (status_.phase == Phase::kPreparing || status_.phase == Phase::kDeciding) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "group \"{}\": its round {} for {} is not decided; try again when it is",
                  traits_.name, status_.round, ToString(status_.target));
  }
  if (status_.phase == Phase::kCommitting && same) return absl::OkStatus();
  // Members that the round before still waits for are late. The next word brings them up, too.
  if (status_.phase == Phase::kCommitting) {
    roster_.MarkLate(/*only_away=*/false);
    CheckCommits(now);
  }
  status_.phase = Phase::kPreparing;
  status_.round = next_round_++;
  status_.target = target;
  times_ = {.began = now, .first_commit = {}, .last_commit = {}};
  deadline_ = now + traits_.timeout;
  roster_.AskAll();
  return absl::OkStatus();
}

void GroupCourse::Abort(const std::string& why, Time now) {
  ++status_.aborts;
  retry_ = {now + retry_.pause, std::min(2 * retry_.pause, kLongestRetry)};
  End({.round = status_.round, .target = status_.target, .message = why});
}

void GroupCourse::End(GroupOutcome outcome) {
  outcome.members = static_cast<uint32_t>(roster_.size());
  status_.last = std::move(outcome);
  status_.phase = Phase::kIdle;
  status_.target = {};
  deadline_ = Time::max();
}

void GroupCourse::Attached(const std::string& id, Time now) {
  if (roster_.Find(id) != nullptr) roster_.Attach(id, now);
}

void GroupCourse::Detached(const std::string& id, Time now) {
  const GroupRoster::Member* member = roster_.Find(id);
  if (member == nullptr || !member->present) return;
  roster_.SetPresent(id, false, now);
  if (status_.phase == Phase::kCommitting) {
    roster_.MarkLate(id);
    CheckCommits(now);
  } else if (member->state != State::kLate) {
    // If it was killed, it has lost what it had prepared.
    roster_.Set(id, State::kAway);
  }
}

void GroupCourse::Reported(const std::string& id, const Identity& committed,
                           const GroupReport& answer, const std::string& message, Time now) {
  const GroupRoster::Member* member = roster_.Find(id);
  if (member == nullptr) return;
  roster_.SetPresent(id, true, now);
  const bool answers = answer.round == status_.round;
  const bool refuses = answers && !answer.refusal.empty();
  roster_.SetMessage(id, refuses ? answer.refusal : message);
  if (status_.phase == Phase::kPreparing) {
    roster_.Set(id, refuses                      ? State::kRefused
                    : answers && answer.prepared ? State::kPrepared
                                                 : State::kAsked);
    return CheckAnswers(now);
  }
  if (status_.phase == Phase::kDeciding || status_.decision.state.empty()) return;
  const bool has = committed == status_.decision.state;
  if (status_.phase == Phase::kIdle) {
    // An orchestrator's group does not keep a member that cannot commit any more. One that still
    // has the state prepared tries again.
    const bool let_go = refuses && !answer.prepared && !traits_.standing;
    if (has || let_go) roster_.Set(id, State::kCommitted);
    return;
  }
  if (has && member->state != State::kCommitted) {
    // A member that left and came back does not count for the spread of the others.
    if (member->state != State::kLate) {
      if (!times_.first_commit) times_.first_commit = now;
      times_.last_commit = now;
    }
    roster_.Set(id, State::kCommitted);
    roster_.SetMessage(id, "");
  } else if (!has && refuses) {
    roster_.MarkLate(id);
  }
  CheckCommits(now);
}

void GroupCourse::CheckAnswers(Time now) {
  if (roster_.count(State::kRefused) > 0) return Abort(roster_.DescribeRefusal(), now);
  const auto absent = traits_.skip_absent ? std::optional(now - kAbsent) : std::nullopt;
  if (roster_.count(State::kPrepared) == 0 || !roster_.IsPrepared(absent)) return;
  status_.phase = Phase::kDeciding;
  times_.decided = now;
  deadline_ = Time::max();
}

std::optional<GroupDecision> GroupCourse::to_write() const {
  if (status_.phase != Phase::kDeciding) return std::nullopt;
  return GroupDecision{status_.round, status_.target};
}

void GroupCourse::Written(Time now) {
  status_.decision = {status_.round, status_.target};
  status_.phase = Phase::kCommitting;
  times_.word = now;
  deadline_ = now + traits_.timeout;
  roster_.MarkLate(/*only_away=*/true);
  CheckCommits(now);
}

void GroupCourse::NotWritten(const Status& why, Time now) {
  Abort(fmt::format("the decision could not be written: {}", MessageOf(why)), now);
}

void GroupCourse::CheckCommits(Time now) {
  if (status_.phase != Phase::kCommitting) return;
  const size_t late = roster_.count(State::kLate);
  if (roster_.count(State::kCommitted) + late < roster_.size()) return;
  ++status_.commits;
  retry_ = {.at = now};
  GroupOutcome outcome{.round = status_.round,
                       .committed = true,
                       .target = status_.decision.state,
                       .message = roster_.DescribeLate(),
                       .late = static_cast<uint32_t>(late),
                       .prepare_seconds = Seconds(times_.began, times_.decided)};
  if (times_.last_commit) {
    outcome.spread_seconds = Seconds(*times_.first_commit, *times_.last_commit);
    outcome.word_seconds = Seconds(times_.word, *times_.last_commit);
  }
  End(std::move(outcome));
}

void GroupCourse::Published(const Identity& newest, Time now) {
  if (newest.empty() || IsLater(newest_, newest)) return;
  if (!(newest_ == newest)) retry_ = {.at = now};
  newest_ = newest;
  if (status_.phase == Phase::kPreparing && !(newest.lineage == status_.target.lineage)) {
    Abort("the model was made anew meanwhile", now);
  } else if (status_.phase == Phase::kPreparing && newest.id.epoch > status_.target.id.epoch) {
    Abort(fmt::format("the model was rolled back meanwhile, to {}", ToString(newest)), now);
  }
  BeginIfDue(now);
}

void GroupCourse::BeginIfDue(Time now) {
  if (!traits_.every_version || status_.phase != Phase::kIdle || newest_.empty()) return;
  if (newest_ == status_.decision.state || now < retry_.at) return;
  (void)Begin(newest_, now);
}

void GroupCourse::Tick(Time now) {
  if (status_.phase == Phase::kPreparing && now >= deadline_) {
    Abort(fmt::format("not all had prepared it after {} ms: {}", traits_.timeout.count(),
                      roster_.DescribeUnprepared()),
          now);
  } else if (status_.phase == Phase::kPreparing) {
    CheckAnswers(now);  // a member that is away may count as absent by now
  } else if (status_.phase == Phase::kCommitting && now >= deadline_) {
    roster_.MarkLate(/*only_away=*/false);
    CheckCommits(now);
  }
  BeginIfDue(now);
}

GroupCourse::Time GroupCourse::NextTick(Time now) const {
  if (status_.phase == Phase::kIdle) {
    const bool due =
        traits_.every_version && !newest_.empty() && !(newest_ == status_.decision.state);
    return due ? retry_.at : Time::max();
  }
  if (status_.phase != Phase::kPreparing || !traits_.skip_absent) return deadline_;
  const auto left = roster_.FirstLeaveAfter(now - kAbsent);
  return left ? std::min<Time>(deadline_, *left + kAbsent) : deadline_;
}

GroupWord GroupCourse::word() const {
  GroupWord word{.name = traits_.name, .round = status_.round, .commit = status_.decision.state};
  // While the decision is written, members keep what they have prepared.
  if (status_.phase == Phase::kPreparing || status_.phase == Phase::kDeciding) {
    word.prepare = status_.target;
  }
  return word;
}

bool GroupCourse::over() const {
  if (traits_.standing || status_.phase != Phase::kIdle) return false;
  return status_.decision.state.empty() || roster_.count(State::kCommitted) == roster_.size();
}

}  // namespace deltawire::sender
