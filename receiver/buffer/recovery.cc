#include "receiver/buffer/recovery.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/layout/safetensors.h"
#include "receiver/buffer/buffer_names.h"

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

/// Opens the files that the state file names by inode.
Status OpenFiles(WeightFiles& files) {
  for (const std::string& name : WeightNames()) {
    const fs::path path = files.directory() / name;
    struct stat file;
    if (::stat(path.c_str(), &file) != 0) continue;
    for (const int s : {0, 1}) {
      BufferSlot& slot = files.slot(s);
      if (slot.has_file() || slot.inode() != file.st_ino) continue;
      const Status opened = slot.Open(path);
      if (absl::IsResourceExhausted(opened) || absl::IsInternal(opened)) {
        return opened;  // a fault of this process or machine, not of the file
      }
      if (!opened.ok()) LogWarn("{}", MessageOf(opened));
    }
  }
  for (const int s : {0, 1}) {
    if (!files.slot(s).has_file()) files.slot(s).Forget();
  }
  if (files.slot(0).has_file() || files.slot(1).has_file()) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: the state file belongs to other weight files",
                files.directory().native());
}

/// Removes the files under our names that are no slot's.
void RemoveStrays(const WeightFiles& files) {
  std::error_code ignored;
  for (const std::string& name : WeightNames()) {
    const fs::path path = files.directory() / name;
    if (!files.slot(0).IsAt(path) && !files.slot(1).IsAt(path)) fs::remove(path, ignored);
  }
}

/// Opens the buffer's files, marks corrupt chunks unknown, and gives the newest whole file its
/// name. An update that was interrupted goes on from the chunks that it brought.
Status TakeUp(Buffer& buffer) {
  WeightFiles& files = buffer.files();
  const fs::path& dir = buffer.directory();
  DW_RETURN_IF_ERROR(OpenFiles(files));
  bool whole[2];
  std::vector<uint32_t> corrupt[2];
  for (const int s : {0, 1}) {
    const BufferSlot& slot = files.slot(s);
    if (slot.has_file()) corrupt[s] = slot.FindCorrupt();
    whole[s] = slot.IsWhole() && corrupt[s].empty() && slot.HasItsRoot();
    if (corrupt[s].empty()) continue;
    LogError("{}: {} chunks of {} changed while the receiver was down; fetching them again",
             dir.native(), corrupt[s].size(), ToString(slot.identity()));
  }
  // A commit gives the name first, so the file that has it is the newest.
  int newest = files.last_front();
  if (files.slot(1 - newest).IsAt(dir / kWeights)) newest = 1 - newest;
  const int front = whole[newest] ? newest : whole[1 - newest] ? 1 - newest : -1;
  // The weights' name is taken from a file that is not whole before anything else changes, so that
  // no loader finds a wrong file under it.
  for (const int s : {0, 1}) {
    BufferSlot& slot = files.slot(s);
    if (front < 0 && slot.IsAt(dir / kWeights)) {
      DW_RETURN_IF_ERROR(slot.file().Rename(files.HiddenName(s)));
    }
    if (slot.IsWhole() && !whole[s]) slot.BeginWrite();
    for (const uint32_t c : corrupt[s]) slot.MarkUnknown(c);
  }
  const Status side =
      buffer.side_files().Recover(front < 0 ? Identity{} : files.slot(front).identity());
  if (!side.ok()) LogWarn("{}: {}; fetching its side files again", dir.native(), MessageOf(side));
  if (front >= 0) DW_RETURN_IF_ERROR(files.GiveName(front));
  RemoveStrays(files);
  if (front >= 0) files.slot(front).Remember();
  if (buffer.buffers() == 1 && files.slot(0).has_file() && files.slot(1).has_file()) {
    DW_RETURN_IF_ERROR(files.slot(1 - (front >= 0 ? front : newest)).Remove());
  }
  if (front >= 0) buffer.update().Resume(1 - front);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Buffer>> OpenBuffer(const fs::path& dir, std::shared_ptr<DirLock> lock,
                                             const Buffer::Options& options) {
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
  // another process may have put a file under our name.
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
  auto buffer = std::make_unique<Buffer>(dir, std::move(lock), std::move(layout), std::move(chunks),
                                         std::move(state), options);
  DW_RETURN_IF_ERROR(TakeUp(*buffer));
  return buffer;
}

}  // namespace

Status CheckDirectory(const fs::path& dir) {
  std::error_code unknown;
  for (const char* half : {"half-0.safetensors", "half-1.safetensors"}) {
    if (!fs::exists(dir / half, unknown)) continue;
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} is a sender's directory of a model; choose an empty directory", dir.native());
  }
  return IsReceivers(dir) ? absl::OkStatus() : RefuseForeignWeights(dir);
}

uint32_t ChooseBuffers(const fs::path& dir, uint64_t model_bytes) {
  uint64_t taken = 0;
  for (const std::string& name : WeightNames()) {
    struct stat file;
    if (::stat((dir / name).c_str(), &file) == 0) taken += file.st_blocks * uint64_t{512};
  }
  return RoomFor(dir) + taken >= model_bytes / 2 * 5 ? 2 : 1;
}

StatusOr<std::unique_ptr<Buffer>> CreateBuffer(const fs::path& dir, std::shared_ptr<DirLock> lock,
                                               Layout layout, uint64_t digest_seed,
                                               const Buffer::Options& options) {
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
  auto buffer = std::make_unique<Buffer>(dir, std::move(lock), std::move(layout), std::move(chunks),
                                         std::move(state), options);
  DW_RETURN_IF_ERROR(buffer->files().Make(0));
  const Status side = buffer->side_files().Recover({});
  if (!side.ok()) LogWarn("{}: {}; fetching its side files again", dir.native(), MessageOf(side));
  return buffer;
}

StatusOr<std::unique_ptr<Buffer>> RecoverBuffer(const fs::path& dir, std::shared_ptr<DirLock> lock,
                                                const Buffer::Options& options) {
  auto taken = OpenBuffer(dir, std::move(lock), options);
  if (!taken.ok() && IsReceivers(dir)) DW_RETURN_IF_ERROR(HideWeights(dir));
  return taken;
}

}  // namespace deltawire::receiver
