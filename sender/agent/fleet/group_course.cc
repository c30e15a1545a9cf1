#include "sender/agent/fleet/group_course.h"

#include <algorithm>

namespace deltawire::sender {
namespace {

// The most members that a message names.
constexpr size_t kMostNamed = 8;

double Seconds(GroupCourse::Time from, GroupCourse::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

std::string_view ToString(GroupMemberState state) {
  constexpr std::string_view kNames[] = {"away",    "asked",     "prepared",
                                         "refused", "committed", "late"};
  return kNames[static_cast<size_t>(state)];
}

std::string_view ToString(GroupCourse::Phase phase) {
  constexpr std::string_view kNames[] = {"idle", "preparing", "deciding", "committing"};
  return kNames[static_cast<size_t>(phase)];
}

GroupCourse::GroupCourse(Traits traits, GroupDecision last, uint64_t first_round, Time now)
    : traits_(std::move(traits)), round_(last.round), next_round_(first_round), decision_(last) {
  for (size_t i = 0; i < traits_.members.size(); ++i) {
    const auto [member, is_new] = members_.try_emplace(traits_.members[i]);
    member->second.index = i;
    if (!is_new) continue;
    member->second.away_since = now;
    away_since_.insert(now);
    ++counts_[static_cast<size_t>(GroupMemberState::kAway)];
  }
}

void GroupCourse::Set(Member& member, GroupMemberState state) {
  const auto unprepared = [&] {
    return member.present && member.state != GroupMemberState::kPrepared ? 1U : 0U;
  };
  present_unprepared_ -= unprepared();
  --counts_[static_cast<size_t>(member.state)];
  member.state = state;
  ++counts_[static_cast<size_t>(state)];
  present_unprepared_ += unprepared();
}

void GroupCourse::SetPresent(Member& member, bool present, Time now) {
  if (member.present == present) return;
  if (present) {
    away_since_.erase(away_since_.find(member.away_since));
  } else {
    member.away_since = now;
    away_since_.insert(now);
  }
  member.present = present;
  if (member.state != GroupMemberState::kPrepared) present_unprepared_ += present ? 1 : -1;
}

Status GroupCourse::Begin(const Identity& target, Time now) {
  const bool same = target_ == target;
  if (phase_ == Phase::kPreparing && same) return absl::OkStatus();
  if (phase_ == Phase::kPreparing || phase_ == Phase::kDeciding) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "group \"{}\": its round {} for {} is not decided; try again when it is",
                  traits_.name, round_, ToString(target_));
  }
  if (phase_ == Phase::kCommitting && same) return absl::OkStatus();
  // Members that the round before still waits for are late; the next word brings them up, too.
  if (phase_ == Phase::kCommitting) {
    for (auto& [id, member] : members_) Late(member);
    LookAtCommits(now);
  }
  phase_ = Phase::kPreparing;
  round_ = next_round_++;
  target_ = target;
  began_ = now;
  deadline_ = now + traits_.timeout;
  for (auto& [id, member] : members_) {
    Set(member, member.present ? GroupMemberState::kAsked : GroupMemberState::kAway);
    member.message.clear();
  }
  ++all_changed_;
  return absl::OkStatus();
}

void GroupCourse::Abort(const std::string& why, Time now) {
  ++aborts_;
  retry_at_ = now + retry_pause_;
  retry_pause_ = std::min(2 * retry_pause_, kLongestRetry);
  End({.round = round_, .target = target_, .message = why});
}

void GroupCourse::End(GroupOutcome outcome) {
  outcome.members = static_cast<uint32_t>(members_.size());
  last_ = std::move(outcome);
  phase_ = Phase::kIdle;
  target_ = {};
  deadline_ = Time::max();
}

void GroupCourse::Attached(const std::string& id, Time now) {
  const auto it = members_.find(id);
  if (it == members_.end()) return;
  Member& member = it->second;
  SetPresent(member, true, now);
  if (member.state == GroupMemberState::kAway) Set(member, GroupMemberState::kAsked);
  ++all_changed_;
}

void GroupCourse::Detached(const std::string& id, Time now) {
  const auto it = members_.find(id);
  if (it == members_.end() || !it->second.present) return;
  Member& member = it->second;
  SetPresent(member, false, now);
  if (phase_ == Phase::kCommitting) {
    Late(member);
    LookAtCommits(now);
  } else if (member.state != GroupMemberState::kLate) {
    // If it was killed, what it had prepared is gone.
    Set(member, GroupMemberState::kAway);
  }
}

void GroupCourse::Reported(const std::string& id, const Identity& committed,
                           const GroupReport& answer, const std::string& message, Time now) {
  const auto it = members_.find(id);
  if (it == members_.end()) return;
  Member& member = it->second;
  SetPresent(member, true, now);
  const bool answers = answer.round == round_;
  const bool refuses = answers && !answer.refusal.empty();
  member.message = refuses ? answer.refusal : message;
  if (phase_ == Phase::kPreparing) {
    Set(member, refuses                      ? GroupMemberState::kRefused
                : answers && answer.prepared ? GroupMemberState::kPrepared
                                             : GroupMemberState::kAsked);
    return LookAtAnswers(now);
  }
  if (phase_ == Phase::kDeciding || decision_.state.empty()) return;
  const bool has = committed == decision_.state;
  if (phase_ == Phase::kIdle) {
    // An orchestrator's group does not hold on to a member that cannot get there any more.
    const bool let_go = refuses && !traits_.standing;
    if (has || let_go) Set(member, GroupMemberState::kCommitted);
    return;
  }
  if (has && member.state != GroupMemberState::kCommitted) {
    // A member that had gone and has come back does not count for the spread of the others.
    if (member.state != GroupMemberState::kLate) {
      if (!first_commit_) first_commit_ = now;
      last_commit_ = now;
    }
    Set(member, GroupMemberState::kCommitted);
    member.message.clear();
  } else if (!has && refuses) {
    Late(member);
  }
  LookAtCommits(now);
}

void GroupCourse::Late(Member& member) {
  if (member.state != GroupMemberState::kCommitted) Set(member, GroupMemberState::kLate);
}

bool GroupCourse::Waits(Time now) const {
  if (count(GroupMemberState::kPrepared) == members_.size()) return false;
  if (!traits_.skip_absent || present_unprepared_ > 0) return true;
  return now < *away_since_.rbegin() + kAbsent;
}

void GroupCourse::LookAtAnswers(Time now) {
  if (count(GroupMemberState::kRefused) > 0) {
    const auto refused = [](const auto& m) { return m.second.state == GroupMemberState::kRefused; };
    const auto& [id, member] = *std::ranges::find_if(members_, refused);
    return Abort(fmt::format("{} cannot prepare it: {}", id, member.message), now);
  }
  if (count(GroupMemberState::kPrepared) == 0 || Waits(now)) return;
  phase_ = Phase::kDeciding;
  decided_ = now;
  deadline_ = Time::max();
}

std::optional<GroupDecision> GroupCourse::to_write() const {
  if (phase_ != Phase::kDeciding) return std::nullopt;
  return GroupDecision{round_, target_};
}

void GroupCourse::Written(Time now) {
  decision_ = {round_, target_};
  phase_ = Phase::kCommitting;
  word_at_ = now;
  deadline_ = now + traits_.timeout;
  first_commit_.reset();
  last_commit_.reset();
  for (auto& [id, member] : members_) {
    if (!member.present) Late(member);
  }
  ++all_changed_;
  LookAtCommits(now);
}

void GroupCourse::NotWritten(const Status& why, Time now) {
  Abort(fmt::format("the decision could not be written: {}", MessageOf(why)), now);
}

void GroupCourse::LookAtCommits(Time now) {
  if (phase_ != Phase::kCommitting) return;
  const size_t late = count(GroupMemberState::kLate);
  if (count(GroupMemberState::kCommitted) + late < members_.size()) return;
  ++commits_;
  retry_pause_ = kFirstRetry;
  retry_at_ = now;
  GroupOutcome outcome{.round = round_,
                       .committed = true,
                       .target = decision_.state,
                       .message = NotCommitted(),
                       .late = static_cast<uint32_t>(late),
                       .prepare_seconds = Seconds(began_, decided_)};
  if (last_commit_) {
    outcome.spread_seconds = Seconds(*first_commit_, *last_commit_);
    outcome.word_seconds = Seconds(word_at_, *last_commit_);
  }
  End(std::move(outcome));
}

std::string GroupCourse::NotPrepared() const {
  std::string text;
  size_t named = 0, others = 0;
  for (const auto& [id, member] : members_) {
    if (member.state == GroupMemberState::kPrepared) continue;
    if (named == kMostNamed) {
      ++others;
      continue;
    }
    ++named;
    text += fmt::format("{}{} ({}{}{})", text.empty() ? "" : ", ", id,
                        member.present ? "not ready" : "not attached",
                        member.message.empty() ? "" : ": ", member.message);
  }
  return others == 0 ? text : fmt::format("{} and {} more", text, others);
}

std::string GroupCourse::NotCommitted() const {
  std::string text;
  size_t named = 0, others = 0;
  for (const auto& [id, member] : members_) {
    if (member.state != GroupMemberState::kLate) continue;
    if (named == kMostNamed) {
      ++others;
      continue;
    }
    ++named;
    text += fmt::format("{}{}{}", text.empty() ? "late: " : ", ", id,
                        member.message.empty() ? "" : fmt::format(" ({})", member.message));
  }
  return others == 0 ? text : fmt::format("{} and {} more", text, others);
}

void GroupCourse::Published(const Identity& newest, Time now) {
  if (newest.empty() || IsLater(newest_, newest)) return;
  if (!(newest_ == newest)) {
    retry_at_ = now;
    retry_pause_ = kFirstRetry;
  }
  newest_ = newest;
  if (phase_ == Phase::kPreparing && !(newest.lineage == target_.lineage)) {
    Abort("the model was made anew meanwhile", now);
  } else if (phase_ == Phase::kPreparing && newest.id.epoch > target_.id.epoch) {
    Abort(fmt::format("the model was rolled back meanwhile, to {}", ToString(newest)), now);
  }
  BeginIfDue(now);
}

void GroupCourse::BeginIfDue(Time now) {
  if (!traits_.every_version || phase_ != Phase::kIdle || newest_.empty()) return;
  if (newest_ == decision_.state || now < retry_at_) return;
  (void)Begin(newest_, now);
}

void GroupCourse::Tick(Time now) {
  if (phase_ == Phase::kPreparing && now >= deadline_) {
    Abort(fmt::format("not all had prepared it after {} ms: {}", traits_.timeout.count(),
                      NotPrepared()),
          now);
  } else if (phase_ == Phase::kPreparing) {
    LookAtAnswers(now);  // a member that is away may count as absent by now
  } else if (phase_ == Phase::kCommitting && now >= deadline_) {
    for (auto& [id, member] : members_) Late(member);
    ++all_changed_;
    LookAtCommits(now);
  }
  BeginIfDue(now);
}

GroupCourse::Time GroupCourse::NextTick(Time now) const {
  if (phase_ == Phase::kIdle) {
    const bool due = traits_.every_version && !newest_.empty() && !(newest_ == decision_.state);
    return due ? retry_at_ : Time::max();
  }
  Time next = deadline_;
  if (phase_ != Phase::kPreparing || !traits_.skip_absent) return next;
  const auto absent_next = away_since_.upper_bound(now - kAbsent);
  return absent_next == away_since_.end() ? next : std::min<Time>(next, *absent_next + kAbsent);
}

GroupWord GroupCourse::word() const {
  GroupWord word{.name = traits_.name, .round = round_, .commit = decision_.state};
  // While the decision is written, members keep what they have prepared.
  if (phase_ == Phase::kPreparing || phase_ == Phase::kDeciding) word.prepare = target_;
  return word;
}

bool GroupCourse::over() const {
  if (traits_.standing || phase_ != Phase::kIdle) return false;
  return decision_.state.empty() || count(GroupMemberState::kCommitted) == members_.size();
}

}  // namespace deltawire::sender
