#include "sender/model.h"

#include <spdlog/spdlog.h>

#include <fstream>
#include <system_error>

#include "common/base/human.h"
#include "sender/owned_file.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

constexpr const char* kStateName = ".deltawire.state";
constexpr const char* kOwnedName = ".deltawire.owned";
constexpr const char* kSideDir = "side";
// Of chunks that were coded for the way; a version's deltas are much smaller as a rule.
constexpr uint64_t kEncodedCacheBytes = uint64_t{256} << 20;

fs::path HalfPath(const fs::path& dir, int i) {
  return dir / fmt::format("half-{}.safetensors", i);
}

BufferOptions HalfOptions(const ModelOptions& options, const Coverage& owned,
                          const ChunkTable& chunks, ThreadPool& pool) {
  BufferOptions buffer{.huge_pages = options.huge_pages, .populate = true, .pool = &pool};
  if (!owned.all()) buffer.only = owned.ByteRanges(chunks);
  return buffer;
}

uint64_t HashSideFiles(const std::vector<SideFile>& files) {
  Xxh3Stream hash;
  for (const SideFile& f : files) {
    const uint64_t sizes[2] = {f.name.size(), f.content.size()};
    hash.Update({reinterpret_cast<const std::byte*>(sizes), sizeof sizes});
    hash.Update(AsBytes(f.name));
    hash.Update(AsBytes(f.content));
  }
  return hash.Digest();
}

Status WriteSideFiles(const fs::path& dir, const std::vector<SideFile>& files) {
  std::error_code ec;
  fs::remove_all(dir, ec);
  fs::create_directories(dir, ec);
  if (ec) return Errorf(StatusCode::kInternal, "create {}: {}", dir.string(), ec.message());
  for (const SideFile& f : files) {
    std::ofstream out(dir / f.name, std::ios::binary);
    out << f.content;
    if (!out.flush()) return ErrnoError(fmt::format("write {}", (dir / f.name).string()));
  }
  return absl::OkStatus();
}

StatusOr<std::vector<SideFile>> ReadSideFiles(const fs::path& dir) {
  std::vector<SideFile> files;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::string content((std::istreambuf_iterator<char>(in)), {});
    if (in.bad()) return ErrnoError(fmt::format("read {}", entry.path().string()));
    files.push_back({entry.path().filename().string(), std::move(content)});
  }
  std::sort(files.begin(), files.end(),
            [](const SideFile& a, const SideFile& b) { return a.name < b.name; });
  return files;
}

Status CheckSideFiles(const std::vector<SideFile>& files) {
  uint64_t total = 0;
  for (const SideFile& f : files) {
    if (!IsSideFileName(f.name)) {
      return Errorf(StatusCode::kInvalidArgument,
                    "side file \"{}\": the name must be a plain file name and no weight file",
                    f.name);
    }
    total += f.content.size();
    if (f.content.size() > kMaxSideFileBytes || total > kMaxSideFilesTotal) {
      return Errorf(StatusCode::kInvalidArgument,
                    "side file \"{}\" brings the side files to {}; the limit is {} each, {} in all",
                    f.name, HumanBytes(total), HumanBytes(kMaxSideFileBytes),
                    HumanBytes(kMaxSideFilesTotal));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Model::Model(std::string name, fs::path dir, Layout layout, ChunkTable chunks, Coverage owned,
             DirLock lock, StateFile state, std::vector<BufferFile> halves,
             const ModelOptions& options, ThreadPool& pool)
    : name_(std::move(name)),
      dir_(std::move(dir)),
      layout_(std::move(layout)),
      chunks_(std::move(chunks)),
      owned_(std::move(owned)),
      owned_bytes_(owned_.bytes(chunks_)),
      key_(layout_.fingerprint().lo),
      backend_(kernels::Best()),
      options_(options),
      pool_(pool),
      dir_lock_(std::move(lock)),
      state_(std::move(state)),
      halves_(std::move(halves)),
      side_files_(std::make_shared<SideFiles>()),
      log_(options.delta_log_bytes) {
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    if (owned_.contains(c)) elements_ += chunks_[c].bytes / chunks_[c].width;
  }
  const Bytes halves_data[] = {halves_[0].data(), halves_[1].data()};
  if (owned_.all()) {
    gpu_ = GpuDiff::Create(name_, options_.gpu, chunks_, key_, halves_data);
  } else if (options_.gpu != GpuUse::kOff) {
    // Pinning a half would fill its holes.
    spdlog::warn("model {}: gpu = \"{}\", but this agent owns a part of it: diffs run on the CPU",
                 name_, ToString(options_.gpu));
  }
  publisher_ = std::thread([this] { PublisherLoop(); });
}

Model::~Model() {
  Stop();
  publisher_.join();
  if (offload_.job != nullptr) offload_.job->Cancel();
}

StatusOr<std::shared_ptr<Model>> Model::Create(std::string name, fs::path dir, Layout layout,
                                               Coverage owned, std::vector<SideFile> side_files,
                                               const ModelOptions& options, ThreadPool& pool) {
  DW_RETURN_IF_ERROR(CheckSideFiles(side_files));
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  DW_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(dir));
  // Halves of another layout would only take memory from the new ones.
  std::error_code ignored;
  fs::remove(dir / kStateName, ignored);
  for (int i = 0; i < 2; ++i) fs::remove(HalfPath(dir, i), ignored);

  DW_RETURN_IF_ERROR(WriteOwnedFile(dir / kOwnedName, owned));
  const BufferOptions buffer = HalfOptions(options, owned, chunks, pool);
  std::vector<BufferFile> halves;
  for (int i = 0; i < 2; ++i) {
    auto half = BufferFile::Create(HalfPath(dir, i), layout, buffer);
    if (!half.ok()) {
      // A lone half is of no use and would keep the memory that the user is asked to free.
      halves.clear();
      fs::remove(HalfPath(dir, 0), ignored);
      return Annotate(half.status(), fmt::format("model \"{}\", half {}", name, i));
    }
    halves.push_back(std::move(*half));
  }
  DW_ASSIGN_OR_RETURN(StateFile state, StateFile::Create(dir / kStateName,
                                                         {.chunks = chunks.size(),
                                                          .slots = 2,
                                                          .fingerprint = layout.fingerprint(),
                                                          .digest_seed = layout.fingerprint().lo}));
  std::shared_ptr<Model> model(new Model(std::move(name), std::move(dir), std::move(layout),
                                         std::move(chunks), std::move(owned), std::move(lock),
                                         std::move(state), std::move(halves), options, pool));
  DW_RETURN_IF_ERROR(model->SetSideFiles(std::move(side_files)));
  return model;
}

StatusOr<std::shared_ptr<Model>> Model::Recover(std::string name, fs::path dir,
                                                const ModelOptions& options, ThreadPool& pool) {
  std::error_code ec;
  if (!fs::exists(dir / kStateName, ec) || !fs::exists(HalfPath(dir, 0), ec)) {
    return Errorf(StatusCode::kNotFound, "{} holds no sender's model", dir.string());
  }
  DW_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(dir));
  DW_ASSIGN_OR_RETURN(StateFile state, StateFile::Open(dir / kStateName));
  DW_ASSIGN_OR_RETURN(ModelDir file, ModelDir::Open(HalfPath(dir, 0)));
  Layout layout = file.layout();
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  if (state.shape().slots != 2 || state.shape().chunks != chunks.size() ||
      !(state.shape().fingerprint == layout.fingerprint())) {
    return Errorf(StatusCode::kDataLoss, "{}: the state file is of another layout", dir.string());
  }
  DW_ASSIGN_OR_RETURN(Coverage owned, ReadOwnedFile(dir / kOwnedName, chunks.size()));
  const BufferOptions buffer = HalfOptions(options, owned, chunks, pool);
  std::vector<BufferFile> halves;
  for (int i = 0; i < 2; ++i) {
    DW_ASSIGN_OR_RETURN(BufferFile half, BufferFile::Open(HalfPath(dir, i), layout, buffer));
    halves.push_back(std::move(half));
  }
  DW_ASSIGN_OR_RETURN(std::vector<SideFile> side, ReadSideFiles(dir / kSideDir));
  std::shared_ptr<Model> model(new Model(std::move(name), std::move(dir), std::move(layout),
                                         std::move(chunks), std::move(owned), std::move(lock),
                                         std::move(state), std::move(halves), options, pool));
  const uint64_t hash = HashSideFiles(side);
  model->side_files_ = std::make_shared<SideFiles>(SideFiles{std::move(side), hash});
  // A crash between the two words of a publish leaves both halves whole: the newer one is it.
  std::optional<uint32_t> whole;
  for (uint32_t i = 0; i < 2; ++i) {
    if (model->state_.phase(i) != SlotPhase::kWhole) continue;
    if (!whole || model->state_.id(i) > model->state_.id(*whole)) whole = i;
  }
  if (whole) {
    model->state_.set_active(*whole);
    auto digests = std::make_shared<std::vector<uint64_t>>(model->chunks_.size());
    for (uint32_t c = 0; c < model->chunks_.size(); ++c) {
      (*digests)[c] = model->state_.chunk_digest(*whole, c);
    }
    VersionInfo info;
    info.id = model->state_.id(*whole);
    info.model_bytes = model->owned_bytes_;
    info.elements = model->elements_;
    std::lock_guard guard(model->mu_);
    model->Install(info.id, *whole, info, std::move(digests), nullptr, {});
  }
  return model;
}

std::shared_ptr<const Model::SideFiles> Model::side_files() const {
  std::lock_guard lock(mu_);
  return side_files_;
}

Status Model::SetSideFiles(std::vector<SideFile> files) {
  DW_RETURN_IF_ERROR(CheckSideFiles(files));
  DW_RETURN_IF_ERROR(WriteSideFiles(dir_ / kSideDir, files));
  std::sort(files.begin(), files.end(),
            [](const SideFile& a, const SideFile& b) { return a.name < b.name; });
  const uint64_t hash = HashSideFiles(files);
  std::lock_guard lock(mu_);
  side_files_ = std::make_shared<SideFiles>(SideFiles{std::move(files), hash});
  return absl::OkStatus();
}

std::shared_ptr<const Published> Model::published() const {
  std::lock_guard lock(mu_);
  return published_;
}

LeasedState Model::Lease() {
  std::lock_guard lock(mu_);
  if (published_ == nullptr) return {};
  return {published_, LeaseLocked(published_->half)};
}

std::shared_ptr<const void> Model::LeaseLocked(uint32_t half) {
  ++readers_[half];
  // The deleter keeps no owner: a pull holds the Model for longer than any of its leases.
  return {this, [half](Model* self) {
            std::lock_guard guard(self->mu_);
            if (--self->readers_[half] == 0) self->cv_.notify_all();
          }};
}

uint64_t Model::offloading_version() const {
  std::lock_guard lock(mu_);
  return phase_ == OffloadPhase::kIdle ? 0 : offload_.version;
}

PublishTotals Model::totals() const {
  std::lock_guard lock(mu_);
  return totals_;
}

uint64_t Model::log_bytes() const {
  std::lock_guard lock(mu_);
  return log_.bytes();
}

void Model::Install(StateId id, uint32_t half, VersionInfo info,
                    std::shared_ptr<const std::vector<uint64_t>> digests,
                    std::shared_ptr<const std::vector<TensorChange>> tensors,
                    const std::vector<uint32_t>& damaged) {
  auto next = MakeState(id, half);
  next->info = info;
  next->info.id = id;
  next->serial = next_serial_++;
  next->digests = std::move(digests);
  next->log = log_.View();
  next->tensors = std::move(tensors);
  for (const uint32_t c : damaged) next->damaged[c] = 1;
  published_ = std::move(next);
}

std::shared_ptr<Published> Model::MakeState(StateId id, uint32_t half) const {
  auto state = std::make_shared<Published>();
  state->info.id = id;
  state->half = half;
  state->encoded = std::make_shared<EncodedCache>(kEncodedCacheBytes);
  state->damaged = std::make_unique<std::atomic<uint8_t>[]>(chunks_.size());
  state->full_xxh3 = std::make_unique<std::atomic<uint64_t>[]>(chunks_.size());
  return state;
}

void Model::Stop() {
  std::lock_guard lock(mu_);
  stopping_ = true;
  cv_.notify_all();
}

}  // namespace deltawire::sender
