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

/// Frees the remains of a crash while a model was registered or unregistered: halves without a
/// state file.
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
    LogWarn("model {}: the remains of a crash in {} cannot be removed: {}", name, dir.native(),
            MessageOf(removed.status()));
  } else if (removed->freed_bytes > 0) {
    LogWarn("model {}: freed {} that a crash has left in {}", name,
            HumanBytes(removed->freed_bytes), dir.native());
  }
}

/// Returns whether the registered model has this layout and part. Fails if it has not and may not
/// be replaced.
StatusOr<bool> IsSame(const Model& old, const Layout& layout, const Coverage& part, bool replace) {
  const std::string& name = old.name();
  if (old.layout().fingerprint() == layout.fingerprint()) {
    if (part == old.owned() || replace) return part == old.owned();
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\" is registered with another part of it: chunks {} instead of {}; "
                  "register with `replace` to discard it, or use another name",
                  name, ToString(old.owned().ranges()), ToString(part.ranges()));
  }
  if (replace) return false;
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\" is registered with another layout: {}; register with `replace` to "
                "discard it, or use another name",
                name, DescribeDifference(old.layout(), layout));
}

/// Checks that a model whose files are gone may be made anew, and logs that it is.
Status CheckRenewable(const Model& lost) {
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
      "model {}: its files in {} were removed, so it is made anew under another lineage, with "
      "nothing published; find out what cleans that directory",
      lost.name(), lost.home().directory().native());
  return absl::OkStatus();
}

/// Stops the offloads of a model that no trainer uses.
Status Retire(Model& model, const ModelUsers& trainers, const Status& ended) {
  if (const auto users = trainers.Of(model.name()); !users.empty()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": {}{} has registered it and is alive; end that trainer first",
                  model.name(), users.front(),
                  users.size() == 1 ? "" : fmt::format(" and {} more", users.size() - 1));
  }
  return model.offloads().StopIfFree(ended);
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
             .rate_limit_per_receiver = options.rate_limits.per_receiver,
             .rate_limit_per_site = options.rate_limits.per_site,
             .stages = stages_},
            limits.pulls, coder_rates_),
      groups_({.groups = options.groups,
               .every_version = options.group_commits,
               .skip_absent = options.group_skip_absent,
               .timeout = options.group_timeout},
              desk_.attachments()),
      assigner_(options.fan_out > 0, {.fan_out = options.fan_out}, desk_.attachments()) {
  desk_.attachments().SetOnCommitted(
      [this](const std::string& name, const Identity& id, const PullStats& pull) {
        const auto model = models_.Find(name);
        if (!model.ok()) return;
        const auto seconds = (*model)->publisher().history().CountCommit(id, pull, UnixNanos());
        if (seconds && stages_) stages_({Stage::kDeliver, *seconds, name});
      });
  coder_rates_.Calibrate(kernels::Best());
}

Agent::~Agent() {
  Stop();
  // A model's publisher thread may still announce its last version, so the models, and the pulls
  // that hold them, are destroyed before the members that announce.
  desk_.Close();
  models_.Clear();
}

void Agent::Stop() {
  models_.Stop();
  users_.Stop();
  groups_.Stop(Stopping("sender"));
  desk_.Stop(Stopping("sender"));
  for (const auto& model : models_.All()) model->offloads().Stop(Stopping("sender"));
}

std::shared_ptr<Model> Agent::Adopt(std::shared_ptr<Model> model) {
  Model* raw = model.get();
  raw->offloads().diff().SetCutter([this, raw](uint32_t half) {
    desk_.CutReaders(*raw, half, "so that the trainer need not wait");
  });
  raw->publisher().SetListener([this, raw] { announcer_.AnnouncePublished(*raw); });
  raw->offloads().diff().incoming().SetListener(
      [this, raw] { return desk_.attachments().CountsOf(raw->name()).attached > 0; },
      [this, raw] { announcer_.AnnounceIncoming(*raw); });
  auto end = std::make_shared<ModelEnd>();
  auto watched = disposal_.Watch(std::move(model), end);
  users_.Serve(watched);
  models_.Add({watched, std::move(end)});
  groups_.Adopt(raw->name(), raw->home().directory(), raw->halves().lineage(), raw->owned().all());
  announcer_.AnnouncePublished(*raw);
  return watched;
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
  // Every rank of a trainer registers. One at a time, so that later ranks find the first one's
  // model.
  DW_ASSIGN_OR_RETURN(const auto turn, models_.TakeTurn(name));
  bool replaces = false;
  if (const auto known = models_.Find(name); known.ok()) {
    const Model& old = **known;
    DW_ASSIGN_OR_RETURN(const bool same, IsSame(old, *layout, *part, replace));
    if (same && old.home().IsInPlace()) {
      if (!keep_side_files) DW_RETURN_IF_ERROR((*known)->SetSideFiles(std::move(side_files)));
      announcer_.AnnouncePublished(old);
      return known;
    }
    if (same) DW_RETURN_IF_ERROR(CheckRenewable(old));
    if (same && keep_side_files) side_files = old.home().side_files().next()->files;
    replaces = !same;
  }
  DW_RETURN_IF_ERROR(LetGo(name));
  return Make(name, std::move(*layout), *part, std::move(side_files), replaces);
}

StatusOr<std::shared_ptr<Model>> Agent::FindInPlace(const std::string& name) {
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, models_.Find(name));
  if (model->home().IsInPlace()) return model;
  model.reset();
  DW_ASSIGN_OR_RETURN(const auto turn, models_.TakeTurn(name));
  DW_ASSIGN_OR_RETURN(model, models_.Find(name));
  if (model->home().IsInPlace()) return model;  // another rank was first
  DW_RETURN_IF_ERROR(CheckRenewable(*model));
  Layout layout = model->layout();
  Coverage part = model->owned();
  std::vector<SideFile> side_files = model->home().side_files().next()->files;
  model.reset();
  DW_RETURN_IF_ERROR(LetGo(name));
  return Make(name, std::move(layout), std::move(part), std::move(side_files), false);
}

StatusOr<Agent::Unregistered> Agent::Unregister(const std::string& name) {
  DW_RETURN_IF_ERROR(CheckModelName(name));  // it is a directory's name, too
  DW_ASSIGN_OR_RETURN(const auto turn, models_.TakeTurn(name));
  const Status ended =
      Errorf(StatusCode::kNotFound, "model \"{}\" was unregistered from this sender", name);
  Unregistered done{.directory = std::filesystem::path(options_.data_dir) / name, .files = {}};
  if (auto model = models_.Find(name); model.ok()) {
    // Before the look at its users, so that later ones are refused.
    models_.BeginUnregister(name);
    const Status retired = Retire(**model, users_, ended);
    if (!retired.ok()) {
      models_.CancelUnregister(name);
      return retired;
    }
    // Now, so that a crash from here on does not bring the model back.
    std::error_code ignored;
    std::filesystem::remove(done.directory / Halves::kStateName, ignored);
  } else if (models_.CheckStays(name).ok()) {
    return model.status();
  }
  DW_RETURN_IF_ERROR(LetGo(name, ended));
  DW_ASSIGN_OR_RETURN(done.files, RemoveModelFiles(done.directory, options_.file_group));
  models_.EndUnregister(name);
  LogInfo("model {}: unregistered, {} freed in {}", name, HumanBytes(done.files.freed_bytes),
          done.directory.string());
  return done;
}

Status Agent::LetGo(const std::string& name, const Status& ended) {
  auto [model, end] = models_.Remove(name);
  if (model != nullptr) {
    announcer_.Forget(name, ended);
    model->Drop(ended.ok()
                    ? absl::AbortedError(fmt::format(
                          "model \"{}\" was replaced at the sender; register it again", name))
                    : ended);
    desk_.CutAll(*model, absl::AbortedError(ended.ok() ? "the model was replaced; describe it again"
                                                       : ended.message()));
  }
  model.reset();
  if (end == nullptr || end->WaitFor(limits_.letting_go)) return absl::OkStatus();
  return Errorf(StatusCode::kDeadlineExceeded,
                "model \"{}\": the old model is not served any more, but a call or a stream still "
                "uses it after {} ms; {} again",
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
                    fmt::format("model \"{}\" was discarded to make room, and nothing "
                                "is registered under that name now",
                                name));
  }
  Adopt(std::move(*old));
  return Annotate(made.status(), fmt::format("model \"{}\" stays as it was", name));
}

StatusOr<std::shared_ptr<StateSource>> Agent::Source(const std::string& name) const {
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, models_.Find(name));
  return std::static_pointer_cast<StateSource>(std::move(model));
}

StatusOr<PullTicket> Agent::OpenPull(const PullRequest& request, const PullCaller& caller) {
  DW_ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, models_.Find(request.model));
  return desk_.Open(request, caller, model, model->offloads().incoming(),
                    [&] { return models_.Has(*model); });
}

}  // namespace deltawire::sender
