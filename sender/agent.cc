#include "sender/agent.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "common/base/human.h"

namespace deltawire::sender {
namespace {

// Waits are cut into slices only to notice callers that have gone; changes wake them at once.
constexpr std::chrono::milliseconds kSlice{200};
constexpr size_t kMaxAnswers = 64;

bool ValidModelName(const std::string& name) {
  return !name.empty() && name.size() <= 128 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace

Agent::Agent(const SenderOptions& options, ThreadPool& pool)
    : options_(options),
      model_options_{.delta_log_bytes = options.delta_log_bytes,
                     .scrub_bytes_per_s = options.scrub_bytes_per_s,
                     .grace = options.grace,
                     .offload_timeout = options.offload_timeout,
                     .huge_pages = options.huge_pages,
                     .eager_diff = options.eager_diff,
                     .gpu = options.gpu},
      pool_(pool) {
  coder_rates_.Calibrate(kernels::Best());
}

Agent::~Agent() { Stop(); }

void Agent::Stop() {
  std::vector<std::shared_ptr<Model>> models;
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    for (auto& [name, model] : models_) models.push_back(model);
    cv_.notify_all();
  }
  for (auto& model : models) model->Stop();
}

void Agent::Adopt(const std::shared_ptr<Model>& model) {
  model->SetCutter([this, raw = model.get()](uint32_t half) { CutReaders(raw, half); });
  model->SetListener([this] {
    std::lock_guard lock(mu_);
    cv_.notify_all();
  });
  std::lock_guard lock(mu_);
  models_[model->name()] = model;
}

Status Agent::RecoverModels() {
  std::error_code ec;
  std::filesystem::create_directories(options_.data_dir, ec);
  if (ec) return Errorf(StatusCode::kInternal, "create {}: {}", options_.data_dir, ec.message());
  for (const auto& entry : std::filesystem::directory_iterator(options_.data_dir, ec)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory() || !ValidModelName(name)) continue;
    auto model = Model::Recover(name, entry.path(), model_options_, pool_);
    if (absl::IsNotFound(model.status())) continue;
    if (absl::IsAlreadyExists(model.status())) return model.status();
    if (!model.ok()) {
      spdlog::warn("model {}: not taken up, a trainer must register it anew: {}", name,
                   MessageOf(model.status()));
      continue;
    }
    const auto state = (*model)->published();
    spdlog::info("model {}: taken up at {}", name, ToString(state ? state->info.id : StateId{}));
    Adopt(*model);
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<Model>> Agent::Register(const std::string& name,
                                                 std::vector<TensorMeta> meta,
                                                 const std::vector<ChunkRange>& owned,
                                                 std::vector<SideFile> side_files, bool replace,
                                                 bool keep_side_files) {
  if (!ValidModelName(name)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model name \"{}\": use 1 to 128 of [A-Za-z0-9._-], not starting with a dot",
                  name);
  }
  auto layout = Layout::Create(std::move(meta));
  if (!layout.ok()) return Annotate(layout.status(), fmt::format("model \"{}\"", name));
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(*layout));
  const auto part = Coverage::Create(owned, chunks.size());
  if (!part.ok()) return Annotate(part.status(), fmt::format("model \"{}\", owned", name));
  // Every rank of a trainer registers: the second finds what the first has made.
  std::lock_guard one_at_a_time(register_mu_);
  std::shared_ptr<Model> old;
  {
    std::lock_guard lock(mu_);
    if (auto it = models_.find(name); it != models_.end()) old = it->second;
  }
  if (old != nullptr && old->layout().fingerprint() == layout->fingerprint()) {
    if (*part != old->owned() && !replace) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\" is registered with another part of it: chunks {} instead of {}; "
                    "register with `replace` to drop it, or use another name",
                    name, ToString(old->owned().ranges()), ToString(part->ranges()));
    }
    if (*part == old->owned()) {
      if (!keep_side_files) DW_RETURN_IF_ERROR(old->SetSideFiles(std::move(side_files)));
      std::lock_guard lock(mu_);
      cv_.notify_all();
      return old;
    }
  }
  if (old != nullptr && !replace) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\" is registered with another layout: {}; register with `replace` to "
                  "drop it, or use another name",
                  name, DescribeDifference(old->layout(), *layout));
  }
  if (old != nullptr) {
    std::vector<std::shared_ptr<PullSession>> cut;
    {
      std::lock_guard lock(mu_);
      models_.erase(name);
      for (auto it = pulls_.begin(); it != pulls_.end();) {
        if (it->second->model() == old) cut.push_back(it->second);
        it = it->second->model() == old ? pulls_.erase(it) : std::next(it);
      }
    }
    for (auto& pull : cut)
      pull->Cut(absl::AbortedError("the model was replaced; describe it again"));
    cut.clear();
    old->Stop();
    // The directory's lock goes with the last reference; streams that were cut hold it briefly.
    std::weak_ptr<Model> last = old;
    old.reset();
    for (int i = 0; i < 100 && !last.expired(); ++i) {
      std::unique_lock lock(mu_);
      cv_.wait_for(lock, std::chrono::milliseconds(50));
    }
  }
  const auto dir = std::filesystem::path(options_.data_dir) / name;
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model,
                      Model::Create(name, dir, std::move(*layout), *part, std::move(side_files),
                                    model_options_, pool_));
  Adopt(model);
  spdlog::info("model {}: registered, {} tensors, {} of {} chunks, {} per half in {}", name,
               model->layout().size(), model->owned().size(), model->chunks().size(),
               HumanBytes(model->owned_bytes()), dir.string());
  return model;
}

StatusOr<std::shared_ptr<Model>> Agent::Find(const std::string& name) const {
  std::lock_guard lock(mu_);
  const auto it = models_.find(name);
  if (it != models_.end()) return it->second;
  std::string known;
  for (const auto& [other, model] : models_) known += (known.empty() ? "" : ", ") + other;
  return Errorf(StatusCode::kNotFound,
                "no model \"{}\" is registered with this sender (it has: {})", name,
                known.empty() ? "none yet" : known);
}

std::vector<std::shared_ptr<Model>> Agent::Models() const {
  std::lock_guard lock(mu_);
  std::vector<std::shared_ptr<Model>> all;
  for (const auto& [name, model] : models_) all.push_back(model);
  return all;
}

// Receivers -----------------------------------------------------------------------------------

uint64_t Agent::Attach(const std::string& model, const std::string& id, const std::string& peer) {
  std::lock_guard lock(mu_);
  for (auto it = attached_.begin(); it != attached_.end();) {
    const bool same = it->second.model == model && it->second.id == id;
    it = same ? attached_.erase(it) : std::next(it);
  }
  const uint64_t token = next_token_++;
  Attached& a = attached_[token];
  a.model = model;
  a.id = id;
  a.peer = peer;
  a.since = std::chrono::steady_clock::now();
  cv_.notify_all();
  return token;
}

void Agent::Detach(uint64_t token) {
  std::lock_guard lock(mu_);
  attached_.erase(token);
  cv_.notify_all();
}

void Agent::Report(uint64_t token, const ReceiverReport& report) {
  std::lock_guard lock(mu_);
  const auto it = attached_.find(token);
  if (it == attached_.end()) return;
  it->second.report = report;
  ++it->second.report_serial;
  if (report.sync_request != 0) it->second.answers[report.sync_request] = report;
  // Whoever asked may have gone; what nobody takes must not pile up.
  if (it->second.answers.size() > kMaxAnswers) it->second.answers.erase(it->second.answers.begin());
  cv_.notify_all();
}

std::optional<SenderEvent> Agent::NextEvent(uint64_t token, const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  while (true) {
    const auto it = attached_.find(token);
    if (stopping_ || it == attached_.end()) return std::nullopt;
    Attached& a = it->second;
    const auto model = models_.find(a.model);
    if (model != models_.end()) {
      const auto state = model->second->published();
      const auto side = model->second->side_files();
      SenderEvent event;
      if (state != nullptr) event.newest = state->info;
      event.side_files_hash = side->hash;
      const uint64_t serial = state == nullptr ? 0 : state->serial;
      if (!a.requests.empty()) {
        event.sync_request = a.requests.front().sync_request;
        event.force_full = a.requests.front().force_full;
        a.requests.erase(a.requests.begin());
      }
      if (event.sync_request != 0 || a.first || serial != a.seen_serial) {
        a.first = false;
        a.seen_serial = serial;
        return event;
      }
    }
    if (gone()) return std::nullopt;
    cv_.wait_for(lock, kSlice);
  }
}

std::vector<ReceiverView> Agent::Receivers(const std::string& model) const {
  std::lock_guard lock(mu_);
  std::vector<ReceiverView> all;
  for (const auto& [token, a] : attached_) {
    if (!model.empty() && a.model != model) continue;
    all.push_back({a.id, a.model, a.peer, SecondsSince(a.since), a.report});
  }
  return all;
}

std::vector<uint64_t> Agent::AskToSync(const std::string& model, std::vector<std::string>& ids,
                                       bool force_full, uint64_t request) {
  std::vector<uint64_t> asked;
  for (auto& [token, a] : attached_) {
    if (a.model != model) continue;
    const auto named = std::find(ids.begin(), ids.end(), a.id);
    if (!ids.empty() && named == ids.end()) continue;
    SenderEvent event;
    event.sync_request = request;
    event.force_full = force_full;
    a.requests.push_back(event);
    asked.push_back(token);
  }
  cv_.notify_all();
  return asked;
}

Status Agent::TriggerSync(const std::string& name, std::vector<std::string> ids, bool force_full,
                          const std::function<bool(const Progress&)>& progress,
                          const std::function<bool()>& gone) {
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Find(name));
  const auto state = model->published();
  if (state == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet", name);
  }
  std::unique_lock lock(mu_);
  for (const std::string& id : ids) {
    const bool there = std::any_of(attached_.begin(), attached_.end(), [&](const auto& entry) {
      return entry.second.model == name && entry.second.id == id;
    });
    if (!there) {
      return Errorf(StatusCode::kNotFound, "model \"{}\": receiver \"{}\" is not attached", name,
                    id);
    }
  }
  const uint64_t request = next_request_++;
  const std::vector<uint64_t> asked = AskToSync(name, ids, force_full, request);
  if (asked.empty()) {
    return Errorf(StatusCode::kNotFound, "model \"{}\": no receiver is attached", name);
  }
  std::map<uint64_t, uint64_t> seen;
  std::map<uint64_t, std::string> names;
  for (const uint64_t token : asked) names[token] = attached_.at(token).id;
  while (!names.empty()) {
    std::vector<Progress> news;
    for (auto it = names.begin(); it != names.end();) {
      const uint64_t token = it->first;
      const auto a = attached_.find(token);
      Progress p{it->second, "failed", state->info.id, {}};
      bool ended = false;
      if (a == attached_.end()) {
        p.report.message = "the receiver has gone";
        ended = true;
      } else if (const auto answer = a->second.answers.find(request);
                 answer != a->second.answers.end()) {
        p.report = std::move(answer->second);
        p.phase = p.report.phase;
        a->second.answers.erase(answer);
        ended = true;
      } else if (seen[token] != a->second.report_serial) {
        seen[token] = a->second.report_serial;
        p.report = a->second.report;
        const bool busy = p.report.phase == "pulling" || p.report.phase == "applying";
        p.phase = busy ? p.report.phase : "asked";
      } else {
        ++it;
        continue;
      }
      news.push_back(std::move(p));
      it = ended ? names.erase(it) : std::next(it);
    }
    lock.unlock();
    for (const Progress& p : news) {
      if (!progress(p)) return absl::CancelledError("the caller has gone");
    }
    if (gone()) return absl::CancelledError("the caller has gone");
    lock.lock();
    if (stopping_) return absl::UnavailableError("the sender is stopping");
    if (news.empty()) cv_.wait_for(lock, kSlice);
  }
  return absl::OkStatus();
}

std::shared_ptr<const Published> Agent::WaitChange(const std::string& name, uint64_t seen_serial,
                                                   const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (const auto it = models_.find(name); it != models_.end()) {
      auto state = it->second->published();
      if (state != nullptr && state->serial != seen_serial) return state;
    }
    if (gone()) return nullptr;
    cv_.wait_for(lock, kSlice);
  }
  return nullptr;
}

}  // namespace deltawire::sender
