// A Buffer's files: how they are made, taken up after a restart or crash, and replaced.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "common/base/log.h"
#include "common/layout/root.h"
#include "common/layout/safetensors.h"
#include "receiver/buffer.h"
#include "receiver/buffer_names.h"
#include "receiver/buffer_turn.h"

namespace deltawire::receiver {
namespace fs = std::filesystem;
namespace {

const std::vector<std::string>& WeightNames() {
  static const std::vector<std::string> names = {kWeights, kHidden[0], kHidden[1],
                                                 std::string(kHidden[0]) + ".swap",
                                                 std::string(kHidden[1]) + ".swap"};
  return names;
}

/// Removes files that a killed process was making: they take memory, and nobody else removes them.
void RemoveUnfinished(const fs::path& dir) {
  std::error_code ignored;
  for (const std::string& name : WeightNames()) fs::remove(dir / (name + ".new"), ignored);
}

bool IsReceivers(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(dir / kState, ignored) || InstalledSideFiles::Marks(dir);
}

Status RefuseForeignWeights(const fs::path& dir) {
  std::error_code ec;
  if (!IsReceivers(dir) && fs::exists(dir / kWeights, ec)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} exists and is not a receiver's; choose an empty directory",
                  (dir / kWeights).string());
  }
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    const std::string name = entry.path().filename().string();
    if (name == kWeights || !(name.ends_with(".safetensors") || name.ends_with(".index.json"))) {
      continue;
    }
    if (name.starts_with(".")) continue;
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} holds {}, which deltawire did not write; a loader would mix it with ours: "
                  "choose an empty directory",
                  dir.string(), name);
  }
  return absl::OkStatus();
}

/// Takes the weights' name from a file that could not be checked. It keeps its bytes: a later start
/// may be able to.
Status HideWeights(const fs::path& dir) {
  for (const std::string& name : WeightNames()) {
    std::error_code ignored;
    if (name == kWeights || fs::exists(fs::symlink_status(dir / name, ignored))) continue;
    if (::rename((dir / kWeights).c_str(), (dir / name).c_str()) == 0 || errno == ENOENT) return {};
    return ErrnoError(fmt::format("rename {}", (dir / kWeights).native()));
  }
  if (::unlink((dir / kWeights).c_str()) == 0 || errno == ENOENT) return {};
  return ErrnoError(fmt::format("remove {}", (dir / kWeights).native()));
}

StatusOr<Layout> LayoutOf(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat file;
  if (fd.get() < 0 || ::fstat(fd.get(), &file) != 0) return ErrnoError("open " + path.native());
  if (file.st_size == 0) return Errorf(StatusCode::kDataLoss, "{} is empty", path.native());
  DW_ASSIGN_OR_RETURN(const Mapping map,
                      Mapping::Map(fd.get(), static_cast<uint64_t>(file.st_size), false, path));
  DW_ASSIGN_OR_RETURN(
      const SafetensorsHeader header,
      ParseSafetensorsHeader({map.base(), map.bytes()}, map.bytes(), path.native()));
  std::vector<TensorMeta> tensors;
  for (const StoredTensor& stored : header.tensors) tensors.push_back(stored.meta);
  return Layout::Create(std::move(tensors));
}

}  // namespace

Status Buffer::CheckDirectory(const fs::path& dir) {
  return IsReceivers(dir) ? absl::OkStatus() : RefuseForeignWeights(dir);
}

uint32_t Buffer::ChooseBuffers(const fs::path& dir, uint64_t model_bytes) {
  uint64_t taken = 0;
  for (const std::string& name : WeightNames()) {
    struct stat file;
    if (::stat((dir / name).c_str(), &file) == 0) taken += file.st_blocks * uint64_t{512};
  }
  return RoomFor(dir) + taken >= model_bytes / 2 * 5 ? 2 : 1;
}

Buffer::Buffer(fs::path dir, std::shared_ptr<DirLock> lock, Layout layout, ChunkTable chunks,
               StateFile state, const Options& options)
    : dir_(std::move(dir)),
      lock_(std::move(lock)),
      layout_(std::move(layout)),
      chunks_(std::move(chunks)),
      options_(options),
      state_(std::move(state)),
      key_(state_.shape().digest_seed),
      backend_(kernels::Best()),
      buffers_(options.buffers != 0 ? options.buffers : ChooseBuffers(dir_, layout_.total_bytes())),
      lease_problem_(LeaseProblem(dir_)),
      side_files_(dir_),
      touched_(chunks_.size()) {}

StatusOr<std::unique_ptr<Buffer>> Buffer::Create(const fs::path& dir, std::shared_ptr<DirLock> lock,
                                                 Layout layout, uint64_t digest_seed,
                                                 const Options& options) {
  DW_RETURN_IF_ERROR(RefuseForeignWeights(dir));
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  // The mark comes first: from here on any file under our names counts as the receiver's.
  DW_RETURN_IF_ERROR(InstalledSideFiles(dir).Prepare());
  RemoveUnfinished(dir);
  std::error_code ignored;
  for (const std::string& name : WeightNames()) fs::remove(dir / name, ignored);
  fs::remove(dir / kState, ignored);
  DW_ASSIGN_OR_RETURN(StateFile state,
                      StateFile::Create(dir / kState, {.chunks = chunks.size(),
                                                       .slots = 2,
                                                       .fingerprint = layout.fingerprint(),
                                                       .digest_seed = digest_seed,
                                                       .lineage = {}}));
  std::unique_ptr<Buffer> buffer(new Buffer(dir, std::move(lock), std::move(layout),
                                            std::move(chunks), std::move(state), options));
  DW_RETURN_IF_ERROR(buffer->MakeFile(0));
  const Status side = buffer->side_files_.Recover({});
  if (!side.ok()) LogWarn("{}: {}; its side files come anew", dir.native(), MessageOf(side));
  return buffer;
}

StatusOr<std::unique_ptr<Buffer>> Buffer::Recover(const fs::path& dir,
                                                  std::shared_ptr<DirLock> lock,
                                                  const Options& options) {
  auto taken = Open(dir, std::move(lock), options);
  if (!taken.ok() && IsReceivers(dir)) DW_RETURN_IF_ERROR(HideWeights(dir));
  return taken;
}

StatusOr<std::unique_ptr<Buffer>> Buffer::Open(const fs::path& dir, std::shared_ptr<DirLock> lock,
                                               const Options& options) {
  std::error_code ec;
  fs::path any;
  for (const std::string& name : WeightNames()) {
    if (any.empty() && fs::exists(dir / name, ec)) any = dir / name;
  }
  if (!fs::exists(dir / kState, ec) || any.empty()) {
    return Errorf(StatusCode::kNotFound, "{} holds no receiver's buffer", dir.string());
  }
  RemoveUnfinished(dir);
  DW_ASSIGN_OR_RETURN(StateFile state, StateFile::Open(dir / kState));
  // Every weight file's header has the layout. Prefer a file that the state file names by inode:
  // somebody else may have put another file under our name.
  for (const std::string& name : WeightNames()) {
    struct stat file;
    if (::stat((dir / name).c_str(), &file) != 0) continue;
    for (uint32_t s = 0; s < state.shape().slots; ++s) {
      if (file.st_ino == state.inode(s)) any = dir / name;
    }
  }
  DW_ASSIGN_OR_RETURN(Layout layout, LayoutOf(any));
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  if (state.shape().slots != 2 || state.shape().chunks != chunks.size() ||
      !(state.shape().fingerprint == layout.fingerprint())) {
    return Errorf(StatusCode::kDataLoss, "{}: state file and {} are of different layouts",
                  dir.string(), any.filename().string());
  }
  std::unique_ptr<Buffer> buffer(new Buffer(dir, std::move(lock), std::move(layout),
                                            std::move(chunks), std::move(state), options));
  DW_RETURN_IF_ERROR(buffer->TakeUp());
  return buffer;
}

Status Buffer::OpenFiles() {
  const BufferOptions options{.huge_pages = options_.huge_pages, .pool = options_.pool};
  for (const std::string& name : WeightNames()) {
    const fs::path path = dir_ / name;
    struct stat file;
    if (::stat(path.c_str(), &file) != 0) continue;
    for (uint32_t s = 0; s < 2; ++s) {
      if (slots_[s].file || state_.inode(s) != file.st_ino) continue;
      auto opened = BufferFile::Open(path, layout_, options);
      if (opened.ok()) {
        slots_[s].file = std::make_shared<BufferFile>(std::move(*opened));
        slots_[s].lease = FileLease(slots_[s].file->fd());
      } else if (absl::IsResourceExhausted(opened.status()) || absl::IsInternal(opened.status())) {
        return opened.status();  // a fault of this process or machine, not of the file
      } else {
        LogWarn("{}", MessageOf(opened.status()));
      }
    }
  }
  for (int s = 0; s < 2; ++s) {
    if (!slots_[s].file) ForgetSlot(s);
  }
  if (slots_[0].file || slots_[1].file) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: the state file is of other weight files",
                dir_.native());
}

Status Buffer::TakeUp() {
  DW_RETURN_IF_ERROR(OpenFiles());
  bool whole[2];
  std::vector<uint32_t> bad[2];
  for (int s = 0; s < 2; ++s) {
    const auto slot = static_cast<uint32_t>(s);
    if (slots_[s].file) bad[s] = FindBad(s);
    whole[s] = state_.phase(slot) == SlotPhase::kWhole && bad[s].empty() && HasItsRoot(slot);
    if (!bad[s].empty()) {
      LogError("{}: {} chunks of {} changed while it was down: they are fetched anew",
               dir_.native(), bad[s].size(), ToString(state_.identity(slot)));
    }
  }
  // A commit gives the name first, so the file that has it is the newest.
  int active = static_cast<int>(state_.active());
  if (const LeasedFile& other = slots_[1 - active];
      other.file && other.file->path() == dir_ / kWeights) {
    active = 1 - active;
  }
  const int front = whole[active] ? active : whole[1 - active] ? 1 - active : -1;
  // The weights' name is taken from a file that is not whole before anything else changes, so that
  // no loader finds a wrong file under it.
  for (int s = 0; s < 2; ++s) {
    const bool named = slots_[s].file && slots_[s].file->path() == dir_ / kWeights;
    if (named && s != front && front < 0) {
      DW_RETURN_IF_ERROR(slots_[s].file->Rename(FreeHiddenName(s)));
    }
    const auto slot = static_cast<uint32_t>(s);
    if (state_.phase(slot) == SlotPhase::kWhole && !whole[s]) state_.BeginWrite(slot);
    for (const uint32_t c : bad[s]) state_.MarkUnknown(slot, c);
  }
  const Status side =
      side_files_.Recover(front < 0 ? Identity{} : state_.identity(static_cast<uint32_t>(front)));
  if (!side.ok()) LogWarn("{}: {}; its side files come anew", dir_.native(), MessageOf(side));
  std::error_code ignored;
  if (front >= 0) {
    DW_RETURN_IF_ERROR(GiveName(front));
    state_.set_active(static_cast<uint32_t>(front));
  } else {
    fs::remove(dir_ / kWeights, ignored);
  }
  for (const std::string& name : WeightNames()) {
    const fs::path path = dir_ / name;
    const bool ours = (slots_[0].file && slots_[0].file->path() == path) ||
                      (slots_[1].file && slots_[1].file->path() == path);
    if (!ours) fs::remove(path, ignored);
  }
  front_ = front;
  if (front >= 0) RememberFront();
  if (buffers_ == 1 && slots_[0].file && slots_[1].file) {
    DW_RETURN_IF_ERROR(DropFile(1 - (front >= 0 ? front : active)));
  }
  if (front >= 0) ResumeUpdate(1 - front);
  return absl::OkStatus();
}

void Buffer::ResumeUpdate(int slot) {
  const auto s = static_cast<uint32_t>(slot);
  if (!slots_[slot].file || state_.phase(s) != SlotPhase::kWriting) return;
  // Chunks at one of these versions are not from the update: the file's previous version, and the
  // committed one, to which CatchUp was bringing the file.
  const std::set<uint64_t> older = {state_.identity(s).id.version, committed().id.version};
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (!Known(slot, i) || older.contains(state_.chunk_version(s, i))) continue;
    touched_[i] = 1;
    work_ = slot;
  }
}

bool Buffer::HasItsRoot(uint32_t slot) const {
  uint64_t root = 0;
  for (uint32_t i = 0; i < chunks_.size(); ++i) root += RootTerm(i, state_.chunk_digest(slot, i));
  return root == state_.identity(slot).root;
}

std::vector<uint32_t> Buffer::FindBad(int slot) const {
  Mutex mu;
  std::vector<uint32_t> bad;
  const auto s = static_cast<uint32_t>(slot);
  ForEachChunk([&](uint32_t i) {
    if (!Known(slot, i)) return;
    if (backend_.digest(key_, ChunkOf(slot, i)) == state_.chunk_digest(s, i)) return;
    std::lock_guard lock(mu);
    bad.push_back(i);
  });
  std::sort(bad.begin(), bad.end());
  return bad;
}

void Buffer::ForgetSlot(int slot) {
  const auto s = static_cast<uint32_t>(slot);
  if (state_.phase(s) != SlotPhase::kEmpty || state_.inode(s) != 0) state_.set_inode(s, 0);
  slots_[slot].lease = FileLease();
  slots_[slot].served.reset();  // who reads it keeps the mapping
  slots_[slot].file.reset();
}

Status Buffer::DropFile(int slot) {
  const fs::path path = slots_[slot].file->path();
  const bool its = HasItsPath(slot);
  ForgetSlot(slot);
  if (its && ::unlink(path.c_str()) != 0 && errno != ENOENT)
    return ErrnoError("remove " + path.native());
  return absl::OkStatus();
}

void Buffer::RemoveFiles() {
  const Turn turn(*this);
  for (const LeasedFile& slot : slots_) {
    if (!slot.file) continue;
    // With the device: in another file system's directory a stranger's file may have this inode.
    struct stat ours, named;
    const bool same = ::fstat(slot.file->fd(), &ours) == 0 &&
                      ::lstat(slot.file->path().c_str(), &named) == 0 &&
                      ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
    if (same) ::unlink(slot.file->path().c_str());
  }
}

fs::path Buffer::FreeHiddenName(int slot) const {
  const LeasedFile& other = slots_[1 - slot];
  const fs::path first = dir_ / kHidden[slot];
  return other.file && other.file->path() == first ? dir_ / kHidden[1 - slot] : first;
}

Status Buffer::CheckPlace() const {
  if (lock_->IsInPlace()) return absl::OkStatus();
  return Errorf(StatusCode::kFailedPrecondition, "{} was removed or moved by another process",
                dir_.native());
}

Status Buffer::MakeSpare(const std::function<bool()>& stop) {
  const Turn turn(*this);
  if (!lacks_spare()) return absl::OkStatus();
  const int slot = slots_[0].file ? 1 : 0;
  DW_RETURN_IF_ERROR(MakeFile(slot, stop));
  slots_[slot].lease.Release();
  return absl::OkStatus();
}

Status Buffer::MakeFile(int slot, const std::function<bool()>& stop) {
  DW_RETURN_IF_ERROR(CheckPlace());
  if (slots_[slot].file) DW_RETURN_IF_ERROR(DropFile(slot));
  DW_ASSIGN_OR_RETURN(
      BufferFile file,
      BufferFile::Create(FreeHiddenName(slot), layout_,
                         {.huge_pages = options_.huge_pages, .pool = options_.pool, .stop = stop}));
  state_.set_inode(static_cast<uint32_t>(slot), file.inode());
  slots_[slot].file = std::make_shared<BufferFile>(std::move(file));
  slots_[slot].lease = FileLease(slots_[slot].file->fd());
  if (lease_problem_.empty()) slots_[slot].lease.Try();
  return absl::OkStatus();
}

void Buffer::RememberFront() {
  struct stat file;
  if (::fstat(slots_[front_].file->fd(), &file) != 0) return;
  front_mtime_[0] = file.st_mtim.tv_sec;
  front_mtime_[1] = file.st_mtim.tv_nsec;
}

bool Buffer::FrontIsTouched() const {
  struct stat file;
  return ::fstat(slots_[front_].file->fd(), &file) != 0 || file.st_mtim.tv_sec != front_mtime_[0] ||
         file.st_mtim.tv_nsec != front_mtime_[1] ||
         static_cast<uint64_t>(file.st_size) != slots_[front_].file->file_bytes();
}

}  // namespace deltawire::receiver
