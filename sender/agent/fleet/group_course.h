// The rounds of one group of receivers: all prepare a state and commit it on one word, or all stay
// (docs/groups.md). A state machine without I/O: its owner feeds it events and the time, and reads
// from it the word for the members and the decision to write. Groups calls it under its lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/group_word.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "sender/agent/fleet/group_roster.h"

namespace deltawire::sender {

/// A decision, which must be on disk before any member learns of it. Epoch 0: none.
struct GroupDecision {
  uint64_t round = 0;
  Identity state;
  friend bool operator==(const GroupDecision&, const GroupDecision&) = default;
};

/// The end of a round.
struct GroupOutcome {
  uint64_t round = 0;  ///< 0: no round has ended
  bool committed = false;
  Identity target;
  std::string message;  ///< why it was aborted, or the members that are late
  uint32_t members = 0;
  uint32_t late = 0;
  double prepare_seconds = 0;  ///< from the beginning to the decision
  double spread_seconds = 0;   ///< from the first commit to the last, without late members
  double word_seconds = 0;     ///< from the word to the last commit
};

/// kIdle -> kPreparing -> kDeciding -> kCommitting -> kIdle. kPreparing, kDeciding -> kIdle: the
/// round is aborted. kCommitting -> kPreparing: the next round begins while some are late.
enum class GroupPhase : uint8_t { kIdle, kPreparing, kDeciding, kCommitting };
std::string_view ToString(GroupPhase phase);

struct GroupStatus {
  GroupPhase phase = GroupPhase::kIdle;
  uint64_t round = 0;
  Identity target;         ///< of the running round
  GroupDecision decision;  ///< the last one that is written
  GroupOutcome last;
  uint64_t commits = 0, aborts = 0;
};

class GroupCourse {
 public:
  using Time = SteadyClock::time_point;

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
  const GroupRoster& roster() const { return roster_; }
  const GroupStatus& status() const { return status_; }

  /// Begins a round. Joins the one that runs if it is for `target`; else kFailedPrecondition.
  Status Begin(const Identity& target, Time now);

  // Events. Those of receivers that are no members have no effect.
  void Attached(const std::string& id, Time now);
  void Detached(const std::string& id, Time now);
  /// Takes a member's last commit (empty while its only file changes), its answer to the round, and
  /// in `message` what it waits for.
  void Reported(const std::string& id, const Identity& committed, const GroupReport& answer,
                const std::string& message, Time now);
  /// Takes the newest published state. A rollback or another lineage aborts an undecided round.
  void Published(const Identity& newest, Time now);
  void Tick(Time now);
  Time NextTick(Time now) const;

  // Consequences.
  GroupWord word() const;
  /// The decision that the owner must write now. It then calls Written or NotWritten.
  std::optional<GroupDecision> to_write() const;
  void Written(Time now);
  void NotWritten(const Status& why, Time now);
  /// Whether this is an orchestrator's group without a round whose members have all committed.
  bool over() const;

 private:
  struct Times {
    Time began{}, decided{}, word{};
    std::optional<Time> first_commit, last_commit;
  };
  /// When a state whose round was aborted is tried again.
  struct Retry {
    Time at{};
    std::chrono::milliseconds pause = kFirstRetry;
  };

  /// Leaves kPreparing if the members' answers allow it.
  void CheckAnswers(Time now);
  /// Ends kCommitting once every member has committed or is late.
  void CheckCommits(Time now);
  void Abort(const std::string& why, Time now);
  void End(GroupOutcome outcome);
  void BeginIfDue(Time now);

  const Traits traits_;
  GroupRoster roster_;
  GroupStatus status_;
  uint64_t next_round_;
  Identity newest_;  // published
  Times times_;      // of the running round
  Time deadline_ = Time::max();
  Retry retry_;
};

}  // namespace deltawire::sender
