// The progress of one group, for calls that wait for the end of a round: a status line for each
// member, with a serial that increases on every change, and the outcomes of rounds. It costs
// nothing while no call waits. Groups owns and guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sender/agent/fleet/group_course.h"

namespace deltawire::sender {

class GroupProgress {
 public:
  using News = std::vector<std::weak_ptr<const std::function<void()>>>;

  void AddWaiter(const std::shared_ptr<const std::function<void()>>& news);
  /// Returns whether it was the last one, after which nothing is kept.
  bool RemoveWaiter();
  bool has_waiters() const { return waiters_ > 0; }
  const News& news() const { return news_; }  ///< of the waiters

  /// Notes that a member's line may have changed.
  void Touch(size_t member) {
    if (has_waiters()) touched_.push_back(member);
  }
  /// Updates the members' lines by `line`, and the outcomes. Returns whether waiters have news.
  bool Update(const GroupCourse& course, const std::function<std::string(size_t member)>& line);

  struct Change {
    uint64_t serial = 0;
    size_t member = 0;
  };
  std::optional<Change> ChangeAfter(uint64_t serial) const;
  /// Returns null if the round has not ended, or too long ago.
  const GroupOutcome* OutcomeOf(uint64_t round) const;
  /// Whether the outcome of a round that has ended is not kept any more.
  bool HasDiscarded(uint64_t round) const;

 private:
  struct Line {
    std::string text;
    uint64_t serial = 0;
  };
  bool UpdateLine(size_t member, std::string text);

  size_t waiters_ = 0;
  News news_;
  std::vector<Line> lines_;             // by member
  std::map<uint64_t, size_t> changes_;  // the members of `lines_`, by serial
  uint64_t last_serial_ = 0;
  std::vector<size_t> touched_;
  uint64_t revision_ = ~uint64_t{0};        // the roster's when all lines were made
  std::map<uint64_t, GroupOutcome> ended_;  // by round
};

}  // namespace deltawire::sender
