// Agent: takes up, registers and replaces models; their pulls are the desk's.
#include "sender/agent/agent.h"

#include <filesystem>

#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/model_name.h"
#include "common/base/trace.h"
#include "common/shm/mapped_file.h"

namespace deltawire::sender {
namespace {

/// Frees what a crash has left of a model that was being registered or unregistered: halves that no
/// state file goes with.
void RemoveLeftOvers(const std::string& name, const std::filesystem::path& dir,
                     const std::string& group) {
  std::error_code unknown;
  const bool real =
      std::filesystem::symlink_status(dir, unknown).type() == std::filesystem::file_type::directory;
  if (!real || !std::filesystem::exists(dir / DirLock::kFileName, unknown) ||
      std::filesystem::exists(dir / Halves::kStateName, unknown)) {
    return;
  }
  const auto removed = RemoveModelFiles(dir, group);
  if (!removed.ok()) {
    LogWarn("model {}: what a crash has left of it in {} cannot be removed: {}", name, dir.native(),
            MessageOf(removed.status()));
  } else if (removed->freed_bytes > 0) {
    LogWarn("model {}: {} that a crash has left of it in {} are freed", name,
            HumanBytes(removed->freed_bytes), dir.native());
  }
}

}  // namespace

Agent::Agent(const SenderOptions& options, ThreadPool& pool, const AgentLimits& limits,
             StageObserver stages)
    : options_(options),
      stages_(std::move(stages)),
      limits_(limits),
      pool_(pool),
      desk_({.codec = options.codec,
             .history = options.history,
             .grace = options.grace,
             .rate_limit_per_receiver = options.rate_limit_per_receiver,
             .rate_limit_per_site = options.rate_limit_per_site,
             .stages = stages_},
            limits.pulls, coder_rates_),
      groups_({.groups = options.groups,
               .every_version = options.group_commits,
               .skip_absent = options.group_skip_absent,
               .timeout = options.group_timeout},
              desk_.attachments()),
      assigner_(options.assign_upstreams, {.fan_out = options.fan_out}, desk_.attachments()) {
  desk_.attachments().SetOnCommitted([this](const std::string& model, const Identity& id,
                                            const PullStats& pull) { Delivered(model, id, pull); });
  coder_rates_.Calibrate(kernels::Best());
  thread_ = Thread([this] { DoChores(); });
}

Agent::~Agent() {
  Stop();
  // A model's publisher thread may still be calling Changed for its last version, so the models,
  // and the pulls that hold them, are destroyed while all that Changed reads still exists.
  desk_.Close();
  decltype(models_) models;
  {
    MutexLock lock(mu_);
    models.swap(models_);
  }
  models.clear();
  {
    MutexLock lock(chores_->mu);
    chores_->stopping = true;
    chores_->cv.notify_all();
  }
  thread_.join();
}

void Agent::DoChores() {
  Chores& c = *chores_;
  std::vector<std::pair<Thread, std::shared_ptr<Leaving>>> burials;
  MutexLock lock(c.mu);
  while (!c.stopping || !c.models.empty()) {
    auto doomed = std::exchange(c.models, {});
    lock.unlock();
    for (auto& [model, leaving] : doomed) {
      // A model that is publishing is destroyed when it has published; the others need not wait for
      // it. The thread must hold the last reference: a copy kept here would keep the model alive
      // after the thread reports it as gone.
      burials.emplace_back(Thread([model = std::move(model), leaving = leaving]() mutable {
                             Bury(std::move(model), *leaving);
                           }),
                           leaving);
    }
    doomed.clear();
    std::erase_if(burials, [](auto& burial) {
      {
        MutexLock gone(burial.second->mu);
        if (!burial.second->gone) return false;
      }
      burial.first.join();
      return true;
    });
    lock.lock();
    c.cv.wait(lock, [&c]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(c.mu) {
      return c.stopping || !c.models.empty();
    });
  }
  c.closed = true;
  lock.unlock();
  for (auto& [thread, leaving] : burials) thread.join();
}

void Agent::Bury(std::shared_ptr<Model> model, Leaving& leaving) {
  model.reset();
  MutexLock lock(leaving.mu);
  leaving.gone = true;
  leaving.cv.notify_all();
}

void Agent::Stop() {
  std::vector<std::shared_ptr<Model>> models;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    for (auto& [name, entry] : models_) models.push_back(entry.model);
    cv_.notify_all();
  }
  users_.Stop();
  groups_.Stop(Stopping("sender"));
  desk_.Stop(Stopping("sender"));
  for (auto& model : models) model->offloads().Stop(Stopping("sender"));
}

std::shared_ptr<Model> Agent::Adopt(std::shared_ptr<Model> model) {
  Model* raw = model.get();
  raw->offloads().diff().SetCutter([this, raw](uint32_t half) {
    desk_.CutReaders(*raw, half, "so that the trainer need not wait");
  });
  raw->publisher().SetListener([this, raw] { Changed(*raw); });
  raw->offloads().diff().incoming().SetListener(
      [this, raw] { return desk_.attachments().CountsOf(raw->name()).attached > 0; },
      [this, raw] { Coming(*raw); });
  auto leaving = std::make_shared<Leaving>();
  // Every holder of the model holds `watched`, so its deleter runs when the last reference goes.
  std::shared_ptr<Model> watched(
      raw, [model = std::move(model), leaving, chores = chores_](Model*) mutable {
        {
          MutexLock lock(chores->mu);
          if (!chores->closed) {
            chores->models.emplace_back(std::move(model), leaving);
            chores->cv.notify_all();
            return;
          }
        }
        Bury(std::move(model), *leaving);
      });
  users_.Serve(watched);
  {
    MutexLock lock(mu_);
    models_[raw->name()] = {watched, leaving};
    unregistering_.erase(raw->name());
    leaving_[raw->name()] = leaving;
  }
  groups_.Adopt(raw->name(), raw->home().directory(), raw->halves().lineage(), raw->owned().all());
  Changed(*raw);
  return watched;
}

bool Agent::IsServed(const Model& model) const {
  MutexLock lock(mu_);
  const auto it = models_.find(model.name());
  return it != models_.end() && it->second.model.get() == &model;
}

void Agent::Changed(const Model& model) {
  {
    // Else a model that was replaced after the look could be told of after it was forgotten.
    MutexLock one_at_a_time(coming_mu_);
    if (!IsServed(model)) return;
    desk_.Changed(model);
  }
  if (!IsServed(model)) return;
  if (const auto state = model.published(); state != nullptr) {
    groups_.Published(model.name(), state->info.identity);
  }
}

void Agent::Coming(const Model& model) {
  MutexLock one_at_a_time(coming_mu_);
  if (!IsServed(model)) return;
  const auto incoming = model.offloads().incoming();
  // First what is published, looked at after what is coming. Where a version has just been
  // published, or the next one is already on its way, a receiver that heard only that it comes no
  // more would take it for given up, and drop what has come of it.
  if (const auto state = model.published(); state != nullptr) {
    desk_.attachments().feed().Publish(model.name(), InfoOf(model, state.get()));
  }
  desk_.attachments().feed().SetIncoming(model.name(),
                                         incoming == nullptr ? IncomingNews{} : incoming->news());
}

void Agent::Delivered(const std::string& name, const Identity& id, const PullStats& pull) {
  const auto model = Find(name);
  if (!model.ok()) return;
  const auto seconds = (*model)->publisher().history().CountCommit(id, pull, UnixNanos());
  if (seconds && stages_) stages_({Stage::kDeliver, *seconds, name});
}

Status Agent::RecoverModels() {
  std::error_code ec;
  std::filesystem::create_directories(options_.data_dir, ec);
  if (ec) return Errorf(StatusCode::kInternal, "create {}: {}", options_.data_dir, ec.message());
  WarnIfOnDisk(options_.data_dir);
  std::filesystem::directory_iterator it(options_.data_dir, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    const std::filesystem::path directory = it->path();
    const std::string name = directory.filename().string();
    std::error_code unknown;
    if (!it->is_directory(unknown) || !CheckModelName(name).ok()) continue;
    auto model = Model::Recover(name, directory, options_, pool_, stages_);
    if (absl::IsNotFound(model.status())) {
      RemoveLeftOvers(name, directory, options_.file_group);
      continue;
    }
    if (absl::IsAlreadyExists(model.status())) return model.status();
    if (!model.ok()) {
      LogWarn("model {}: not taken up, a trainer must register it anew: {}", name,
              MessageOf(model.status()));
      continue;
    }
    const auto state = (*model)->published();
    const Identity at = state ? state->info.identity : Identity{};
    LogInfo("model {}: taken up at {} {}", name, ToString(at), ToString(TraceOf(at)));
    Adopt(std::move(*model));
  }
  if (!ec) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "read {}: {}", options_.data_dir, ec.message());
}

StatusOr<std::shared_ptr<Model>> Agent::Register(const std::string& name,
                                                 std::vector<TensorMeta> meta,
                                                 const std::vector<ChunkRange>& owned,
                                                 std::vector<SideFile> side_files, bool replace,
                                                 bool keep_side_files) {
  DW_RETURN_IF_ERROR(CheckModelName(name));
  DW_RETURN_IF_ERROR(Annotate(CheckCodeFiles(side_files, options_.allow_code_files),
                              fmt::format("model \"{}\"", name)));
  auto layout = Layout::Create(std::move(meta));
  if (!layout.ok()) return Annotate(layout.status(), fmt::format("model \"{}\"", name));
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(*layout));
  const auto part = Coverage::Create(owned, chunks.size());
  if (!part.ok()) return Annotate(part.status(), fmt::format("model \"{}\", owned", name));
  // Every rank of a trainer registers, so one at a time: the second rank finds what the first made.
  DW_ASSIGN_OR_RETURN(const auto turn, TakeTurn(name));
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> known, Registered(name, *layout, *part, replace));
  if (known != nullptr && known->home().IsInPlace()) {
    if (!keep_side_files) DW_RETURN_IF_ERROR(known->SetSideFiles(std::move(side_files)));
    Changed(*known);
    return known;
  }
  const bool replaces = known == nullptr && Find(name).ok();
  if (known != nullptr) {
    DW_RETURN_IF_ERROR(MayRenew(*known));
    if (keep_side_files) side_files = known->home().side_files().next()->files;
    known.reset();
  }
  DW_RETURN_IF_ERROR(LetGo(name));
  return Make(name, std::move(*layout), *part, std::move(side_files), replaces);
}

StatusOr<std::shared_ptr<Model>> Agent::FindInPlace(const std::string& name) {
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Find(name));
  if (model->home().IsInPlace()) return model;
  model.reset();
  DW_ASSIGN_OR_RETURN(const auto turn, TakeTurn(name));
  DW_ASSIGN_OR_RETURN(model, Find(name));
  if (model->home().IsInPlace()) return model;  // another rank was first
  DW_RETURN_IF_ERROR(MayRenew(*model));
  Layout layout = model->layout();
  Coverage part = model->owned();
  std::vector<SideFile> side_files = model->home().side_files().next()->files;
  model.reset();
  DW_RETURN_IF_ERROR(LetGo(name));
  return Make(name, std::move(layout), std::move(part), std::move(side_files), false);
}

Status Agent::MayRenew(const Model& lost) {
  std::error_code unknown;
  const auto type = std::filesystem::symlink_status(lost.home().directory(), unknown).type();
  if (type != std::filesystem::file_type::directory &&
      type != std::filesystem::file_type::not_found) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": its directory {} was removed, and {} has its name now; remove that, "
        "and offload again",
        lost.name(), lost.home().directory().native(),
        type == std::filesystem::file_type::symlink ? "a link" : "a file");
  }
  LogWarn(
      "model {}: its files in {} were removed, and so it is made anew under another lineage, with "
      "nothing published; see what cleans that directory",
      lost.name(), lost.home().directory().native());
  return absl::OkStatus();
}

Status Agent::CheckStays(const std::string& name) const {
  MutexLock lock(mu_);
  if (!unregistering_.contains(name)) return absl::OkStatus();
  return Errorf(StatusCode::kNotFound,
                "model \"{}\" is being unregistered from this sender; register it again", name);
}

StatusOr<std::shared_ptr<void>> Agent::TakeTurn(const std::string& name) {
  MutexLock lock(mu_);
  cv_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !registering_.contains(name);
  });
  if (stopping_) return Stopping("sender");
  registering_.insert(name);
  lock.unlock();  // the deleter below takes it, also if there is no memory for the result
  // Even if an exception is thrown (no thread, no memory), the name leaves registering_.
  return std::shared_ptr<void>(nullptr, [this, name](void*) {
    MutexLock guard(mu_);
    registering_.erase(name);
    cv_.notify_all();
  });
}

Status Agent::Retire(Model& model, const Status& ended) const {
  if (const auto users = users_.Of(model.name()); !users.empty()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": {}{} has registered it and is alive; end that trainer first",
                  model.name(), users.front(),
                  users.size() == 1 ? "" : fmt::format(" and {} more", users.size() - 1));
  }
  return model.offloads().StopIfFree(ended);
}

StatusOr<Agent::Unregistered> Agent::Unregister(const std::string& name) {
  DW_RETURN_IF_ERROR(CheckModelName(name));  // it is a directory's name, too
  DW_ASSIGN_OR_RETURN(const auto turn, TakeTurn(name));
  const Status ended =
      Errorf(StatusCode::kNotFound, "model \"{}\" was unregistered from this sender", name);
  Unregistered done{.directory = std::filesystem::path(options_.data_dir) / name, .files = {}};
  if (auto model = Find(name); model.ok()) {
    {
      // Before the look at its users, so that who comes after that look is refused.
      MutexLock lock(mu_);
      unregistering_.insert(name);
    }
    const Status retired = Retire(**model, ended);
    if (!retired.ok()) {
      MutexLock lock(mu_);
      unregistering_.erase(name);
      return retired;
    }
    // Now, so that a crash from here on does not bring the model back.
    std::error_code ignored;
    std::filesystem::remove(done.directory / Halves::kStateName, ignored);
  } else {
    MutexLock lock(mu_);
    if (!unregistering_.contains(name)) return model.status();
  }
  DW_RETURN_IF_ERROR(LetGo(name, ended));
  DW_ASSIGN_OR_RETURN(done.files, RemoveModelFiles(done.directory, options_.file_group));
  {
    MutexLock lock(mu_);
    unregistering_.erase(name);
    leaving_.erase(name);
  }
  LogInfo("model {}: unregistered, {} freed in {}", name, HumanBytes(done.files.freed_bytes),
          done.directory.string());
  return done;
}

StatusOr<std::shared_ptr<Model>> Agent::Registered(const std::string& name, const Layout& layout,
                                                   const Coverage& part, bool replace) const {
  const auto found = Find(name);
  if (!found.ok()) return std::shared_ptr<Model>();
  const std::shared_ptr<Model>& old = *found;
  if (old->layout().fingerprint() == layout.fingerprint()) {
    if (part == old->owned()) return old;
    if (replace) return std::shared_ptr<Model>();
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\" is registered with another part of it: chunks {} instead of {}; "
                  "register with `replace` to drop it, or use another name",
                  name, ToString(old->owned().ranges()), ToString(part.ranges()));
  }
  if (replace) return std::shared_ptr<Model>();
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\" is registered with another layout: {}; register with `replace` to "
                "drop it, or use another name",
                name, DescribeDifference(old->layout(), layout));
}

Status Agent::LetGo(const std::string& name, const Status& ended) {
  std::shared_ptr<Model> model;
  std::shared_ptr<Leaving> leaving;
  {
    MutexLock lock(mu_);
    // The old model may also be one that an earlier try gave up waiting for.
    if (const auto it = leaving_.find(name); it != leaving_.end()) leaving = it->second;
    if (auto it = models_.find(name); it != models_.end()) {
      model = std::move(it->second.model);
      models_.erase(it);
    }
  }
  if (model != nullptr) {
    groups_.Forget(name);
    {
      // A Coming that still found the model has told of it by now, and a later one finds it gone.
      MutexLock one_at_a_time(coming_mu_);
      desk_.attachments().feed().Forget(name, ended);
    }
    model->Drop(ended.ok()
                    ? absl::AbortedError(fmt::format(
                          "model \"{}\" was replaced at the sender; register it again", name))
                    : ended);
    desk_.Drop(*model, absl::AbortedError(ended.ok() ? "the model was replaced; describe it again"
                                                     : ended.message()));
  }
  model.reset();
  if (leaving == nullptr) return absl::OkStatus();
  MutexLock lock(leaving->mu);
  if (leaving->cv.wait_for(
          lock, limits_.letting_go,
          [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(leaving->mu) { return leaving->gone; })) {
    return absl::OkStatus();
  }
  return Errorf(StatusCode::kDeadlineExceeded,
                "model \"{}\": what was registered before is not served any more, but still in use "
                "by a call or a stream after {} ms; {} again",
                name, limits_.letting_go.count(), ended.ok() ? "register" : "unregister");
}

StatusOr<std::shared_ptr<Model>> Agent::Make(const std::string& name, Layout layout, Coverage part,
                                             std::vector<SideFile> side_files, bool replaces) {
  const auto dir = std::filesystem::path(options_.data_dir) / name;
  auto made = Model::Create(name, dir, std::move(layout), std::move(part), std::move(side_files),
                            options_, pool_, stages_);
  if (made.ok()) {
    auto model = Adopt(std::move(*made));
    LogInfo("model {}: registered, {} tensors, {} of {} chunks, {} per half in {}", name,
            model->layout().size(), model->owned().size(), model->chunks().size(),
            HumanBytes(model->owned_bytes()), dir.string());
    return model;
  }
  if (!replaces) return made.status();
  auto old = Model::Recover(name, dir, options_, pool_, stages_);
  if (!old.ok()) {
    return Annotate(made.status(),
                    fmt::format("model \"{}\" was dropped to make place, and nothing "
                                "is registered under that name now",
                                name));
  }
  Adopt(std::move(*old));
  return Annotate(made.status(), fmt::format("model \"{}\" stays as it was", name));
}

StatusOr<std::shared_ptr<Model>> Agent::Find(const std::string& name) const {
  MutexLock lock(mu_);
  const auto it = models_.find(name);
  if (it != models_.end()) return it->second.model;
  std::string known;
  for (const auto& [other, entry] : models_) known += (known.empty() ? "" : ", ") + other;
  return Errorf(StatusCode::kNotFound,
                "no model \"{}\" is registered with this sender (it has: {})", name,
                known.empty() ? "none yet" : known);
}

StatusOr<std::shared_ptr<StateSource>> Agent::Source(const std::string& name) const {
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Find(name));
  return std::static_pointer_cast<StateSource>(std::move(model));
}

StatusOr<PullTicket> Agent::OpenPull(const PullRequest& request) {
  DW_ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, Find(request.model));
  const auto still = [&] {
    MutexLock lock(mu_);
    const auto entry = models_.find(request.model);
    return entry != models_.end() && entry->second.model == model;
  };
  auto incoming = IncomingFor(request, model->offloads().incoming(), *model);
  auto ticket =
      incoming.ok() ? desk_.Open(request, model, still, *std::move(incoming)) : incoming.status();
  if (!ticket.ok()) desk_.Refused(request.model);
  return ticket;
}

std::vector<std::shared_ptr<Model>> Agent::Models() const {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<Model>> all;
  for (const auto& [name, entry] : models_) all.push_back(entry.model);
  return all;
}

}  // namespace deltawire::sender
