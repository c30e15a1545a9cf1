#include "sender/agent/halves/model_home.h"

#include <sys/random.h>

#include <system_error>

#include "common/layout/model_dir.h"
#include "common/shm/own_directory.h"
#include "sender/agent/halves/owned_file.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

StatusOr<Hash128> DrawLineage(const std::string& model) {
  Hash128 lineage;
  if (getrandom(&lineage, sizeof lineage, 0) == sizeof lineage) return lineage;
  return ErrnoError(fmt::format("getrandom for the lineage of model \"{}\"", model));
}

}  // namespace

void ModelHome::SetLayout(std::unique_ptr<const Layout> layout, ChunkTable chunks, Coverage owned) {
  layout_ = std::move(layout);
  chunks_ = std::make_unique<const ChunkTable>(std::move(chunks));
  owned_ = std::make_unique<const Coverage>(std::move(owned));
  key_.emplace(layout_->fingerprint().lo);
  owned_bytes_ = owned_->bytes(*chunks_);
  for (const ChunkRange& range : owned_->ranges()) {
    for (uint32_t c = range.first; c < range.last; ++c) {
      owned_elements_ += (*chunks_)[c].bytes / (*chunks_)[c].width;
    }
  }
  side_files_ = std::make_unique<SideFileStore>(dir_ / kSideDir);
}

Halves::Context ModelHome::HalvesContext(const SenderOptions& options, ThreadPool& pool) const {
  BufferOptions buffer{.huge_pages = options.huge_pages, .populate = true, .pool = &pool};
  if (!owned_->all()) buffer.only = owned_->ByteRanges(*chunks_);
  return {name_, dir_, layout_.get(), chunks_.get(), owned_.get(), std::move(buffer)};
}

StatusOr<std::unique_ptr<ModelHome>> ModelHome::Create(std::string name, fs::path dir,
                                                       Layout layout, Coverage owned,
                                                       std::vector<SideFile> side_files,
                                                       const SenderOptions& options,
                                                       ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(auto next, MakeSideFileSet(std::move(side_files)));
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  std::error_code unknown;
  if (fs::exists(dir / kReceiverMark, unknown)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": {} is a receiver's directory; start the sender with another "
                  "--data-dir, or give the model another name",
                  name, dir.native());
  }
  DW_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(dir, options.file_group));
  std::unique_ptr<ModelHome> home(new ModelHome(std::move(name), std::move(dir), std::move(lock)));
  home->SetLayout(std::make_unique<Layout>(std::move(layout)), std::move(chunks), std::move(owned));
  // The state file marks the directory as a model's, so it is removed first and made last.
  std::error_code ignored;
  fs::remove(home->dir_ / Halves::kStateName, ignored);
  DW_RETURN_IF_ERROR(WriteOwnedFile(home->dir_ / kOwnedName, home->owned()));
  DW_RETURN_IF_ERROR(home->side_files_->Clear());
  DW_RETURN_IF_ERROR(home->side_files_->SetNext(std::move(next)));
  StateShape shape{.chunks = home->chunks().size(),
                   .slots = 2,
                   .fingerprint = home->layout().fingerprint(),
                   .digest_seed = home->layout().fingerprint().lo};
  DW_ASSIGN_OR_RETURN(shape.lineage, DrawLineage(home->name_));
  DW_ASSIGN_OR_RETURN(home->halves_, Halves::Create(home->HalvesContext(options, pool), shape));
  return home;
}

StatusOr<std::unique_ptr<ModelHome>> ModelHome::Open(std::string name, fs::path dir,
                                                     const SenderOptions& options,
                                                     ThreadPool& pool) {
  std::error_code ec;
  if (!fs::exists(dir / Halves::kStateName, ec) || !fs::exists(Halves::PathOf(dir, 0), ec)) {
    return Errorf(StatusCode::kNotFound, "{} holds no sender's model", dir.string());
  }
  DW_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(dir, options.file_group));
  DW_ASSIGN_OR_RETURN(StateFile state, StateFile::Open(dir / Halves::kStateName));
  std::unique_ptr<const Layout> layout;
  {
    DW_ASSIGN_OR_RETURN(ModelDir file, ModelDir::Open(Halves::PathOf(dir, 0)));
    layout = std::make_unique<Layout>(file.layout());
  }
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(*layout));
  if (state.shape().slots != 2 || state.shape().chunks != chunks.size() ||
      !(state.shape().fingerprint == layout->fingerprint())) {
    return Errorf(StatusCode::kDataLoss, "{}: the state file is of another layout", dir.string());
  }
  DW_ASSIGN_OR_RETURN(Coverage owned, ReadOwnedFile(dir / kOwnedName, chunks.size()));
  std::unique_ptr<ModelHome> home(new ModelHome(std::move(name), std::move(dir), std::move(lock)));
  home->SetLayout(std::move(layout), std::move(chunks), std::move(owned));
  DW_RETURN_IF_ERROR(home->side_files_->LoadNext());
  DW_ASSIGN_OR_RETURN(home->halves_,
                      Halves::Open(home->HalvesContext(options, pool), std::move(state)));
  return home;
}

bool ModelHome::IsInPlace() const {
  const auto is_file = [](const fs::path& path) {
    std::error_code unknown;
    return fs::symlink_status(path, unknown).type() == fs::file_type::regular;
  };
  for (uint32_t h = 0; h < 2; ++h) {
    if (!is_file(halves_->path(h))) return false;
  }
  // Without the lock's file the files may still be ours; with another one they are not.
  std::error_code unknown;
  return is_file(dir_ / Halves::kStateName) &&
         (lock_.IsInPlace() || !fs::exists(dir_ / DirLock::kFileName, unknown));
}

}  // namespace deltawire::sender
