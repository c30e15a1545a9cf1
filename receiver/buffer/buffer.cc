#include "receiver/buffer/buffer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <set>
#include <system_error>

#include "common/base/log.h"
#include "common/layout/root.h"
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

}  // namespace

/// Serialises the calls of which only one may run at a time. They do I/O, so a flag says that one
/// runs, and no mutex is held meanwhile.
class Buffer::Turn {
 public:
  explicit Turn(Buffer& buffer) : buffer_(buffer) {
    std::unique_lock lock(buffer_.mu_);
    buffer_.cv_.wait(lock, [this] { return !buffer_.busy_; });
    buffer_.busy_ = true;
  }
  ~Turn() {
    std::lock_guard lock(buffer_.mu_);
    buffer_.busy_ = false;
    buffer_.cv_.notify_all();
  }

 private:
  Buffer& buffer_;
};

Status Buffer::CheckDirectory(const fs::path& dir) {
  std::error_code unknown;
  for (const char* half : {"half-0.safetensors", "half-1.safetensors"}) {
    if (!fs::exists(dir / half, unknown)) continue;
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} is a sender's directory of a model; choose an empty directory", dir.native());
  }
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
      slots_{{SlotsShare(), 0}, {SlotsShare(), 1}},
      touched_(chunks_.size()) {}

BufferSlot::Of Buffer::SlotsShare() {
  return {.layout = layout_,
          .chunks = chunks_,
          .state = state_,
          .key = key_,
          .backend = backend_,
          .huge_pages = options_.huge_pages,
          .pool = options_.pool,
          .unsafe_in_place = options_.unsafe_in_place,
          .leases = lease_problem_.empty()};
}

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
  for (const std::string& name : WeightNames()) {
    const fs::path path = dir_ / name;
    struct stat file;
    if (::stat(path.c_str(), &file) != 0) continue;
    for (BufferSlot& slot : slots_) {
      if (slot.has_file() || slot.inode() != file.st_ino) continue;
      const Status opened = slot.Open(path);
      if (absl::IsResourceExhausted(opened) || absl::IsInternal(opened)) {
        return opened;  // a fault of this process or machine, not of the file
      }
      if (!opened.ok()) LogWarn("{}", MessageOf(opened));
    }
  }
  for (BufferSlot& slot : slots_) {
    if (!slot.has_file()) slot.Forget();
  }
  if (slots_[0].has_file() || slots_[1].has_file()) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: the state file is of other weight files",
                dir_.native());
}

Status Buffer::TakeUp() {
  DW_RETURN_IF_ERROR(OpenFiles());
  bool whole[2];
  std::vector<uint32_t> bad[2];
  for (int s = 0; s < 2; ++s) {
    if (slots_[s].has_file()) bad[s] = slots_[s].FindCorrupt();
    whole[s] = slots_[s].IsWhole() && bad[s].empty() && slots_[s].HasItsRoot();
    if (!bad[s].empty()) {
      LogError("{}: {} chunks of {} changed while it was down: they are fetched anew",
               dir_.native(), bad[s].size(), ToString(slots_[s].identity()));
    }
  }
  // A commit gives the name first, so the file that has it is the newest.
  int active = static_cast<int>(state_.active());
  if (slots_[1 - active].IsAt(dir_ / kWeights)) active = 1 - active;
  const int front = whole[active] ? active : whole[1 - active] ? 1 - active : -1;
  // The weights' name is taken from a file that is not whole before anything else changes, so that
  // no loader finds a wrong file under it.
  for (int s = 0; s < 2; ++s) {
    if (front < 0 && slots_[s].IsAt(dir_ / kWeights)) {
      DW_RETURN_IF_ERROR(slots_[s].file().Rename(FreeHiddenName(s)));
    }
    if (slots_[s].IsWhole() && !whole[s]) slots_[s].BeginWrite();
    for (const uint32_t c : bad[s]) slots_[s].MarkUnknown(c);
  }
  const Status side = side_files_.Recover(front < 0 ? Identity{} : slots_[front].identity());
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
    if (!slots_[0].IsAt(path) && !slots_[1].IsAt(path)) fs::remove(path, ignored);
  }
  front_ = front;
  if (front >= 0) slots_[front].Remember();
  if (buffers_ == 1 && slots_[0].has_file() && slots_[1].has_file()) {
    DW_RETURN_IF_ERROR(slots_[1 - (front >= 0 ? front : active)].Drop());
  }
  if (front >= 0) ResumeUpdate(1 - front);
  return absl::OkStatus();
}

void Buffer::ResumeUpdate(int slot) {
  if (!slots_[slot].has_file() || !slots_[slot].IsWriting()) return;
  // Chunks at one of these versions are not from the update: the file's previous version, and the
  // committed one, to which CatchUp was bringing the file.
  const std::set<uint64_t> older = {slots_[slot].identity().id.version, committed().id.version};
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (!slots_[slot].Knows(i) || older.contains(slots_[slot].version(i))) continue;
    touched_[i] = 1;
    work_ = slot;
  }
}

void Buffer::RemoveFiles() {
  const Turn turn(*this);
  for (const BufferSlot& slot : slots_) {
    if (!slot.has_file()) continue;
    const std::string path = slot.file().path().native();
    // With the device: in another file system's directory a stranger's file may have this inode.
    struct stat ours, named;
    const bool same = ::fstat(slot.file().fd(), &ours) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                      ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
    if (same) ::unlink(path.c_str());
  }
}

fs::path Buffer::FreeHiddenName(int slot) const {
  const fs::path first = dir_ / kHidden[slot];
  return slots_[1 - slot].IsAt(first) ? dir_ / kHidden[1 - slot] : first;
}

Status Buffer::CheckPlace() const {
  if (lock_->IsInPlace()) return absl::OkStatus();
  return Errorf(StatusCode::kFailedPrecondition, "{} was removed or moved by another process",
                dir_.native());
}

Status Buffer::MakeSpare(const std::function<bool()>& stop) {
  const Turn turn(*this);
  if (!lacks_spare()) return absl::OkStatus();
  const int slot = slots_[0].has_file() ? 1 : 0;
  DW_RETURN_IF_ERROR(MakeFile(slot, stop));
  slots_[slot].lease().Release();
  return absl::OkStatus();
}

Status Buffer::MakeFile(int slot, const std::function<bool()>& stop) {
  DW_RETURN_IF_ERROR(CheckPlace());
  if (slots_[slot].has_file()) DW_RETURN_IF_ERROR(slots_[slot].Drop());
  return slots_[slot].Make(FreeHiddenName(slot), stop);
}

Identity Buffer::committed() const {
  const int front = front_;
  return front < 0 ? Identity{} : slots_[front].identity();
}

Identity Buffer::last_whole() const {
  const int front = front_;
  return slots_[front < 0 ? static_cast<int>(state_.active()) : front].identity();
}

int Buffer::Base(uint32_t i) const {
  const int work = work_, front = front_;
  // A chunk that this update has touched is either new, or unknown and must be fetched whole; the
  // older bytes in the other file are not its base.
  if (work >= 0 && touched_[i] != 0) return slots_[work].Knows(i) ? work : -1;
  if (front >= 0) return front;
  const int first = static_cast<int>(state_.active());
  if (slots_[first].Knows(i)) return first;
  return slots_[1 - first].Knows(i) ? 1 - first : -1;
}

uint64_t Buffer::digest(uint32_t i) const {
  const int base = Base(i);
  return base < 0 ? 0 : slots_[base].digest(i);
}

uint64_t Buffer::committed_digest(uint32_t i) const {
  const int front = front_;
  return front < 0 ? 0 : slots_[front].digest(i);
}

Bytes Buffer::base(uint32_t i) const {
  const int base = Base(i);
  return base < 0 ? Bytes() : slots_[base].bytes(i);
}

wire::Have Buffer::have() const {
  wire::Have have;
  have.held = last_whole();
  have.chunks.resize(chunks_.size());
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const int base = Base(i);
    if (base < 0) continue;
    have.chunks[i] = {slots_[base].version(i), slots_[base].digest(i)};
  }
  return have;
}

StatusOr<bool> Buffer::BeginUpdate() {
  if (begun_) return true;
  const Turn turn(*this);
  return Begin();
}

Status Buffer::BeginUpdateInFreshFile() {
  if (begun_) return absl::OkStatus();
  const Turn turn(*this);
  return begun_ ? absl::OkStatus() : BeginFresh();
}

StatusOr<bool> Buffer::Begin() {
  if (begun_) return true;
  const int slot = NextSlot();
  const bool reusable = slots_[slot].Reusable();
  if (slots_[slot].IsRead()) {
    if (buffers_ == 1 && reusable) return false;
    DW_RETURN_IF_ERROR(BeginFresh());
    return true;
  }
  if (reusable) {
    if (slot == front_) return BeginInPlace(slot);
    const auto alone = slots_[slot].TryAlone();
    if (alone == FileLease::Answer::kAlone && slots_[slot].CloseServed()) {
      Begun(slot);
      return true;
    }
    // The only file has lost its name already; the update waits for processes that have it open.
    if (buffers_ == 1 && front_ < 0 && alone == FileLease::Answer::kInUse) return false;
  }
  DW_RETURN_IF_ERROR(BeginFresh());
  return true;
}

StatusOr<bool> Buffer::BeginInPlace(int slot) {
  // Once the name is gone nobody opens the file anew, and the lease shows who has it open already.
  BufferFile& file = slots_[slot].file();
  DW_RETURN_IF_ERROR(file.Rename(FreeHiddenName(slot)));
  const auto alone = slots_[slot].TryAlone();
  if (alone == FileLease::Answer::kAlone && slots_[slot].CloseServed()) {
    front_ = -1;
    Begun(slot);
    return true;
  }
  if (alone == FileLease::Answer::kAlone) slots_[slot].lease().Release();
  DW_RETURN_IF_ERROR(file.Rename(dir_ / kWeights));
  if (alone != FileLease::Answer::kUnsupported) return false;
  // Leases worked when the receiver started, but do not now (fs.leases-enable).
  DW_RETURN_IF_ERROR(BeginFresh());
  return true;
}

int Buffer::NextSlot() const {
  if (work_ >= 0) return work_;
  const int front = front_;
  return front < 0 ? static_cast<int>(state_.active()) : buffers_ == 2 ? 1 - front : front;
}

std::shared_ptr<ServedFile> Buffer::Serve() {
  const Turn turn(*this);
  const int front = front_;
  return front < 0 ? nullptr : slots_[front].Serve();
}

std::shared_ptr<ServedFile> Buffer::InTheWay() {
  const Turn turn(*this);
  BufferSlot& slot = slots_[NextSlot()];
  if (begun_ || !slot.IsRead() || !slot.Reusable()) return nullptr;
  // While others have it open, too, it would be of no use that those who are served leave it.
  const bool held = slot.lease().held();
  const auto answer = slot.TryAlone();
  if (!held) slot.lease().Release();
  return answer == FileLease::Answer::kInUse ? nullptr : slot.served();
}

std::string Buffer::Readers() const {
  const int front = front_;
  const BufferSlot& slot = slots_[front >= 0 ? front : static_cast<int>(state_.active())];
  if (!slot.has_file()) return "nobody";
  const std::vector<FileHolder> holders = WhoHas(slot.file().fd());
  if (slot.IsRead() && holders.empty()) return "receivers that this one serves";
  return DescribeHolders(holders);
}

bool Buffer::Intact(uint32_t i) const {
  const int front = front_, base = Base(i);
  if (front >= 0 && !slots_[front].HasItsDigest(i)) return false;
  return base < 0 || base == front || slots_[base].HasItsDigest(i);
}

Status Buffer::BeginFresh() {
  // The fresh file must not replace the file whose chunks are the base.
  const int front = front_;
  const int slot = front >= 0   ? 1 - front
                   : work_ >= 0 ? 1 - work_
                                : 1 - static_cast<int>(state_.active());
  const Status made = MakeFile(slot);
  if (absl::IsResourceExhausted(made)) {
    return Errorf(made.code(),
                  "{}; a file that was replaced takes memory until its readers close it",
                  MessageOf(made));
  }
  DW_RETURN_IF_ERROR(made);
  // Chunks that a broken update brought into the other file remain a base to copy from.
  std::fill(touched_.begin(), touched_.end(), uint8_t{0});
  Begun(slot);
  return absl::OkStatus();
}

void Buffer::Begun(int slot) {
  slots_[slot].BeginWrite();
  if (work_ != slot) std::fill(touched_.begin(), touched_.end(), uint8_t{0});
  work_ = slot;
  begun_ = true;
}

void Buffer::MarkUnknown(uint32_t i) {
  assert(begun_);
  slots_[work_].MarkUnknown(i);
  touched_[i] = 1;
}

void Buffer::SetChunk(uint32_t i, uint64_t version, uint64_t digest) {
  assert(begun_);
  slots_[work_].SetChunk(i, version, digest);
  touched_[i] = 1;
}

StatusOr<MutableBytes> Buffer::PrepareChunk(uint32_t i, uint64_t digest) {
  const int base = Base(i);
  const int work = work_;
  if (base < 0 || slots_[base].digest(i) != digest) {
    return Errorf(StatusCode::kDataLoss, "{}: chunk {} of tensor {} has other bytes than asked for",
                  dir_.native(), i, layout_.tensor(chunks_[i].tensor).name);
  }
  const bool there = base == work || (slots_[work].Knows(i) && slots_[work].digest(i) == digest);
  if (!there) DW_RETURN_IF_ERROR(slots_[work].CopyChunk(slots_[base], i));
  MarkUnknown(i);
  return slots_[work].bytes(i);
}

StatusOr<std::vector<uint64_t>> Buffer::DigestsToCommit(const Identity& whole) const {
  std::vector<uint64_t> digests(chunks_.size());
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const int base = Base(i);
    if (base < 0) {
      return Errorf(StatusCode::kInternal, "{}: chunk {} (tensor {}) is not there", dir_.native(),
                    i, layout_.tensor(chunks_[i].tensor).name);
    }
    digests[i] = slots_[base].digest(i);
  }
  if (const uint64_t root = RootOf(digests, Coverage::All(chunks_.size())); root != whole.root) {
    return Errorf(StatusCode::kDataLoss, "{}: the chunks have root {:016x}, so they are not {}",
                  dir_.native(), root, DescribeFully(whole));
  }
  return digests;
}

Status Buffer::FillWork(const std::vector<uint64_t>& digests) {
  const int work = work_;
  Mutex mu;
  Status failed;
  std::vector<uint32_t> lost;
  ForEachChunk(chunks_, options_.pool, [&](uint32_t i) {
    if (slots_[work].Knows(i) && slots_[work].digest(i) == digests[i]) return;
    const Status copied = slots_[work].CopyChunk(slots_[Base(i)], i);
    if (copied.ok()) return;
    std::lock_guard lock(mu);
    failed.Update(copied);
    lost.push_back(i);
  });
  // Otherwise every retry would copy the same bad bytes.
  if (!lost.empty()) DW_RETURN_IF_ERROR(Withdraw(lost));
  lost_.insert(lost_.end(), lost.begin(), lost.end());
  return failed;
}

void Buffer::Discard() {
  const Turn turn(*this);
  const int work = work_;
  if (buffers_ != 2 || front_ < 0 || work < 0) return;
  // The slot is whole if a commit of it failed behind the last byte.
  slots_[work].BeginWrite();
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (touched_[i] != 0) slots_[work].MarkUnknown(i);
  }
  std::fill(touched_.begin(), touched_.end(), uint8_t{0});
  if (begun_) slots_[work].lease().Release();
  begun_ = false;
  work_ = -1;
}

Status Buffer::Prepare(const Identity& whole) {
  const Turn turn(*this);
  assert(begun_ || NextSlot() != front_);
  DW_ASSIGN_OR_RETURN(const bool begun, Begin());
  if (!begun) {
    return Errorf(StatusCode::kUnavailable, "{} is in use by {}", dir_.native(), Readers());
  }
  DW_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, DigestsToCommit(whole));
  return FillWork(digests);
}

Status Buffer::Commit(const Identity& whole, const std::vector<SideFile>& side_files) {
  const Turn turn(*this);
  // Begins even if no pull has changed a byte: the new version may have the same chunks.
  DW_ASSIGN_OR_RETURN(const bool begun, Begin());
  if (!begun) {
    return Errorf(StatusCode::kUnavailable, "{} is in use by {}", dir_.native(), Readers());
  }
  return CommitWork(whole, &side_files);
}

Status Buffer::CommitWork(const Identity& whole, const std::vector<SideFile>* side_files) {
  DW_RETURN_IF_ERROR(CheckPlace());
  DW_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, DigestsToCommit(whole));
  DW_RETURN_IF_ERROR(FillWork(digests));
  if (side_files != nullptr) DW_RETURN_IF_ERROR(side_files_.Stage(*side_files, whole));
  const int slot = work_;
  BufferSlot& work = slots_[slot];
  work.BeginWrite();
  for (uint32_t i = 0; i < chunks_.size(); ++i) work.SetChunk(i, whole.id.version, digests[i]);
  work.FinishWrite(whole);
  begun_ = false;  // if a later step fails, changing the file again needs a new BeginUpdate
  work.lease().Release();
  DW_RETURN_IF_ERROR(side_files_.Install());
  // The name says which version the directory has, and the state file follows: a reader of both
  // never opens an older file than the state file names.
  DW_RETURN_IF_ERROR(GiveName(slot));
  state_.set_active(static_cast<uint32_t>(slot));
  front_ = slot;
  work_ = -1;
  AfterCommit(slot);
  return absl::OkStatus();
}

Status Buffer::GiveName(int slot) {
  BufferFile& file = slots_[slot].file();
  const fs::path name = dir_ / kWeights;
  if (!slots_[slot].HasItsPath()) DW_RETURN_IF_ERROR(file.Relink(FreeHiddenName(slot)));
  if (file.path() == name) return absl::OkStatus();
  BufferSlot& other = slots_[1 - slot];
  if (other.IsAt(name) && other.HasItsPath()) return file.Exchange(other.file());
  DW_RETURN_IF_ERROR(file.Rename(name));
  // Somebody removed or replaced the other file's name, so that file is given up. Not before: while
  // this one has no name, the other's bytes are the base.
  if (other.IsAt(name)) other.Forget();
  return absl::OkStatus();
}

void Buffer::AfterCommit(int slot) {
  // The version is committed, whatever fails here; Check tries it again.
  const Status recorded = side_files_.Finish();
  if (!recorded.ok()) LogWarn("{}: {}", dir_.native(), MessageOf(recorded));
  slots_[slot].Remember();
  // A fresh file has replaced one that others read; the dropped file's memory is free once they
  // close it.
  if (buffers_ == 2 || !slots_[1 - slot].has_file()) return;
  const fs::path replaced = slots_[1 - slot].file().path();
  const Status dropped = slots_[1 - slot].Drop();
  if (dropped.ok()) return;
  left_over_ = replaced;
  LogWarn("{}: {}", dir_.native(), MessageOf(dropped));
}

Status Buffer::RemoveLeftOver() {
  if (left_over_.empty()) return absl::OkStatus();
  const bool taken = slots_[0].IsAt(left_over_) || slots_[1].IsAt(left_over_);
  if (!taken && ::unlink(left_over_.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError("remove " + left_over_.native());
  }
  left_over_.clear();
  return absl::OkStatus();
}

StatusOr<Buffer::CaughtUp> Buffer::CatchUp(std::span<const AppliedDelta> deltas,
                                           const std::function<bool()>& stop) {
  const Turn turn(*this);
  const int front = front_;
  if (buffers_ != 2 || front < 0 || begun_ || work_ >= 0) return CaughtUp{};
  BufferSlot& hidden = slots_[1 - front];
  if (!hidden.has_file() || hidden.HasAnotherName()) {
    DW_RETURN_IF_ERROR(MakeFile(1 - front));
  } else if (hidden.TryAlone() != FileLease::Answer::kAlone) {
    return CaughtUp{};
  }
  if (!hidden.CloseServed()) {
    hidden.lease().Release();
    return CaughtUp{};
  }
  hidden.BeginWrite();
  std::map<uint32_t, std::vector<const AppliedDelta*>> by_chunk;
  for (const AppliedDelta& d : deltas) by_chunk[d.chunk].push_back(&d);
  Mutex mu;
  CaughtUp caught;
  std::atomic<bool> stopped{false};
  ForEachChunk(chunks_, options_.pool, [&](uint32_t i) {
    // A process may have looked up the name while this file had it, and be waiting to open it now;
    // it must find the file whole, so the catch-up does not stop then.
    if (stopped || (stop() && !hidden.lease().wanted())) {
      stopped = true;
      return;
    }
    const auto mine = by_chunk.find(i);
    const Status done = hidden.CatchUpChunk(
        slots_[front], i,
        mine == by_chunk.end() ? std::span<const AppliedDelta* const>() : mine->second);
    if (done.ok()) return;
    std::lock_guard lock(mu);
    caught.lost_chunks.push_back(i);
  });
  caught.whole = caught.lost_chunks.empty() && !stopped;
  if (caught.whole) hidden.FinishWrite(committed());
  hidden.lease().Release();
  return caught;
}

StatusOr<Buffer::Health> Buffer::Check() {
  const Turn turn(*this);
  DW_RETURN_IF_ERROR(CheckPlace());
  Health health;
  const int front = front_;
  if (front < 0) return health;  // the next commit puts everything in place
  if (BufferSlot& named = slots_[front]; named.IsTouched()) {
    // Restores the size first: reading beyond the end of a shortened file would give SIGBUS.
    DW_RETURN_IF_ERROR(named.file().Restore(layout_));
    const std::vector<uint32_t> bad = named.FindCorrupt();
    if (bad.empty()) {
      named.Remember();
    } else {
      DW_RETURN_IF_ERROR(Withdraw(bad));
      health.bad_chunks = bad;
    }
  }
  if (front_ >= 0) DW_RETURN_IF_ERROR(PutNameBack(health));
  DW_ASSIGN_OR_RETURN(const std::vector<std::string> names, side_files_.PutBack());
  health.put_back.insert(health.put_back.end(), names.begin(), names.end());
  DW_RETURN_IF_ERROR(RemoveLeftOver());
  return health;
}

Status Buffer::PutNameBack(Health& health) {
  const int front = front_;
  BufferFile& file = slots_[front].file();
  struct stat named;
  if (::stat((dir_ / kWeights).c_str(), &named) == 0 && named.st_ino == file.inode()) return {};
  if (file.Relink(FreeHiddenName(front)).ok()) {
    health.put_back.emplace_back(kWeights);
    return file.Rename(dir_ / kWeights);
  }
  // The file's last name is gone, and the kernel gives such a file no new name. The file of an
  // update that has begun will take its place; without one, a copy does.
  if (begun_ || work_ >= 0) return absl::OkStatus();
  health.put_back.emplace_back(kWeights);
  const Identity whole = committed();
  if (buffers_ == 1) {
    DW_RETURN_IF_ERROR(BeginFresh());
  } else {
    DW_RETURN_IF_ERROR(Begin().status());
  }
  return CommitWork(whole, nullptr);
}

Status Buffer::Distrust(std::span<const uint32_t> chunks) {
  const Turn turn(*this);
  return Withdraw(chunks);
}

Status Buffer::Withdraw(std::span<const uint32_t> chunks) {
  for (const int slot : {0, 1}) {
    std::vector<uint32_t> lost;
    for (const uint32_t c : chunks) {
      if (slots_[slot].Knows(c) && !slots_[slot].HasItsDigest(c)) lost.push_back(c);
    }
    if (lost.empty()) continue;
    if (slot == front_) {
      BufferSlot& named = slots_[slot];
      if (named.HasItsPath()) DW_RETURN_IF_ERROR(named.file().Rename(FreeHiddenName(slot)));
      front_ = -1;
    }
    slots_[slot].BeginWrite();
    for (const uint32_t c : lost) {
      slots_[slot].MarkUnknown(c);
      if (slot == work_) touched_[c] = 0;  // the other file's bytes are the base again
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
