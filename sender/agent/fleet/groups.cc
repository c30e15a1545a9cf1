#include "sender/agent/fleet/groups.h"

#include <sys/random.h>

#include <algorithm>
#include <optional>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/model_name.h"
#include "common/base/trace.h"

namespace deltawire::sender {
namespace {

/// Draws a random number, since an answer to a round of an earlier process must not count for one
/// of this process. Rounds stay below 2^53, up to which JSON readers keep integers exact.
uint64_t FirstRound() {
  uint32_t drawn = 0;
  if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) {
    drawn = static_cast<uint32_t>(UnixNanos() >> 10);
  }
  return uint64_t{drawn} * 100'000 + 1;
}

bool SameMembers(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::set<std::string>(a.begin(), a.end()) == std::set<std::string>(b.begin(), b.end());
}

}  // namespace

Groups::Groups(GroupsOptions options, Attachments& attachments)
    : options_(std::move(options)), attachments_(attachments) {
  attachments_.SetMemberObserver(this);
  thread_ = Thread([this] { KeepTime(); });
}

Groups::~Groups() {
  Stop(Stopping("sender"));
  thread_.join();
  attachments_.SetMemberObserver(nullptr);
}

void Groups::Stop(const Status& why) {
  MutexLock lock(mu_);
  stopped_.Update(why);
  cv_.notify_all();
  for (auto& [name, model] : models_) {
    for (auto& [group, entry] : model.groups) QueueNews(entry);
  }
  CallWaiters();
}

// Models and events ------------------------------------------------------------------------------

void Groups::Adopt(const std::string& name, const std::filesystem::path& directory,
                   const Hash128& lineage, bool whole) {
  const auto file = directory / kGroupFileName;
  auto kept = ReadGroupFile(file);
  if (!kept.ok()) {
    LogError(
        "model {}: {}: the decisions of its groups are lost; their members stay where they "
        "are until the next round",
        name, MessageOf(kept.status()));
    kept = KeptGroups{};
  }
  if (!(kept->lineage == lineage)) kept->groups.clear();
  MutexLock lock(mu_);
  OfModel& model = models_[name];
  for (auto& [group, entry] : model.groups) QueueNews(entry);
  model = {.file = file,
           .lineage = lineage,
           .whole = whole,
           .number = next_number_++,
           .newest = {},
           .groups = {},
           .told = std::move(model.told)};
  for (const GroupOptions& group : options_.groups) {
    if (!group.model.empty() && group.model != name) continue;
    if (!whole) {
      LogWarn("model {}: group {} is ignored: this agent publishes a part of the model", name,
              group.name);
      continue;
    }
    const auto known = std::ranges::find(kept->groups, group.name, &KeptGroup::name);
    AddGroup(model, StandingTraits(group),
             known == kept->groups.end() ? GroupDecision{} : known->decision);
    model.groups.at(group.name).kept = known != kept->groups.end();
  }
  for (const KeptGroup& group : kept->groups) {
    if (group.standing || model.groups.contains(group.name)) continue;
    GroupCourse::Traits traits{.name = group.name,
                               .members = group.members,
                               .standing = false,
                               .timeout = options_.timeout};
    AddGroup(model, std::move(traits), group.decision);
    model.groups.at(group.name).kept = true;
  }
  Settle();
}

void Groups::Forget(const std::string& name) {
  MutexLock lock(mu_);
  const auto model = models_.find(name);
  if (model == models_.end()) return;
  // An entry without groups stays until its words are withdrawn.
  if (model->second.groups.empty()) {
    models_.erase(model);
    return;
  }
  for (auto& [group, entry] : model->second.groups) QueueNews(entry);
  model->second.groups.clear();
  model->second.whole = false;
  model->second.number = next_number_++;
  Settle();
}

GroupCourse::Traits Groups::StandingTraits(const GroupOptions& group) const {
  return {.name = group.name,
          .members = group.members,
          .standing = true,
          .every_version = options_.every_version,
          .skip_absent = options_.skip_absent,
          .timeout = options_.timeout};
}

void Groups::AddGroup(OfModel& model, GroupCourse::Traits traits, GroupDecision last) {
  const std::string name = traits.name;
  Entry& entry = model.groups[name];
  entry.number = next_number_++;
  entry.course =
      std::make_unique<GroupCourse>(std::move(traits), last, FirstRound(), SteadyClock::now());
}

void Groups::Published(const std::string& name, const Identity& newest) {
  MutexLock lock(mu_);
  const auto model = models_.find(name);
  if (model == models_.end() || IsLater(model->second.newest, newest)) return;
  model->second.newest = newest;
  for (auto& [group, entry] : model->second.groups) {
    entry.course->Published(newest, SteadyClock::now());
  }
  Settle();
}

void Groups::Reported(const std::string& name, const std::string& id,
                      const ReceiverReport& report) {
  MutexLock lock(mu_);
  const auto model = models_.find(name);
  if (model == models_.end()) return;
  for (auto& [group, entry] : model->second.groups) {
    const GroupRoster::Member* member = entry.course->roster().Find(id);
    if (member == nullptr) continue;
    entry.course->Reported(id, report.committed, report.group, report.message, SteadyClock::now());
    entry.reports[id] = report;
    entry.progress.Touch(member->index);
  }
  Settle();
}

void Groups::Detached(const std::string& name, const std::string& id) {
  MutexLock lock(mu_);
  const auto model = models_.find(name);
  if (model == models_.end()) return;
  for (auto& [group, entry] : model->second.groups) {
    const GroupRoster::Member* member = entry.course->roster().Find(id);
    if (member == nullptr) continue;
    entry.course->Detached(id, SteadyClock::now());
    entry.progress.Touch(member->index);
  }
  Settle();
}

void Groups::KeepTime() {
  MutexLock lock(mu_);
  while (stopped_.ok()) {
    const auto now = SteadyClock::now();
    const Time next = NextTick(now);
    if (next > now) {
      const uint64_t changes = changes_;
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return changes_ != changes || !stopped_.ok();
      };
      if (next == Time::max()) {
        cv_.wait(lock, changed);
      } else {
        cv_.wait_until(lock, next, changed);
      }
      continue;
    }
    for (auto& [name, model] : models_) {
      for (auto& [group, entry] : model.groups) entry.course->Tick(now);
    }
    Settle();
  }
}

Groups::Time Groups::NextTick(Time now) const {
  Time next = Time::max();
  for (const auto& [name, model] : models_) {
    for (const auto& [group, entry] : model.groups) {
      next = std::min(next, entry.course->NextTick(now));
    }
  }
  return next;
}

// Consequences of events -------------------------------------------------------------------------

void Groups::CollectChanges() {
  ++changes_;
  for (auto& [name, model] : models_) {
    for (auto& [group, entry] : model.groups) {
      const auto line = [&entry = entry](size_t member) { return LineOf(entry, member); };
      if (entry.progress.Update(*entry.course, line)) QueueNews(entry);
    }
  }
  cv_.notify_all();
}

void Groups::Settle() {
  CollectChanges();
  again_ = true;
  CallWaiters();
  if (settling_) return;
  settling_ = true;
  // If an exception passes, the next event still settles.
  const absl::Cleanup settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { settling_ = false; };
  while (std::exchange(again_, false) && stopped_.ok()) {
    const bool wrote = WriteDecisions();
    const bool told = SendWords();
    const bool dropped = DiscardFinished();
    again_ = again_ || wrote || told || dropped;
    CallWaiters();
  }
}

KeptGroups Groups::FileContent(const OfModel& model, bool deciding) {
  KeptGroups kept{.lineage = model.lineage, .groups = {}};
  for (const auto& [name, entry] : model.groups) {
    const GroupCourse& course = *entry.course;
    GroupDecision decision = course.status().decision;
    if (deciding) decision = course.to_write().value_or(decision);
    if (decision.state.empty()) continue;
    kept.groups.push_back({name, course.traits().standing, course.traits().members, decision});
  }
  return kept;
}

bool Groups::WriteDecisions() {
  for (auto& [name, model] : models_) {
    std::vector<std::string> deciding;
    for (const auto& [group, entry] : model.groups) {
      if (entry.course->to_write()) deciding.push_back(group);
    }
    if (deciding.empty()) continue;
    const std::string of = name;
    const uint64_t number = model.number;
    const KeptGroups kept = FileContent(model, /*deciding=*/true);
    const auto file = model.file;
    Status written;
    {
      const MutexUnlock unlocked(mu_);
      written = WriteGroupFile(file, kept);
    }
    for (const std::string& group : deciding) {
      Entry* entry = Find(of, number, group);
      if (entry == nullptr) continue;
      GroupCourse& course = *entry->course;
      if (written.ok()) {
        const GroupStatus& status = course.status();
        LogInfo("model {}: group {}: round {}: {} members commit {} {}", of, group, status.round,
                course.traits().members.size(), ToString(status.target),
                ToString(TraceOf(status.target)));
        course.Written(SteadyClock::now());
        entry->kept = true;
      } else {
        course.NotWritten(written, SteadyClock::now());
      }
    }
    CollectChanges();
    return true;
  }
  return false;
}

Groups::Told Groups::WordsByGroup(const OfModel& model) {
  Told told;
  for (const auto& [name, entry] : model.groups) told[name] = {entry.number, entry.course->word()};
  return told;
}

std::map<std::string, GroupWord> Groups::Words(const OfModel& model) const {
  std::map<std::string, GroupWord> words;
  for (const auto& [name, entry] : model.groups) {
    const GroupWord word = entry.course->word();
    for (const std::string& id : entry.course->traits().members) words[id] = word;
  }
  return words;
}

bool Groups::SendWords() {
  for (auto it = models_.begin(); it != models_.end(); ++it) {
    OfModel& model = it->second;
    Told now = WordsByGroup(model);
    if (now == model.told) continue;
    auto words = Words(model);
    model.told = std::move(now);
    const std::string name = it->first;
    if (model.groups.empty() && !model.whole) models_.erase(it);  // a model that was forgotten
    absl::Cleanup tell_again = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      if (const auto known = models_.find(name); known != models_.end()) known->second.told.clear();
    };
    {
      const MutexUnlock unlocked(mu_);
      attachments_.SetWords(name, std::move(words));
    }
    std::move(tell_again).Cancel();
    return true;
  }
  return false;
}

bool Groups::DiscardFinished() {
  for (auto& [name, model] : models_) {
    for (auto& [group, entry] : model.groups) {
      if (entry.progress.has_waiters() || !entry.course->over()) continue;
      const bool kept = entry.kept;
      model.groups.erase(group);
      if (!kept) return true;
      const KeptGroups left = FileContent(model, /*deciding=*/false);
      const auto file = model.file;
      const std::string of = name;
      const MutexUnlock unlocked(mu_);
      // If this fails, the next process discards the finished group.
      const Status written = WriteGroupFile(file, left);
      if (!written.ok()) LogWarn("model {}: {}", of, MessageOf(written));
      return true;
    }
  }
  return false;
}

std::vector<GroupView> Groups::views(const std::string& name) const {
  MutexLock lock(mu_);
  std::vector<GroupView> views;
  const auto model = models_.find(name);
  if (model == models_.end()) return views;
  for (const auto& [group, entry] : model->second.groups) {
    const GroupCourse& course = *entry.course;
    GroupView& view = views.emplace_back();
    view.name = group;
    view.standing = course.traits().standing;
    view.status = course.status();
    for (const std::string& id : course.traits().members) {
      const GroupRoster::Member& member = *course.roster().Find(id);
      view.members.push_back({id, member.state, member.message});
    }
  }
  return views;
}

// Waits ---------------------------------------------------------------------------------------

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
      const bool busy = course.traits().standing || entry.progress.has_waiters() ||
                        course.status().phase != GroupPhase::kIdle;
      if (other == group || !busy || course.roster().Find(id) == nullptr) continue;
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
    if (entry.course->traits().standing || entry.progress.has_waiters() ||
        entry.course->status().phase != GroupPhase::kIdle) {
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
  // A receiver has one group. So idle groups of orchestrators that share a member with the new one
  // are discarded; their other members follow the last decision by themselves.
  std::vector<std::string> give_way;
  for (const auto& [other, entry] : model.groups) {
    const auto takes = [&roster = entry.course->roster()](const std::string& id) {
      return roster.Find(id) != nullptr;
    };
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
  const GroupStatus& status = course.status();
  const std::string& id = course.traits().members[member];
  const GroupRoster::Member& m = *course.roster().Find(id);
  Progress p{.receiver_id = id,
             .state = m.state,
             .target = status.target.empty() ? status.decision.state : status.target,
             .message = m.message,
             .report = {}};
  if (const auto said = entry.reports.find(id); said != entry.reports.end()) {
    p.report = said->second;
  }
  return p;
}

std::string Groups::LineOf(const Entry& entry, size_t member) {
  const GroupCourse& course = *entry.course;
  const std::string& id = course.traits().members[member];
  const GroupRoster::Member& m = *course.roster().Find(id);
  const auto said = entry.reports.find(id);
  const bool known = said != entry.reports.end();
  return fmt::format("{} {} {} {}", ToString(m.state),
                     ToString(known ? said->second.phase : ReceiverPhase::kNone),
                     known ? said->second.bytes_done : 0, m.message);
}

void Groups::QueueNews(const Entry& entry) {
  const GroupProgress::News& news = entry.progress.news();
  due_.insert(due_.end(), news.begin(), news.end());
}

void Groups::CallWaiters() {
  if (due_.empty()) return;
  const GroupProgress::News due = std::exchange(due_, {});
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
  if (entry == nullptr || !entry->progress.RemoveWaiter()) return;
  groups_.Settle();  // the group may be over
}

StatusOr<Groups::Wait::Step> Groups::Wait::Poll() {
  MutexLock lock(groups_.mu_);
  const Entry* entry = groups_.Find(model_, number_, group_);
  if (entry == nullptr) {
    return Errorf(StatusCode::kAborted, "model \"{}\" was replaced", model_);
  }
  Step step;
  const GroupProgress& progress = entry->progress;
  if (const auto change = progress.ChangeAfter(told_)) {
    told_ = change->serial;
    step.tell = ProgressOf(*entry, change->member);
    return step;
  }
  if (const GroupOutcome* outcome = progress.OutcomeOf(round_)) {
    step.outcome = *outcome;
  } else if (progress.HasDiscarded(round_)) {
    // The caller polled too late: the outcome of its round has been discarded.
    return Errorf(
        StatusCode::kAborted,
        "group \"{}\" of model \"{}\": the outcome of round {} is not kept any more; see the "
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
  // Under the lock, since a receiver that left after an earlier look would never count as away.
  for (const ReceiverView& view : attachments_.Receivers(name)) {
    entry->course->Attached(view.id, now);
  }
  DW_RETURN_IF_ERROR(entry->course->Begin(model->second.newest, now));
  std::unique_ptr<Wait> wait(new Wait(*this, name, model->second.number, group,
                                      entry->course->status().round, std::move(news)));
  entry->progress.AddWaiter(wait->news_);
  Settle();
  return wait;
}

}  // namespace deltawire::sender
