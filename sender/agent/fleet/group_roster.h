// The members of a group: their attachments, and their answers to the running round. It keeps
// counts, so an event of one member costs O(log members). GroupCourse owns and guards it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/sync.h"

namespace deltawire::sender {

enum class GroupMemberState : uint8_t {
  kAway,       ///< not attached
  kAsked,      ///< attached, and not ready
  kPrepared,   ///< has all of the round's state
  kRefused,    ///< cannot prepare it
  kCommitted,  ///< has committed the group's last decision
  kLate,       ///< had not committed when that round ended; it follows when it can
};
std::string_view ToString(GroupMemberState state);

class GroupRoster {
 public:
  using Time = SteadyClock::time_point;
  struct Member {
    size_t index = 0;  ///< its place in the list of ids
    GroupMemberState state = GroupMemberState::kAway;
    bool present = false;
    Time away_since{};
    std::string message;  ///< its refusal, or what it waits for
  };

  GroupRoster(const std::vector<std::string>& ids, Time now);

  /// Null: no member has that id.
  const Member* Find(const std::string& id) const;
  size_t size() const { return members_.size(); }
  size_t count(GroupMemberState state) const { return counts_[static_cast<size_t>(state)]; }
  /// Increases whenever more than one member may have changed.
  uint64_t revision() const { return revision_; }

  /// Each of these needs the id of a member.
  void Attach(const std::string& id, Time now);
  void Set(const std::string& id, GroupMemberState state);
  void SetPresent(const std::string& id, bool present, Time now);
  void SetMessage(const std::string& id, const std::string& message);
  /// Marks a member late, unless it has committed.
  void MarkLate(const std::string& id);

  /// Marks members late that have not committed: all, or only those that are away.
  void MarkLate(bool only_away);
  /// Clears the answers to the round before.
  void AskAll();

  /// Whether all have prepared, apart from members that have been away since `absent` or longer.
  /// Without `absent`, all members count.
  bool IsPrepared(std::optional<Time> absent) const;
  /// When the first member left that left after `time`.
  std::optional<Time> FirstLeaveAfter(Time time) const;

  /// Texts for messages. They name eight members at most.
  std::string DescribeRefusal() const;
  std::string DescribeUnprepared() const;
  std::string DescribeLate() const;

 private:
  using Members = std::map<std::string, Member>;
  void Set(Member& member, GroupMemberState state);
  /// Lists the members for which `describe` returns a text.
  std::string List(
      const std::function<std::string(const std::string& id, const Member&)>& describe) const;

  Members members_;
  std::array<size_t, 6> counts_{};  // members by state
  size_t present_unprepared_ = 0;   // present members that have not prepared
  std::multiset<Time> away_since_;  // of the others
  uint64_t revision_ = 0;
};

}  // namespace deltawire::sender
