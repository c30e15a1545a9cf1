#include "sender/agent/fleet/group_roster.h"

#include <algorithm>

#include "common/base/status.h"

namespace deltawire::sender {

using State = GroupMemberState;

std::string_view ToString(GroupMemberState state) {
  constexpr std::string_view kNames[] = {"away",    "asked",     "prepared",
                                         "refused", "committed", "late"};
  return kNames[static_cast<size_t>(state)];
}

GroupRoster::GroupRoster(const std::vector<std::string>& ids, Time now) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto [member, is_new] = members_.try_emplace(ids[i]);
    member->second.index = i;
    if (!is_new) continue;
    member->second.away_since = now;
    away_since_.insert(now);
    ++counts_[static_cast<size_t>(State::kAway)];
  }
}

const GroupRoster::Member* GroupRoster::Find(const std::string& id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second;
}

void GroupRoster::Set(Member& member, State state) {
  const auto unprepared = [&] {
    return member.present && member.state != State::kPrepared ? 1U : 0U;
  };
  present_unprepared_ -= unprepared();
  --counts_[static_cast<size_t>(member.state)];
  member.state = state;
  ++counts_[static_cast<size_t>(state)];
  present_unprepared_ += unprepared();
}

void GroupRoster::Set(const std::string& id, State state) { Set(members_.at(id), state); }

void GroupRoster::SetPresent(const std::string& id, bool present, Time now) {
  Member& member = members_.at(id);
  if (member.present == present) return;
  if (present) {
    away_since_.erase(away_since_.find(member.away_since));
  } else {
    member.away_since = now;
    away_since_.insert(now);
  }
  member.present = present;
  if (member.state != State::kPrepared) present_unprepared_ += present ? 1 : -1;
}

void GroupRoster::Attach(const std::string& id, Time now) {
  SetPresent(id, true, now);
  Member& member = members_.at(id);
  if (member.state == State::kAway) Set(member, State::kAsked);
  ++revision_;
}

void GroupRoster::SetMessage(const std::string& id, const std::string& message) {
  members_.at(id).message = message;
}

void GroupRoster::MarkLate(const std::string& id) {
  Member& member = members_.at(id);
  if (member.state != State::kCommitted) Set(member, State::kLate);
}

void GroupRoster::MarkLate(bool only_away) {
  for (auto& [id, member] : members_) {
    if (member.state == State::kCommitted || (only_away && member.present)) continue;
    Set(member, State::kLate);
  }
  ++revision_;
}

void GroupRoster::AskAll() {
  for (auto& [id, member] : members_) {
    Set(member, member.present ? State::kAsked : State::kAway);
    member.message.clear();
  }
  ++revision_;
}

bool GroupRoster::IsPrepared(std::optional<Time> absent) const {
  if (count(State::kPrepared) == members_.size()) return true;
  return absent && present_unprepared_ == 0 && *away_since_.rbegin() <= *absent;
}

std::optional<GroupRoster::Time> GroupRoster::FirstLeaveAfter(Time time) const {
  const auto next = away_since_.upper_bound(time);
  return next == away_since_.end() ? std::nullopt : std::optional(*next);
}

std::string GroupRoster::List(
    const std::function<std::string(const std::string&, const Member&)>& describe) const {
  constexpr size_t kMostNamed = 8;
  std::string list;
  size_t named = 0, others = 0;
  for (const auto& [id, member] : members_) {
    const std::string text = describe(id, member);
    if (text.empty()) continue;
    if (named == kMostNamed) {
      ++others;
    } else {
      list += (named++ == 0 ? "" : ", ") + text;
    }
  }
  return others == 0 ? list : fmt::format("{} and {} more", list, others);
}

std::string GroupRoster::DescribeRefusal() const {
  const auto refused = [](const auto& m) { return m.second.state == State::kRefused; };
  const auto first = std::ranges::find_if(members_, refused);
  if (first == members_.end()) return "";
  return fmt::format("{} cannot prepare it: {}", first->first, first->second.message);
}

std::string GroupRoster::DescribeUnprepared() const {
  return List([](const std::string& id, const Member& m) -> std::string {
    if (m.state == State::kPrepared) return "";
    return fmt::format("{} ({}{}{})", id, m.present ? "not ready" : "not attached",
                       m.message.empty() ? "" : ": ", m.message);
  });
}

std::string GroupRoster::DescribeLate() const {
  const std::string list = List([](const std::string& id, const Member& m) -> std::string {
    if (m.state != State::kLate) return "";
    return m.message.empty() ? id : fmt::format("{} ({})", id, m.message);
  });
  return list.empty() ? "" : "late: " + list;
}

}  // namespace deltawire::sender
