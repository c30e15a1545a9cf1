#include "receiver/attach/group_member.h"

#include <algorithm>

namespace deltawire::receiver {
namespace {

// A state counts as gone after three pulls that the sender refused to open or that brought other
// bytes, or after nine that it cut: it also cuts pulls to make way for the trainer, and they
// resume.
constexpr uint32_t kGone = 9, kFailureCounts = 3, kCutCounts = 1;

// Whether the next attempt may succeed although nothing is changed at either end.
bool MayPass(const Status& why) {
  return !absl::IsAborted(why) && !absl::IsResourceExhausted(why) && !absl::IsDataLoss(why);
}

bool Holds(const Identity& committed, const Identity& state) {
  return committed == state || IsLater(committed, state);
}

}  // namespace

void GroupMember::SetWord(const GroupWord& word) {
  // A round that is tried again must not find the same state gone each time before it goes on.
  if (!(word.commit == word_.commit)) gone_.clear();
  word_ = word;
  unasked_ = unasked_ && bound() && word.prepare.empty();
}

bool GroupMember::IsGone(const Identity& state) const {
  return std::find(gone_.begin(), gone_.end(), state) != gone_.end();
}

bool GroupMember::LacksDecision(const Situation& s) const {
  return !word_.commit.empty() && !Holds(s.held(), word_.commit);
}

GroupMember::Choice GroupMember::Next(const Situation& s) const {
  const bool prepared = !prepared_.empty();
  const bool decided = prepared && prepared_ == word_.commit;
  const bool open = prepared && prepared_ == word_.prepare;
  // A paused receiver acts as one that is away: it commits when it is resumed.
  const bool wanted = decided || open || unasked_;
  if (prepared && (s.paused || s.corrupt || !wanted)) return {.what = Do::kDrop};
  if (!bound()) return {.what = Do::kFollow};
  if (s.paused) return {.what = Do::kHold};
  if (decided) return {.what = Do::kCommit, .goal = prepared_};
  if (LacksDecision(s) && !IsGone(word_.commit)) {
    if (prepared) return {.what = Do::kDrop};
    return {.what = Do::kPull, .goal = word_.commit};
  }
  if (s.corrupt || (s.committed.empty() && !s.last_whole.empty())) {
    // Corrupt weights are repaired to the version that they had.
    if (!IsGone(s.last_whole)) return {.what = Do::kPull, .goal = s.last_whole};
  }
  const std::string of = fmt::format("group {}", word_.name);
  if (word_.prepare.empty()) {
    if (prepared) {
      return {.what = Do::kHold,
              .why = fmt::format("{}: {} has come, and waits for the group's word", of,
                                 ToString(prepared_))};
    }
    if (gone_.empty()) return {.what = Do::kHold, .idle = true};
    return {.what = Do::kHold,
            .why = fmt::format("{}: no sender has {} any more; waiting for the next version that "
                               "the group commits",
                               of, ToString(gone_.back()))};
  }
  if (open) {
    return {.what = Do::kHold,
            .why = fmt::format("{}: {} is prepared, and waits for the others", of,
                               ToString(prepared_))};
  }
  if (refused()) return {.what = Do::kHold, .why = fmt::format("{}: {}", of, refusal_)};
  if (Holds(s.committed, word_.prepare)) return {.what = Do::kHold, .idle = true};
  return {.what = Do::kPrepare, .goal = word_.prepare};
}

GroupReport GroupMember::report(const Situation& s) const {
  if (!bound()) return {};
  GroupReport report{.round = word_.round};
  const bool asked = !word_.prepare.empty();
  if (s.paused && (asked || LacksDecision(s))) {
    report.refusal = "it is paused";
  } else if (!obstacle_.empty() && prepared_ == word_.commit) {
    report.prepared = true;  // so it is late, and has not given up
    report.refusal = fmt::format("it cannot commit {}: {}", ToString(prepared_), obstacle_);
  } else if (asked && IsLater(s.committed, word_.prepare)) {
    report.refusal = fmt::format("it holds {}, which is later", ToString(s.committed));
  } else if (asked && refused()) {
    report.refusal = refusal_;
  } else if (!asked && LacksDecision(s) && IsGone(word_.commit)) {
    report.refusal = fmt::format("no sender has {} any more", ToString(word_.commit));
  } else {
    report.prepared = asked && (prepared_ == word_.prepare || s.committed == word_.prepare);
  }
  return report;
}

StatusOr<Identity> GroupMember::SyncGoal(const Situation& s) const {
  if (!word_.commit.empty() && !IsLater(s.held(), word_.commit)) return word_.commit;
  if (s.corrupt && !s.held().empty()) return s.held();
  return Errorf(
      StatusCode::kFailedPrecondition,
      "this receiver is a member of group {}, which {}; `deltawire sync --group {}` brings "
      "all members to the newest version",
      word_.name,
      word_.commit.empty()
          ? "has committed nothing yet"
          : fmt::format("is at {}, and {} is here", ToString(word_.commit), ToString(s.committed)),
      word_.name);
}

void GroupMember::NotePrepared(const Identity& state, bool unasked) {
  prepared_ = state;
  unasked_ = unasked && bound() && word_.prepare.empty();
  failures_ = 0;
}

void GroupMember::NoteDiscarded() {
  prepared_ = {};
  obstacle_.clear();
}

void GroupMember::NoteCommit() {
  NoteDiscarded();
  gone_.clear();
  failures_ = 0;
}

void GroupMember::Refuse(const std::string& why) {
  refused_round_ = word_.round;
  refusal_ = why;
}

void GroupMember::NoteFailure(const Identity& goal, const Status& why, bool refused) {
  if (MayPass(why) || !(failing_ == goal)) failures_ = 0;
  failing_ = goal;
  if (MayPass(why)) return;
  failures_ += absl::IsAborted(why) && !refused ? kCutCounts : kFailureCounts;
  if (failures_ < kGone) return;
  failures_ = 0;
  if (goal == word_.prepare) {
    Refuse(std::string(MessageOf(why)));
  } else if (!absl::IsResourceExhausted(why)) {
    gone_.push_back(goal);
  }
}

}  // namespace deltawire::receiver
