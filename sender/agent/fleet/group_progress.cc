#include "sender/agent/fleet/group_progress.h"

#include <utility>

namespace deltawire::sender {
namespace {

constexpr size_t kMostEnded = 64;

}  // namespace

void GroupProgress::AddWaiter(const std::shared_ptr<const std::function<void()>>& news) {
  ++waiters_;
  std::erase_if(news_, [](const auto& one) { return one.expired(); });
  news_.push_back(news);
}

bool GroupProgress::RemoveWaiter() {
  if (--waiters_ > 0) return false;
  *this = {};
  return true;
}

bool GroupProgress::UpdateLine(size_t member, std::string text) {
  Line& line = lines_[member];
  if (line.text == text) return false;
  changes_.erase(line.serial);
  line = {std::move(text), ++last_serial_};
  changes_[line.serial] = member;
  return true;
}

bool GroupProgress::Update(const GroupCourse& course,
                           const std::function<std::string(size_t member)>& line) {
  if (!has_waiters()) return false;
  bool news = false;
  const std::vector<size_t> touched = std::exchange(touched_, {});
  const uint64_t revision = course.roster().revision();
  if (std::exchange(revision_, revision) == revision) {
    for (const size_t i : touched) news |= UpdateLine(i, line(i));
  } else {
    lines_.resize(course.traits().members.size());
    for (size_t i = 0; i < lines_.size(); ++i) news |= UpdateLine(i, line(i));
  }
  const GroupOutcome& last = course.status().last;
  if (last.round != 0) news |= ended_.emplace(last.round, last).second;
  if (ended_.size() > kMostEnded) ended_.erase(ended_.begin());
  return news;
}

std::optional<GroupProgress::Change> GroupProgress::ChangeAfter(uint64_t serial) const {
  const auto next = changes_.upper_bound(serial);
  if (next == changes_.end()) return std::nullopt;
  return Change{next->first, next->second};
}

const GroupOutcome* GroupProgress::OutcomeOf(uint64_t round) const {
  const auto ended = ended_.find(round);
  return ended == ended_.end() ? nullptr : &ended->second;
}

bool GroupProgress::HasDiscarded(uint64_t round) const {
  return !ended_.empty() && round < ended_.begin()->first;
}

}  // namespace deltawire::sender
