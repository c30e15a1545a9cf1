#include "sender/agent/model.h"

#include <sys/random.h>

#include <system_error>

#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/layout/model_dir.h"
#include "common/layout/root.h"
#include "sender/agent/owned_file.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

template <typename T>
Status Draw(T& value, const std::string& model, const char* what) {
  if (getrandom(&value, sizeof value, 0) == sizeof value) return absl::OkStatus();
  return ErrnoError(fmt::format("getrandom for the {} of model \"{}\"", what, model));
}

/// Draws the first lease at random, since leases of different processes must not coincide. Half of
/// the range leaves room to count upwards.
StatusOr<uint64_t> FirstLease(const std::string& model) {
  uint64_t lease = 0;
  DW_RETURN_IF_ERROR(Draw(lease, model, "leases"));
  return lease >> 1;
}

}  // namespace

Model::Model(Parts parts, uint64_t first_lease, ThreadPool& pool)
    : name_(std::move(parts.name)),
      dir_(std::move(parts.dir)),
      options_(parts.options),
      layout_ptr_(std::move(parts.layout)),
      chunks_ptr_(std::move(parts.chunks)),
      owned_ptr_(std::move(parts.owned)),
      layout_(*layout_ptr_),
      chunks_(*chunks_ptr_),
      owned_(*owned_ptr_),
      owned_bytes_(owned_.bytes(chunks_)),
      key_(layout_.fingerprint().lo),
      backend_(kernels::Best()),
      pool_(pool),
      dir_lock_(std::move(*parts.lock)),
      side_store_(dir_ / kSideDir),
      halves_(std::move(parts.halves)),
      store_(std::make_unique<VersionStore>(
          VersionStore::Context{name_, &layout_, &chunks_, &backend_, &key_, owned_bytes_},
          options_.delta_log_bytes)),
      scrubber_(std::make_unique<Scrubber>(
          Scrubber::Context{name_, &layout_, &chunks_, &owned_, &backend_, &key_}, *halves_)),
      session_({name_, !owned_.all(), options_.offload_timeout}, layout_, chunks_, owned_,
               first_lease),
      next_side_files_(std::move(parts.next_side_files)) {
  for (const ChunkRange& range : owned_.ranges()) {
    for (uint32_t c = range.first; c < range.last; ++c) {
      elements_ += chunks_[c].bytes / chunks_[c].width;
    }
  }
  gpu_ = MakeGpu();
}

Model::~Model() {
  Stop(Stopping("sender"));
  if (publisher_.joinable()) publisher_.join();
  if (job_ != nullptr) {
    job_->Cancel();
    job_->Join();
  }
}

Halves::Context Model::ContextOf(const Parts& parts, ThreadPool& pool) {
  BufferOptions buffer{.huge_pages = parts.options.huge_pages, .populate = true, .pool = &pool};
  if (!parts.owned->all()) buffer.only = parts.owned->ByteRanges(*parts.chunks);
  return {parts.name,         parts.dir,         parts.layout.get(),
          parts.chunks.get(), parts.owned.get(), std::move(buffer)};
}

StatusOr<std::shared_ptr<Model>> Model::Create(std::string name, fs::path dir, Layout layout,
                                               Coverage owned, std::vector<SideFile> side_files,
                                               const ModelOptions& options, ThreadPool& pool) {
  Parts parts{std::move(name), std::move(dir), options, {}, {}, {}, {}, {}, {}};
  DW_ASSIGN_OR_RETURN(parts.next_side_files, MakeSideFileSet(std::move(side_files)));
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  DW_ASSIGN_OR_RETURN(parts.lock, DirLock::Acquire(parts.dir, options.file_group));
  parts.layout = std::make_unique<Layout>(std::move(layout));
  parts.chunks = std::make_unique<ChunkTable>(std::move(chunks));
  parts.owned = std::make_unique<Coverage>(std::move(owned));
  // The state file is removed first and made last, since it makes the directory a model's.
  std::error_code ignored;
  fs::remove(parts.dir / Halves::kStateName, ignored);
  DW_RETURN_IF_ERROR(WriteOwnedFile(parts.dir / kOwnedName, *parts.owned));
  SideFileStore side(parts.dir / kSideDir);
  DW_RETURN_IF_ERROR(side.Clear());
  DW_RETURN_IF_ERROR(side.Keep(SideFileStore::Use::kNext, parts.next_side_files));
  StateShape shape{.chunks = parts.chunks->size(),
                   .slots = 2,
                   .fingerprint = parts.layout->fingerprint(),
                   .digest_seed = parts.layout->fingerprint().lo};
  DW_RETURN_IF_ERROR(Draw(shape.lineage, parts.name, "lineage"));
  DW_ASSIGN_OR_RETURN(const uint64_t first_lease, FirstLease(parts.name));
  DW_ASSIGN_OR_RETURN(parts.halves, Halves::Create(ContextOf(parts, pool), shape));
  std::shared_ptr<Model> model(new Model(std::move(parts), first_lease, pool));
  model->publisher_ = Thread([raw = model.get()] { raw->PublisherLoop(); });
  return model;
}

StatusOr<std::shared_ptr<Model>> Model::Recover(std::string name, fs::path dir,
                                                const ModelOptions& options, ThreadPool& pool) {
  std::error_code ec;
  if (!fs::exists(dir / Halves::kStateName, ec) || !fs::exists(Halves::PathOf(dir, 0), ec)) {
    return Errorf(StatusCode::kNotFound, "{} holds no sender's model", dir.string());
  }
  Parts parts{std::move(name), std::move(dir), options, {}, {}, {}, {}, {}, {}};
  DW_ASSIGN_OR_RETURN(parts.lock, DirLock::Acquire(parts.dir, options.file_group));
  DW_ASSIGN_OR_RETURN(StateFile state, StateFile::Open(parts.dir / Halves::kStateName));
  {
    DW_ASSIGN_OR_RETURN(ModelDir file, ModelDir::Open(Halves::PathOf(parts.dir, 0)));
    parts.layout = std::make_unique<Layout>(file.layout());
  }
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(*parts.layout));
  if (state.shape().slots != 2 || state.shape().chunks != chunks.size() ||
      !(state.shape().fingerprint == parts.layout->fingerprint())) {
    return Errorf(StatusCode::kDataLoss, "{}: the state file is of another layout",
                  parts.dir.string());
  }
  DW_ASSIGN_OR_RETURN(Coverage owned, ReadOwnedFile(parts.dir / kOwnedName, chunks.size()));
  parts.chunks = std::make_unique<ChunkTable>(std::move(chunks));
  parts.owned = std::make_unique<Coverage>(std::move(owned));
  const SideFileStore side(parts.dir / kSideDir);
  DW_ASSIGN_OR_RETURN(parts.next_side_files, side.Load(SideFileStore::Use::kNext));
  DW_ASSIGN_OR_RETURN(const uint64_t first_lease, FirstLease(parts.name));
  DW_ASSIGN_OR_RETURN(parts.halves, Halves::Open(ContextOf(parts, pool), std::move(state)));
  std::shared_ptr<Model> model(new Model(std::move(parts), first_lease, pool));
  DW_RETURN_IF_ERROR(model->Restore());
  model->publisher_ = Thread([raw = model.get()] { raw->PublisherLoop(); });
  return model;
}

StatusOr<std::shared_ptr<Published>> Model::RestoreHalf(uint32_t half) {
  auto digests = std::make_shared<std::vector<uint64_t>>(halves_->Digests(half));
  VersionInfo info;
  info.identity = halves_->holds(half);
  info.model_bytes = owned_bytes_;
  info.elements = elements_;
  if (const uint64_t root = RootOf(*digests, owned_); root != info.identity.root) {
    return Errorf(StatusCode::kDataLoss,
                  "{}: the state file's digests have root {:016x}, not that of {}; register the "
                  "model anew",
                  dir_.string(), root, DescribeFully(info.identity));
  }
  const auto use = half == 0 ? SideFileStore::Use::kHalf0 : SideFileStore::Use::kHalf1;
  DW_ASSIGN_OR_RETURN(auto side_files, side_store_.Load(use));
  info.side_files_hash = side_files->hash;
  auto state = store_->Make(info, half);
  state->digests = std::move(digests);
  state->side_files = std::move(side_files);
  return state;
}

Status Model::Restore() {
  const auto newest = halves_->Newest();
  if (!newest) return absl::OkStatus();
  halves_->Activate(*newest);
  DW_ASSIGN_OR_RETURN(auto state, RestoreHalf(*newest));
  store_->Install(std::move(state), nullptr);
  if (halves_->holds(1 - *newest).empty()) return absl::OkStatus();
  auto earlier = RestoreHalf(1 - *newest);
  if (earlier.ok()) store_->KeepEarlier(std::move(*earlier));
  return absl::OkStatus();
}

std::shared_ptr<GpuDiff> Model::MakeGpu() const {
  const Bytes data[] = {half(0), half(1)};
  if (owned_.all()) return GpuDiff::Create(name_, options_.gpu, chunks_, key_, data);
  if (options_.gpu != GpuUse::kOff) {
    // Pinning a half would fill its holes.
    LogWarn("model {}: gpu = \"{}\", but this agent owns a part of it: diffs run on the CPU", name_,
            ToString(options_.gpu));
  }
  return nullptr;
}

std::shared_ptr<const SideFileSet> Model::side_files() const {
  if (const auto newest = store_->newest()) return newest->side_files;
  MutexLock lock(mu_);
  return next_side_files_;
}

std::shared_ptr<const SideFileSet> Model::side_files(uint64_t hash) const {
  if (auto kept = store_->side_files(hash)) return kept;
  MutexLock lock(mu_);
  return next_side_files_->hash == hash ? next_side_files_ : nullptr;
}

Status Model::KeepSideFiles(SideFileStore::Use use, const std::shared_ptr<const SideFileSet>& set) {
  {
    MutexLock lock(mu_);
    while (side_files_busy_) cv_.wait(lock);
    side_files_busy_ = true;
  }
  // Even if an exception is thrown (no memory), the next publish gets its turn.
  const std::shared_ptr<void> done(nullptr, [this](void*) {
    MutexLock lock(mu_);
    side_files_busy_ = false;
    cv_.notify_all();
  });
  return side_store_.Keep(use, set);
}

std::shared_ptr<const SideFileSet> Model::next_side_files() const {
  MutexLock lock(mu_);
  return next_side_files_;
}

Status Model::SetSideFiles(std::vector<SideFile> files) {
  DW_ASSIGN_OR_RETURN(auto set, MakeSideFileSet(std::move(files)));
  DW_RETURN_IF_ERROR(KeepSideFiles(SideFileStore::Use::kNext, set));
  MutexLock lock(mu_);
  next_side_files_ = std::move(set);
  return absl::OkStatus();
}

LeasedState Model::Lease() {
  // Between the two calls a publish may hand out the half; then the next state is the newest.
  while (true) {
    auto state = store_->newest();
    if (state == nullptr) return {};
    auto lease = halves_->Lease(state->half, state->info.identity);
    if (lease != nullptr) return {std::move(state), std::move(lease)};
  }
}

void Model::Recheck(uint32_t chunk) {
  const LeasedState leased = Lease();
  if (leased.state != nullptr && owned_.contains(chunk)) scrubber_->Check(*leased.state, chunk);
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

GpuDiff::Counts Model::gpu_counts() const {
  MutexLock lock(mu_);
  GpuDiff::Counts counts = gpu_before_;
  if (gpu_ != nullptr) counts += gpu_->counts();
  return counts;
}

uint64_t Model::damaged_chunks() const {
  const auto now = published();
  uint64_t n = 0;
  for (uint32_t c = 0; now != nullptr && c < chunks_.size(); ++c) n += now->damaged[c];
  return n;
}

bool Model::IsInPlace() const {
  const auto is_file = [](const fs::path& path) {
    std::error_code unknown;
    return fs::symlink_status(path, unknown).type() == fs::file_type::regular;
  };
  for (uint32_t h = 0; h < 2; ++h) {
    if (!is_file(halves_->path(h))) return false;
  }
  // Without the lock's file they may still be ours, and with another one they are not.
  std::error_code unknown;
  return is_file(dir_ / Halves::kStateName) &&
         (dir_lock_.IsInPlace() || !fs::exists(dir_ / DirLock::kFileName, unknown));
}

void Model::Stop(const Status& why) {
  halves_->Stop(why);
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
