// What a receiver does as a member of a group: whether it follows the newest state or its group's
// word, what it prepares, commits and drops, and what it answers (docs/groups.md). It does no I/O:
// its choices follow from what it was told and what the replica holds. Owner: a Replica, under its
// lock. Cost: some hundred bytes. Errors: only SyncGoal returns one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/group_word.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "receiver/attach/follower.h"

namespace deltawire::receiver {

class GroupMember {
 public:
  enum class Do : uint8_t {
    kFollow,   ///< it is in no group
    kHold,     ///< nothing, for the reason `why`
    kPrepare,  ///< pull `goal`, and stop before anything changes that a reader sees
    kCommit,   ///< commit what is prepared
    kPull,     ///< pull `goal` and commit it
    kDrop,     ///< give up what is prepared
  };
  struct Choice {
    Do what = Do::kFollow;
    Identity goal;
    std::string why;
    bool idle = false;  ///< of kHold: what the trainer still writes may be made ready meanwhile
  };
  using Situation = Follower::Situation;

  /// The sender said `word`. It is empty when the sender, or relay, has this receiver in no group.
  void Told(const GroupWord& word);
  bool bound() const { return !word_.name.empty(); }
  const std::string& group() const { return word_.name; }

  Choice Next(const Situation& s) const;
  GroupReport report(const Situation& s) const;
  /// The state that a requested sync brings a member to: what its group decided on last.
  /// kFailedPrecondition: the group has decided on nothing yet, or a later state is here.
  StatusOr<Identity> SyncGoal(const Situation& s) const;

  // What became of a choice.
  /// The replica holds `state` ready. `unasked`: it came while it was written, and the group may
  /// ask for it any time.
  void Prepared(const Identity& state, bool unasked = false);
  /// What was prepared was given up.
  void NotPrepared() { prepared_ = {}; }
  const Identity& prepared() const { return prepared_; }
  /// The state of the open round cannot be prepared here, however often it is tried.
  void Refuse(const std::string& why);
  /// An attempt to pull `goal` failed. `refused`: the sender refused to open the pull, so it may
  /// not have that state any more. After some failures in a row of a kind that no repetition cures,
  /// a member refuses what was to be prepared, and no longer waits for what was decided.
  void Failed(const Identity& goal, const Status& why, bool refused);
  /// A state was committed, prepared before or not.
  void Committed();

 private:
  bool LacksDecision(const Situation& s) const;
  bool Gone(const Identity& state) const;
  bool refused() const { return !refusal_.empty() && refused_round_ == word_.round; }

  GroupWord word_;
  Identity prepared_;           // epoch 0: nothing
  bool unasked_ = false;        // ... and no word has named any state since
  uint64_t refused_round_ = 0;  // the round whose state cannot be prepared here
  std::string refusal_;         // why it cannot; empty: no round was refused
  /// States that no upstream has any more, to judge by its answers: the decided one, or the one
  /// that was held before chunks went bad.
  std::vector<Identity> gone_;
  Identity failing_;  // the goal of the last failed attempts
  uint32_t failures_ = 0;
};

}  // namespace deltawire::receiver
