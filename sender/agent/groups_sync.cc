// Groups: orchestrators that have a group synced, and wait for the end of its round.
#include <algorithm>
#include <set>

#include "common/base/model_name.h"
#include "sender/agent/groups.h"

namespace deltawire::sender {
namespace {

bool SameMembers(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::set<std::string>(a.begin(), a.end()) == std::set<std::string>(b.begin(), b.end());
}

}  // namespace

Groups::Entry* Groups::Find(const std::string& name, uint64_t number, const std::string& group) {
  const auto model = models_.find(name);
  if (model == models_.end() || model->second.number != number) return nullptr;
  const auto entry = model->second.groups.find(group);
  return entry == model->second.groups.end() ? nullptr : &entry->second;
}

Status Groups::CheckMembers(const std::string& name, const OfModel& model, const std::string& group,
                            const std::vector<std::string>& ids) const {
  DW_RETURN_IF_ERROR(CheckGroupName(group));
  if (ids.size() > kMostMembers) {
    return Errorf(StatusCode::kInvalidArgument, "group \"{}\": {} members; name at most {}", group,
                  ids.size(), kMostMembers);
  }
  for (const std::string& id : ids) {
    DW_RETURN_IF_ERROR(CheckReceiverId(id));
    // The file has one line for each member, so an id must not contain a line's end.
    const auto control = [](char c) { return static_cast<unsigned char>(c) < ' '; };
    if (std::any_of(id.begin(), id.end(), control)) {
      return Errorf(StatusCode::kInvalidArgument,
                    "group \"{}\": a receiver id has control "
                    "characters",
                    group);
    }
    for (const auto& [other, entry] : model.groups) {
      const GroupCourse& course = *entry.course;
      const bool busy = course.traits().standing || course.phase() != GroupCourse::Phase::kIdle ||
                        entry.waiters > 0;
      if (other == group || !busy || !course.has(id)) continue;
      return Errorf(
          StatusCode::kFailedPrecondition,
          "model \"{}\": receiver \"{}\" is a member of group \"{}\"; sync that group, or "
          "leave the receiver out",
          name, id, other);
    }
  }
  return absl::OkStatus();
}

StatusOr<Groups::Entry*> Groups::FindGroup(const std::string& name, OfModel& model,
                                           const std::string& group,
                                           const std::vector<std::string>& ids) {
  const auto known = model.groups.find(group);
  if (known != model.groups.end()) {
    Entry& entry = known->second;
    if (ids.empty() || SameMembers(ids, entry.course->traits().members)) return &entry;
    if (entry.course->traits().standing || entry.waiters > 0 ||
        entry.course->phase() != GroupCourse::Phase::kIdle) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\": group \"{}\" has other members ({}); use another name", name,
                    group, fmt::join(entry.course->traits().members, ", "));
    }
  } else if (ids.empty()) {
    std::string names;
    for (const auto& [other, entry] : model.groups) names += (names.empty() ? "" : ", ") + other;
    return Errorf(StatusCode::kNotFound,
                  "model \"{}\": no group \"{}\" (there are: {}); name it by --group in the "
                  "sender's options, or name its receivers with --id",
                  name, group, names.empty() ? "none" : names);
  }
  DW_RETURN_IF_ERROR(CheckMembers(name, model, group, ids));
  std::set<std::string> members(ids.begin(), ids.end());
  // A receiver has one group. So groups of orchestrators that have no round and that share a member
  // with the new one go; their other members reach what was decided by themselves.
  std::vector<std::string> give_way;
  for (const auto& [other, entry] : model.groups) {
    const auto takes = [&course = *entry.course](const std::string& id) { return course.has(id); };
    if (other == group || std::any_of(members.begin(), members.end(), takes)) {
      give_way.push_back(other);
    }
  }
  for (const std::string& other : give_way) model.groups.erase(other);
  const auto named = std::ranges::count_if(
      model.groups, [](const auto& e) { return !e.second.course->traits().standing; });
  if (static_cast<size_t>(named) >= kMostNamed) {
    return Errorf(StatusCode::kResourceExhausted,
                  "model \"{}\": {} groups wait for members that have not committed; use one of "
                  "their names, or their members, again",
                  name, named);
  }
  AddGroup(model,
           {.name = group,
            .members = {members.begin(), members.end()},
            .standing = false,
            .skip_absent = options_.skip_absent,
            .timeout = options_.timeout},
           GroupDecision{});
  return &model.groups.at(group);
}

// Waiting ----------------------------------------------------------------------------------------

Groups::Progress Groups::ProgressOf(const Entry& entry, size_t member) {
  const GroupCourse& course = *entry.course;
  const std::string& id = course.traits().members[member];
  Progress p{.receiver_id = id,
             .state = course.state(id),
             .target = course.target().empty() ? course.decision().state : course.target(),
             .message = course.message(id),
             .report = {}};
  if (const auto said = entry.reports.find(id); said != entry.reports.end()) {
    p.report = said->second;
  }
  return p;
}

bool Groups::NoteShownOf(Entry& entry, size_t member) {
  const Progress p = ProgressOf(entry, member);
  std::string text = fmt::format("{} {} {} {}", ToString(p.state), ToString(p.report.phase),
                                 p.report.bytes_done, p.message);
  Shown& shown = entry.shown[member];
  if (shown.text == text) return false;
  entry.changes.erase(shown.serial);
  shown = {std::move(text), ++shown_};
  entry.changes[shown.serial] = member;
  return true;
}

bool Groups::NoteShown(Entry& entry) {
  bool changed = false;
  const std::vector<size_t> touched = std::exchange(entry.touched, {});
  if (std::exchange(entry.all_seen, entry.course->all_changed()) != entry.course->all_changed()) {
    entry.shown.resize(entry.course->traits().members.size());
    for (size_t i = 0; i < entry.shown.size(); ++i) changed = NoteShownOf(entry, i) || changed;
    return changed;
  }
  for (const size_t i : touched) changed = NoteShownOf(entry, i) || changed;
  return changed;
}

void Groups::TakeNews(Entry& entry) {
  due_.insert(due_.end(), entry.news.begin(), entry.news.end());
}

void Groups::CallWaiters() {
  if (due_.empty()) return;
  const News due = std::exchange(due_, {});
  const MutexUnlock unlocked(mu_);
  for (const auto& one : due) {
    if (const auto news = one.lock()) (*news)();
  }
}

Groups::Wait::Wait(Groups& groups, std::string model, uint64_t number, std::string group,
                   uint64_t round, std::function<void()> news)
    : groups_(groups),
      model_(std::move(model)),
      number_(number),
      group_(std::move(group)),
      round_(round),
      news_(std::make_shared<const std::function<void()>>(std::move(news))) {}

Groups::Wait::~Wait() {
  MutexLock lock(groups_.mu_);
  Entry* entry = groups_.Find(model_, number_, group_);
  if (entry == nullptr || --entry->waiters > 0) return;
  entry->news.clear();
  entry->shown.clear();
  entry->changes.clear();
  entry->touched.clear();
  entry->all_seen = ~uint64_t{0};
  entry->ended.clear();
  groups_.Settle();  // the group may be over
}

StatusOr<Groups::Wait::Step> Groups::Wait::Poll() {
  MutexLock lock(groups_.mu_);
  const Entry* entry = groups_.Find(model_, number_, group_);
  if (entry == nullptr) {
    return Errorf(StatusCode::kAborted, "model \"{}\" was replaced", model_);
  }
  Step step;
  if (const auto next = entry->changes.upper_bound(told_); next != entry->changes.end()) {
    told_ = next->first;
    step.tell = ProgressOf(*entry, next->second);
    return step;
  }
  if (const auto ended = entry->ended.find(round_); ended != entry->ended.end()) {
    step.outcome = ended->second;
  } else if (!entry->ended.empty() && round_ < entry->ended.begin()->first) {
    // This caller has read nothing while so many rounds ended that its own was dropped.
    return Errorf(StatusCode::kAborted,
                  "group \"{}\" of model \"{}\": how round {} ended is not known any more; see the "
                  "group's status",
                  group_, model_, round_);
  } else {
    DW_RETURN_IF_ERROR(groups_.stopped_);
  }
  return step;
}

StatusOr<std::unique_ptr<Groups::Wait>> Groups::Sync(const std::string& name,
                                                     const std::string& group,
                                                     const std::vector<std::string>& ids,
                                                     std::function<void()> news) {
  MutexLock lock(mu_);
  DW_RETURN_IF_ERROR(stopped_);
  const auto model = models_.find(name);
  if (model == models_.end()) {
    return Errorf(StatusCode::kNotFound, "no model \"{}\" is registered with this sender", name);
  }
  if (!model->second.whole) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": this agent publishes a part of it, and a group needs a sender of "
                  "the whole",
                  name);
  }
  if (model->second.newest.empty()) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet", name);
  }
  DW_ASSIGN_OR_RETURN(Entry * entry, FindGroup(name, model->second, group, ids));
  const auto now = SteadyClock::now();
  // Under the lock: one that was here before it, and has gone since, would never count as away.
  for (const ReceiverView& view : attachments_.Receivers(name)) {
    entry->course->Attached(view.id, now);
  }
  DW_RETURN_IF_ERROR(entry->course->Begin(model->second.newest, now));
  std::unique_ptr<Wait> wait(
      new Wait(*this, name, model->second.number, group, entry->course->round(), std::move(news)));
  ++entry->waiters;
  std::erase_if(entry->news, [](const auto& one) { return one.expired(); });
  entry->news.push_back(wait->news_);
  Settle();
  return wait;
}

}  // namespace deltawire::sender
