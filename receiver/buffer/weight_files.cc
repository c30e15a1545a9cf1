#include "receiver/buffer/weight_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "common/base/log.h"
#include "receiver/buffer/buffer_names.h"

namespace deltawire::receiver {
namespace fs = std::filesystem;

WeightFiles::WeightFiles(fs::path dir, std::shared_ptr<DirLock> lock, StateFile state,
                         const BufferSlot::Env& env)
    : dir_(std::move(dir)),
      lock_(std::move(lock)),
      state_(std::move(state)),
      slots_{{env, state_, 0}, {env, state_, 1}} {}

Status WeightFiles::CheckPlace() const {
  if (lock_->IsInPlace()) return absl::OkStatus();
  return Errorf(StatusCode::kFailedPrecondition, "{} was removed or moved by another process",
                dir_.native());
}

fs::path WeightFiles::HiddenName(int slot) const {
  const fs::path first = dir_ / kHidden[slot];
  return slots_[1 - slot].IsAt(first) ? dir_ / kHidden[1 - slot] : first;
}

Status WeightFiles::Make(int slot, const std::function<bool()>& stop) {
  DW_RETURN_IF_ERROR(CheckPlace());
  if (slots_[slot].has_file()) DW_RETURN_IF_ERROR(slots_[slot].Remove());
  return slots_[slot].Make(HiddenName(slot), stop);
}

Status WeightFiles::GiveName(int slot) {
  BufferFile& file = slots_[slot].file();
  BufferSlot& other = slots_[1 - slot];
  const fs::path name = dir_ / kWeights;
  if (!slots_[slot].HasItsPath()) DW_RETURN_IF_ERROR(file.Relink(HiddenName(slot)));
  if (other.IsAt(name) && other.HasItsPath()) {
    DW_RETURN_IF_ERROR(file.Exchange(other.file()));
  } else if (file.path() != name) {
    DW_RETURN_IF_ERROR(file.Rename(name));
    // Another process removed or replaced the other file's name, so that file is forgotten. This
    // waits for the rename: until then its bytes are the base.
    if (other.IsAt(name)) other.Forget();
  }
  // The state file follows the name: a reader of both never opens an older file than the state
  // file names.
  state_.set_active(static_cast<uint32_t>(slot));
  front_ = slot;
  return absl::OkStatus();
}

Status WeightFiles::Hide() {
  const int front = front_;
  if (front < 0) return absl::OkStatus();
  BufferSlot& named = slots_[front];
  if (named.HasItsPath()) DW_RETURN_IF_ERROR(named.file().Rename(HiddenName(front)));
  front_ = -1;
  return absl::OkStatus();
}

StatusOr<FileLease::Answer> WeightFiles::HideIfAlone() {
  // Once the name is gone nobody opens the file anew, and the lease shows who has it open already.
  const int front = front_;
  BufferSlot& named = slots_[front];
  DW_RETURN_IF_ERROR(named.file().Rename(HiddenName(front)));
  auto alone = named.TryAlone();
  if (alone == FileLease::Answer::kAlone) {
    if (named.CloseServed()) {
      front_ = -1;
      return alone;
    }
    named.lease().Release();
    alone = FileLease::Answer::kInUse;
  }
  DW_RETURN_IF_ERROR(named.file().Rename(dir_ / kWeights));
  return alone;
}

StatusOr<WeightFiles::Name> WeightFiles::RestoreName() {
  const int front = front_;
  BufferFile& file = slots_[front].file();
  struct stat named;
  if (::stat((dir_ / kWeights).c_str(), &named) == 0 && named.st_ino == file.inode()) {
    return Name::kThere;
  }
  if (!file.Relink(HiddenName(front)).ok()) return Name::kLost;
  DW_RETURN_IF_ERROR(file.Rename(dir_ / kWeights));
  return Name::kRestored;
}

void WeightFiles::RemoveReplaced() {
  BufferSlot& other = slots_[1 - front_];
  if (!other.has_file()) return;
  const fs::path path = other.file().path();
  const Status dropped = other.Remove();
  if (dropped.ok()) return;
  left_over_ = path;
  LogWarn("{}: {}", dir_.native(), MessageOf(dropped));
}

Status WeightFiles::RemoveLeftOver() {
  if (left_over_.empty()) return absl::OkStatus();
  const bool taken = slots_[0].IsAt(left_over_) || slots_[1].IsAt(left_over_);
  if (!taken && ::unlink(left_over_.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError("remove " + left_over_.native());
  }
  left_over_.clear();
  return absl::OkStatus();
}

void WeightFiles::Remove() {
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

}  // namespace deltawire::receiver
