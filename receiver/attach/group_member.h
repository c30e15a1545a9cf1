// The choices of a receiver as a member of a group: which state it prepares, commits or discards,
// and its answer to the group (docs/groups.md). Pure: they follow from the group's word and from
// what the replica holds. A Planner owns it, under its lock.
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
    kHold,     ///< do nothing, for the reason `why`
    kPrepare,  ///< pull `goal`, and stop before anything changes that a reader sees
    kCommit,   ///< commit what is prepared
    kPull,     ///< pull `goal` and commit it
    kDrop,     ///< discard what is prepared
  };
  struct Choice {
    Do what = Do::kFollow;
    Identity goal;
    std::string why;
    bool idle = false;  ///< with kHold: an unwritten version may be prepared
  };
  using Situation = Follower::Situation;

  /// Notes the group's word by the sender or relay. It is empty if this receiver is in no group.
  void SetWord(const GroupWord& word);
  bool bound() const { return !word_.name.empty(); }
  const std::string& group() const { return word_.name; }

  Choice Next(const Situation& s) const;
  GroupReport report(const Situation& s) const;
  /// Returns the state to which a requested sync brings a member: the last one that its group
  /// decided on. kFailedPrecondition: the group has decided on none, or a later state is here.
  StatusOr<Identity> SyncGoal(const Situation& s) const;

  // Outcomes of a choice.
  /// `state` is prepared. `unasked`: it came while the trainer wrote it, and the group may ask for
  /// it any time.
  void NotePrepared(const Identity& state, bool unasked = false);
  /// The prepared state was discarded.
  void NoteDiscarded();
  const Identity& prepared() const { return prepared_; }
  /// The state of the open round cannot be prepared here, so there is no second try.
  void Refuse(const std::string& why);
  /// An attempt to pull `goal` failed. `refused`: the sender refused to open the pull, so it may
  /// have lost that state. After some permanent failures in a row a member refuses the state that
  /// it was to prepare, or no longer waits for the state that was decided.
  void NoteFailure(const Identity& goal, const Status& why, bool refused);
  /// A state was committed, prepared before or not.
  void NoteCommit();
  /// The prepared state, on which the group has decided, could not be committed. It is tried again.
  /// Until then the group learns `why` and does not wait for this member.
  void NoteCommitFailure(const Status& why) { obstacle_ = MessageOf(why); }

 private:
  bool LacksDecision(const Situation& s) const;
  bool IsGone(const Identity& state) const;
  bool refused() const { return !refusal_.empty() && refused_round_ == word_.round; }

  GroupWord word_;
  Identity prepared_;           // epoch 0: nothing
  bool unasked_ = false;        // the group has not asked for prepared_ yet
  uint64_t refused_round_ = 0;  // the round whose state cannot be prepared here
  std::string refusal_;         // the reason; empty: no round was refused
  std::string obstacle_;        // to the commit of prepared_; empty: none is known
  /// States that no upstream seems to have: the decided one, or the one that was held before chunks
  /// became corrupt.
  std::vector<Identity> gone_;
  Identity failing_;  // the goal of the last failed attempts
  uint32_t failures_ = 0;
};

}  // namespace deltawire::receiver
