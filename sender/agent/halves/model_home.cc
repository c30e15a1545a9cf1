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

StatusOr<Layout> LayoutOf(const fs::path& half) {
  DW_ASSIGN_OR_RETURN(const ModelDir file, ModelDir::Open(half));
  return file.layout();
}

}  // namespace

Halves::Context ModelHome::HalvesContext(const SenderOptions& options, ThreadPool& pool) const {
  BufferOptions buffer{.huge_pages = options.huge_pages, .populate = true, .pool = &pool};
  if (!facts_->owned.all()) buffer.only = facts_->owned.ByteRanges(facts_->chunks);
  return {*facts_, dir_, std::move(buffer)};
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
  const auto facts = std::make_shared<const ModelFacts>(std::move(name), std::move(layout),
                                                        std::move(chunks), std::move(owned));
  std::unique_ptr<ModelHome> home(new ModelHome(facts, std::move(dir), std::move(lock)));
  // The state file marks the directory as a model's, so it is removed first and made last.
  std::error_code ignored;
  fs::remove(home->dir_ / Halves::kStateName, ignored);
  DW_RETURN_IF_ERROR(WriteOwnedFile(home->dir_ / kOwnedName, facts->owned));
  DW_RETURN_IF_ERROR(home->side_files_->Clear());
  DW_RETURN_IF_ERROR(home->side_files_->SetNext(std::move(next)));
  StateShape shape{.chunks = facts->chunks.size(),
                   .slots = 2,
                   .fingerprint = facts->layout.fingerprint(),
                   .digest_seed = facts->layout.fingerprint().lo};
  DW_ASSIGN_OR_RETURN(shape.lineage, DrawLineage(facts->name));
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
  DW_ASSIGN_OR_RETURN(Layout layout, LayoutOf(Halves::PathOf(dir, 0)));
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  if (state.shape().slots != 2 || state.shape().chunks != chunks.size() ||
      !(state.shape().fingerprint == layout.fingerprint())) {
    return Errorf(StatusCode::kDataLoss, "{}: the state file is of another layout", dir.string());
  }
  DW_ASSIGN_OR_RETURN(Coverage owned, ReadOwnedFile(dir / kOwnedName, chunks.size()));
  auto facts = std::make_shared<const ModelFacts>(std::move(name), std::move(layout),
                                                  std::move(chunks), std::move(owned));
  std::unique_ptr<ModelHome> home(new ModelHome(std::move(facts), std::move(dir), std::move(lock)));
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
