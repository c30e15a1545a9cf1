#include "sender/agent/model.h"

#include <sys/random.h>

#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/layout/root.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

/// Draws the first lease at random, since leases of different processes must not coincide. Half of
/// the range leaves room to count upwards.
StatusOr<uint64_t> FirstLease(const std::string& model) {
  uint64_t lease = 0;
  if (getrandom(&lease, sizeof lease, 0) == sizeof lease) return lease >> 1;
  return ErrnoError(fmt::format("getrandom for the leases of model \"{}\"", model));
}

}  // namespace

Model::Model(std::unique_ptr<const ModelHome> home, const SenderOptions& options,
             uint64_t first_lease, ThreadPool& pool, StageObserver stages)
    : home_(std::move(home)),
      options_(options),
      stages_(std::move(stages)),
      backend_(kernels::Best()),
      pool_(pool),
      store_(VersionStore::Context{name(), &layout(), &chunks(), &backend_, &key(), owned_bytes()},
             options_.delta_log_bytes),
      scrubber_(Scrubber::Context{name(), &layout(), &chunks(), &owned(), &backend_, &key()},
                home_->halves()),
      incoming_(name()),
      gpu_([this](std::string* where) { return MakeGpu(where); }),
      session_({name(), !owned().all(), options_.offload_timeout}, layout(), chunks(), owned(),
               first_lease) {}

Model::~Model() {
  Stop(Stopping("sender"));
  if (publisher_.joinable()) publisher_.join();
  std::shared_ptr<PublishJob> job;
  {
    MutexLock lock(mu_);
    job = job_;
  }
  if (job != nullptr) {
    job->Cancel();
    job->Join();
  }
}

StatusOr<std::shared_ptr<Model>> Model::Create(std::string name, fs::path dir, Layout layout,
                                               Coverage owned, std::vector<SideFile> side_files,
                                               const SenderOptions& options, ThreadPool& pool,
                                               StageObserver stages) {
  DW_ASSIGN_OR_RETURN(auto home,
                      ModelHome::Create(std::move(name), std::move(dir), std::move(layout),
                                        std::move(owned), std::move(side_files), options, pool));
  DW_ASSIGN_OR_RETURN(const uint64_t first_lease, FirstLease(home->name()));
  std::shared_ptr<Model> model(
      new Model(std::move(home), options, first_lease, pool, std::move(stages)));
  model->publisher_ = Thread([raw = model.get()] { raw->PublisherLoop(); });
  return model;
}

StatusOr<std::shared_ptr<Model>> Model::Recover(std::string name, fs::path dir,
                                                const SenderOptions& options, ThreadPool& pool,
                                                StageObserver stages) {
  DW_ASSIGN_OR_RETURN(auto home, ModelHome::Open(std::move(name), std::move(dir), options, pool));
  DW_ASSIGN_OR_RETURN(const uint64_t first_lease, FirstLease(home->name()));
  std::shared_ptr<Model> model(
      new Model(std::move(home), options, first_lease, pool, std::move(stages)));
  DW_RETURN_IF_ERROR(model->Restore());
  model->publisher_ = Thread([raw = model.get()] { raw->PublisherLoop(); });
  return model;
}

StatusOr<std::shared_ptr<Published>> Model::RestoreHalf(uint32_t half) {
  auto digests = std::make_shared<std::vector<uint64_t>>(home_->halves().Digests(half));
  VersionInfo info;
  info.identity = home_->halves().holds(half);
  info.model_bytes = owned_bytes();
  info.elements = home_->owned_elements();
  if (const uint64_t root = RootOf(*digests, owned()); root != info.identity.root) {
    return Errorf(StatusCode::kDataLoss,
                  "{}: the state file's digests have root {:016x}, not that of {}; register the "
                  "model anew",
                  directory().string(), root, DescribeFully(info.identity));
  }
  DW_ASSIGN_OR_RETURN(auto side_files, home_->side_files().Load(ModelHome::UseOf(half)));
  info.side_files_hash = side_files->hash;
  auto state = store_.Make(info, half);
  state->digests = std::move(digests);
  state->side_files = std::move(side_files);
  return state;
}

Status Model::Restore() {
  const auto newest = home_->halves().Newest();
  if (!newest) return absl::OkStatus();
  home_->halves().Activate(*newest);
  DW_ASSIGN_OR_RETURN(auto state, RestoreHalf(*newest));
  store_.Install(std::move(state), nullptr);
  if (home_->halves().holds(1 - *newest).empty()) return absl::OkStatus();
  auto earlier = RestoreHalf(1 - *newest);
  if (earlier.ok()) store_.KeepEarlier(std::move(*earlier));
  return absl::OkStatus();
}

std::unique_ptr<GpuDiff> Model::MakeGpu(std::string* where) const {
  const Bytes data[] = {half(0), half(1)};
  if (owned().all()) return GpuDiff::Create(name(), options_.gpu, chunks(), key(), data, where);
  if (options_.gpu != GpuUse::kOff) {
    // Pinning a half would fill its holes.
    LogWarn("model {}: gpu = \"{}\", but this agent owns a part of it: diffs run on the CPU",
            name(), ToString(options_.gpu));
    *where = "the CPU (this agent owns a part of the model)";
  }
  return nullptr;
}

std::shared_ptr<const SideFileSet> Model::side_files() const {
  const auto newest = store_.newest();
  return newest != nullptr ? newest->side_files : next_side_files();
}

std::shared_ptr<const SideFileSet> Model::side_files(uint64_t hash) const {
  if (auto kept = store_.side_files(hash)) return kept;
  auto next = next_side_files();
  return next->hash == hash ? next : nullptr;
}

Status Model::SetSideFiles(std::vector<SideFile> files) {
  DW_ASSIGN_OR_RETURN(auto set, MakeSideFileSet(std::move(files)));
  return home_->side_files().SetNext(std::move(set));
}

LeasedState Model::Lease() {
  // Between the two calls a publish may hand out the half; then the next state is the newest.
  while (true) {
    auto state = store_.newest();
    if (state == nullptr) return {};
    auto lease = home_->halves().Lease(state->half, state->info.identity);
    if (lease != nullptr) return {std::move(state), std::move(lease)};
  }
}

void Model::Recheck(uint32_t chunk) {
  const LeasedState leased = Lease();
  if (leased.state != nullptr && owned().contains(chunk)) scrubber_.Check(*leased.state, chunk);
}

uint64_t Model::offloading_version() const {
  MutexLock lock(mu_);
  return session_.version();
}

PublishTotals Model::totals() const {
  MutexLock lock(mu_);
  PublishTotals totals = totals_;
  totals.abandoned = session_.abandoned();
  return totals;
}

uint64_t Model::damaged_chunks() const {
  const auto now = published();
  uint64_t n = 0;
  for (uint32_t c = 0; now != nullptr && c < chunks().size(); ++c) n += now->damaged[c];
  return n;
}

std::string Model::diffs_on() const {
  MutexLock lock(mu_);
  return trainer_diffs_on_.empty() ? gpu_.where() : trainer_diffs_on_;
}

void Model::Stop(const Status& why) {
  home_->halves().Stop(why);
  {
    MutexLock lock(mu_);
    if (stopped_.ok()) stopped_ = why;
    cv_.notify_all();
  }
  offload_listeners_.Call();
}

Status Model::Retire(const Status& why) {
  {
    MutexLock lock(mu_);
    DW_RETURN_IF_ERROR(session_.MayUnregister(SteadyClock::now()));
    if (stopped_.ok()) stopped_ = why;
    cv_.notify_all();
  }
  Stop(why);
  return absl::OkStatus();
}

void Model::Drop(const Status& why) {
  Stop(why);
  std::shared_ptr<PublishJob> job;
  {
    MutexLock lock(mu_);
    job = job_;
  }
  if (job != nullptr) job->GiveUp();
}

}  // namespace deltawire::sender
