#include "receiver/replica/planner.h"

#include <numeric>
#include <utility>

#include "common/base/trace.h"

namespace deltawire::receiver {

Planner::Planner(const std::vector<std::string>& addresses, const Follower::Options& options,
                 const Env& env)
    : env_(env), follower_(addresses, options), delta_bytes_(addresses.size()) {}

Planner::Change Planner::NoteEvent(size_t agent, const SenderEvent& event) {
  MutexLock lock(mu_);
  const Identity newest = follower_.newest(agent), incoming = follower_.incoming(agent);
  follower_.NoteEvent(agent, event);
  if (delta_bytes_.size() == 1) member_.SetWord(event.group);
  delta_bytes_[agent] = event.newest.delta_bytes;
  const Identity& coming = event.incoming.version;
  Change change{
      .named = {}, .incoming = !(incoming == coming), .all_attached = follower_.attached()};
  const TraceId known = TraceOf(newest), known_incoming = TraceOf(incoming);
  if (const TraceId trace = TraceOf(event.newest.identity);
      !event.newest.identity.empty() && !(trace == known) && !(trace == known_incoming)) {
    change.named.push_back(event.newest.identity);
  }
  if (!coming.empty() && !(TraceOf(coming) == known_incoming)) change.named.push_back(coming);
  return change;
}

bool Planner::NoteEnded(size_t agent) {
  MutexLock lock(mu_);
  const bool was_attached = follower_.attached(agent);
  follower_.NoteEnd(agent);
  return was_attached;
}

void Planner::Learn(size_t agent, const Identity& newest) {
  MutexLock lock(mu_);
  follower_.Learn(agent, newest);
}

Follower::Situation Planner::Situation() const {
  const BufferFacts facts = env_.home.facts();
  return {.committed = env_.gate.version().committed(),
          .last_whole = facts.last_whole,
          .paused = env_.run.paused() && !env_.gate.version().half_updated(),
          .requested = env_.requests.wants_pull(),
          .corrupt = !env_.corrupt.empty(),
          .checking = env_.requests.wants_check(),
          .member = member_.bound(),
          .one_file = facts.buffers == 1};
}

Planner::Plan Planner::NextUnder(Time now) const {
  const Follower::Situation situation = Situation();
  GroupMember::Choice group = member_.Next(situation);
  Plan plan{.attached = follower_.attached(), .what = group.what, .choice = {}};
  switch (group.what) {
    case GroupMember::Do::kFollow:
      plan.choice = follower_.Next(situation, now);
      break;
    case GroupMember::Do::kPrepare:
    case GroupMember::Do::kPull:
      if (plan.attached) plan.choice = follower_.ChooseExactly(group.goal, now);
      break;
    case GroupMember::Do::kHold:
      if (group.idle) plan.choice = follower_.ChooseUnwritten(situation, now);
      if (plan.choice.pull) plan.what = GroupMember::Do::kPrepare;
      plan.choice.why = std::move(group.why);
      break;
    case GroupMember::Do::kCommit:
      plan.choice = follower_.ChooseExactly(group.goal, now);
      if (!plan.choice.pull) plan.what = GroupMember::Do::kHold;  // after an attempt that failed
      break;
    case GroupMember::Do::kDrop:
      plan.choice.why = std::move(group.why);
      break;
  }
  return plan;
}

Planner::Plan Planner::Next(std::span<const Identity> unwritten, Time now) const {
  MutexLock lock(mu_);
  if (!follower_.attached()) return {};
  Plan plan = NextUnder(now);
  plan.lost = follower_.IsAbandoned(unwritten);
  return plan;
}

bool Planner::WantsPull(bool incoming) const {
  MutexLock lock(mu_);
  const Follower::Choice next = NextUnder(SteadyClock::now()).choice;
  return next.pull && (incoming || !next.target.unwritten());
}

bool Planner::NeedsNewest() const {
  MutexLock lock(mu_);
  return !member_.bound() && (delta_bytes_.size() > 1 || follower_.newest(0).empty());
}

StatusOr<Follower::Target> Planner::SyncTarget(const std::string& model, bool or_older) const {
  MutexLock lock(mu_);
  Follower::Situation situation = Situation();
  if (member_.bound()) {
    DW_ASSIGN_OR_RETURN(const Identity goal, member_.SyncGoal(situation));
    return Follower::ExactTarget(goal);
  }
  situation.requested = true;
  Follower::Choice choice = follower_.Next(situation, SteadyClock::now());
  const bool older = IsLater(situation.held(), choice.target.whole);
  if (choice.pull && (or_older || !older)) return std::move(choice.target);
  return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": {}", model, choice.why);
}

bool Planner::HasPublished(const RunningPull& pull) const {
  if (!pull.began_unwritten()) return false;
  MutexLock lock(mu_);
  return follower_.IsPublished(pull.parts());
}

void Planner::NotifyRound(const RunningPull& pull) const {
  if (!pull.began_unwritten()) return;
  MutexLock lock(mu_);
  for (size_t agent = 0; agent < pull.parts().size(); ++agent) {
    if (follower_.HasPart(agent, pull.parts()[agent])) pull.round()->Announce(agent);
  }
}

bool Planner::Obsoletes(const RunningPull& pull) const {
  if (!pull.began_unwritten()) return false;
  MutexLock lock(mu_);
  const Follower::Situation situation = Situation();
  if (delta_bytes_.size() > 1) {
    // An agent that is behind the others' incoming version may publish one between first.
    const auto common = follower_.NewestCommon();
    const bool overtaken = common && IsLater(common->whole, situation.held());
    return overtaken || follower_.IsAbandoned(pull.parts());
  }
  // The pull from a single agent ends by itself when the agent abandons the version.
  const GroupMember::Choice group = member_.Next(situation);
  if (env_.gate.limit() != BufferGate::Limit::kPrepare) {
    return group.what != GroupMember::Do::kFollow;
  }
  const bool asked = group.what == GroupMember::Do::kPrepare && IsOf(pull.target(), group.goal);
  return !asked && !(group.what == GroupMember::Do::kHold && group.idle);
}

void Planner::NotePull(const Follower::Target& target, const Outcome& outcome) {
  MutexLock lock(mu_);
  const Status& status = outcome.status;
  if (target.incoming && !status.ok()) follower_.ForgetIncoming(target);
  const bool reached = outcome.hold || !IsLater(target.whole, env_.gate.version().committed());
  const Time now = SteadyClock::now();
  if (!outcome.paused && !outcome.withdrawn) follower_.NotePullEnd(status, reached, now);
  if (!target.exact || target.incoming || outcome.paused) return;
  if (status.ok()) {
    if (!outcome.hold) member_.NoteCommit();
  } else if (outcome.hold && env_.gate.refusal() == BufferGate::Refusal::kCannotPrepare) {
    member_.Refuse(std::string(MessageOf(status)));
  } else {
    member_.NoteFailure(target.whole, status, outcome.refused);
  }
}

void Planner::NotePrepared(const Identity& version, bool unasked) {
  MutexLock lock(mu_);
  member_.NotePrepared(version, unasked);
}

void Planner::NoteDiscarded() {
  MutexLock lock(mu_);
  member_.NoteDiscarded();
}

void Planner::NoteCommit(const Status& ended, bool paused, bool kept) {
  MutexLock lock(mu_);
  if (ended.ok()) {
    member_.NoteCommit();
  } else if (kept) {
    member_.NoteCommitFailure(ended);
  } else {
    member_.NoteDiscarded();
  }
  if (!paused) follower_.NotePullEnd(ended, true, SteadyClock::now());
}

void Planner::NotePart(size_t agent, const Identity& part) {
  MutexLock lock(mu_);
  if (IsLater(part, follower_.newest(agent))) follower_.Learn(agent, part);
}

Planner::Known Planner::known() const {
  MutexLock lock(mu_);
  Known known{.agents = {},
              .attached = follower_.attached(),
              .newest = {},
              .group = member_.group(),
              .prepared = member_.prepared()};
  for (size_t i = 0; i < delta_bytes_.size(); ++i) {
    known.agents.push_back({.newest = follower_.newest(i), .attached = follower_.attached(i)});
  }
  if (const auto common = follower_.NewestCommon()) known.newest = common->whole;
  known.delta_bytes = std::accumulate(delta_bytes_.begin(), delta_bytes_.end(), uint64_t{0});
  return known;
}

bool Planner::attached() const {
  MutexLock lock(mu_);
  return follower_.attached();
}

GroupReport Planner::report() const {
  MutexLock lock(mu_);
  return member_.report(Situation());
}

}  // namespace deltawire::receiver
