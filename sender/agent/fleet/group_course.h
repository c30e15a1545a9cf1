// The rounds of one group of receivers: all prepare a state and commit it on one word, or all stay
// (docs/groups.md). A state machine (GroupCourse::Phase) without I/O: its owner feeds it events and
// the time, and reads from it the word to tell and the decision to write. An event of one member
// costs O(log members), others O(members). Groups calls it under its lock.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/group_word.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace deltawire::sender {

/// A decision, which must be on disk before any member is told of it. Epoch 0: none.
struct GroupDecision {
  uint64_t round = 0;
  Identity state;
  friend bool operator==(const GroupDecision&, const GroupDecision&) = default;
};

enum class GroupMemberState : uint8_t {
  kAway,       ///< not attached
  kAsked,      ///< attached, and not ready
  kPrepared,   ///< has all of the round's state
  kRefused,    ///< cannot prepare it
  kCommitted,  ///< has committed what the group decided on last
  kLate,       ///< had not committed when that round ended; it follows when it can
};
std::string_view ToString(GroupMemberState state);

/// How a round ended.
struct GroupOutcome {
  uint64_t round = 0;  ///< 0: no round has ended
  bool committed = false;
  Identity target;
  std::string message;  ///< why it was aborted, or who is late
  uint32_t members = 0;
  uint32_t late = 0;
  double prepare_seconds = 0;  ///< from the beginning to the decision
  double spread_seconds = 0;   ///< from the first commit to the last, without those that are late
  double word_seconds = 0;     ///< from the word to the last commit
};

class GroupCourse {
 public:
  using Time = SteadyClock::time_point;
  /// kIdle -> kPreparing -> kDeciding -> kCommitting -> kIdle. kPreparing, kDeciding -> kIdle: the
  /// round is aborted. kCommitting -> kPreparing: the next round begins while some are late.
  enum class Phase : uint8_t { kIdle, kPreparing, kDeciding, kCommitting };

  /// With `skip_absent`, a member that has been away for this long is not waited for. This is
  /// longer than the silence after which an attachment ends, so a restarted sender waits for its
  /// members.
  static constexpr std::chrono::seconds kAbsent{10};
  /// With `every_version`, a state whose round was aborted is tried again after kFirstRetry, then
  /// after twice as long each time up to kLongestRetry.
  static constexpr std::chrono::milliseconds kFirstRetry{1000}, kLongestRetry{30000};

  struct Traits {
    std::string name;
    std::vector<std::string> members;  ///< receiver ids
    bool standing = true;              ///< from the options; false: an orchestrator's
    bool every_version = false;        ///< each published state begins a round
    bool skip_absent = false;          ///< commit without members that are away for kAbsent
    std::chrono::milliseconds timeout{120000};  ///< for kPreparing, and again for kCommitting
  };
  /// `first_round`: the number of the first round, which no earlier process may have used.
  GroupCourse(Traits traits, GroupDecision last, uint64_t first_round, Time now);

  const Traits& traits() const { return traits_; }
  bool has(const std::string& id) const { return members_.contains(id); }
  /// The member's place in traits().members. REQUIRES: has(id).
  size_t index(const std::string& id) const { return members_.at(id).index; }
  /// Rises whenever more than one member may have changed.
  uint64_t all_changed() const { return all_changed_; }

  // Rounds.
  /// Begins a round. Joins the one that runs if it is for `target`; else kFailedPrecondition.
  Status Begin(const Identity& target, Time now);

  // Events.
  void Attached(const std::string& id, Time now);
  void Detached(const std::string& id, Time now);
  /// A member said what it has committed (empty while its only file changes), its answer to the
  /// round, and in `message` what it is waiting for.
  void Reported(const std::string& id, const Identity& committed, const GroupReport& answer,
                const std::string& message, Time now);
  /// The newest published state. A rollback or another lineage aborts a round that is not decided.
  void Published(const Identity& newest, Time now);
  void Tick(Time now);
  Time NextTick(Time now) const;

  // What follows.
  GroupWord word() const;
  /// The decision that the owner has to write now; it then calls Written or NotWritten.
  std::optional<GroupDecision> to_write() const;
  void Written(Time now);
  void NotWritten(const Status& why, Time now);

  Phase phase() const { return phase_; }
  uint64_t round() const { return round_; }
  const Identity& target() const { return target_; }
  const GroupDecision& decision() const { return decision_; }
  const GroupOutcome& last() const { return last_; }
  uint64_t commits() const { return commits_; }
  uint64_t aborts() const { return aborts_; }
  GroupMemberState state(const std::string& id) const { return members_.at(id).state; }
  std::string message(const std::string& id) const { return members_.at(id).message; }
  /// Whether this is an orchestrator's group without a round whose members have all committed.
  bool over() const;

 private:
  struct Member {
    size_t index = 0;
    GroupMemberState state = GroupMemberState::kAway;
    bool present = false;
    Time away_since{};
    std::string message;
  };

  void Set(Member& member, GroupMemberState state);
  void SetPresent(Member& member, bool present, Time now);
  size_t count(GroupMemberState state) const { return counts_[static_cast<size_t>(state)]; }
  /// Whether a member is waited for that has not prepared.
  bool Waits(Time now) const;
  void LookAtAnswers(Time now);
  void LookAtCommits(Time now);
  void Late(Member& member);
  void Abort(const std::string& why, Time now);
  void End(GroupOutcome outcome);
  void BeginIfDue(Time now);
  std::string NotPrepared() const;
  std::string NotCommitted() const;

  const Traits traits_;
  std::map<std::string, Member> members_;
  std::array<size_t, 6> counts_{};  // members by state
  size_t present_unprepared_ = 0;   // of those that are there
  std::multiset<Time> away_since_;  // of those that are not
  uint64_t all_changed_ = 0;
  Phase phase_ = Phase::kIdle;
  uint64_t round_ = 0;
  uint64_t next_round_;
  Identity target_;         // of the running round
  Identity newest_;         // the last one that was published
  GroupDecision decision_;  // the last one that is written
  GroupOutcome last_;
  uint64_t commits_ = 0, aborts_ = 0;
  Time began_{}, decided_{}, word_at_{}, deadline_ = Time::max();
  std::optional<Time> first_commit_, last_commit_;
  Time retry_at_{};
  std::chrono::milliseconds retry_pause_ = kFirstRetry;
};

std::string_view ToString(GroupCourse::Phase phase);

}  // namespace deltawire::sender
