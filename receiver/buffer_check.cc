// What a living Buffer does about files that somebody else removed or wrote to.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "receiver/buffer.h"
#include "receiver/buffer_names.h"
#include "receiver/buffer_turn.h"

namespace deltawire::receiver {
namespace fs = std::filesystem;

StatusOr<Buffer::Health> Buffer::Check() {
  const Turn turn(*this);
  Health health;
  const int front = front_;
  // While an update runs its commit puts everything in place.
  if (front < 0 || begun_) return health;
  if (FrontIsTouched()) {
    // First the size: no byte beyond a shortened file's end can be read.
    DW_RETURN_IF_ERROR(slots_[front].file->Restore(layout_));
    const std::vector<uint32_t> bad = FindBad(front);
    if (bad.empty()) {
      RememberFront();
    } else {
      DW_RETURN_IF_ERROR(Withdraw(bad));
      health.bad_chunks = bad;
    }
  }
  if (front_ >= 0) DW_RETURN_IF_ERROR(PutNameBack(health));
  DW_ASSIGN_OR_RETURN(const std::vector<std::string> names, side_files_.PutBack());
  health.put_back.insert(health.put_back.end(), names.begin(), names.end());
  return health;
}

Status Buffer::PutNameBack(Health& health) {
  const int front = front_;
  BufferFile& file = *slots_[front].file;
  struct stat named;
  if (::stat((dir_ / kWeights).c_str(), &named) == 0 && named.st_ino == file.inode()) return {};
  health.put_back.emplace_back(kWeights);
  if (file.Relink(FreeHiddenName(front)).ok()) return file.Rename(dir_ / kWeights);
  // Its last name is gone, and the kernel gives such a file no new one: a copy takes its place.
  const Identity whole = committed();
  std::fill(touched_.begin(), touched_.end(), uint8_t{0});
  if (buffers_ == 1) {
    DW_RETURN_IF_ERROR(BeginFresh());
  } else {
    DW_RETURN_IF_ERROR(Begin().status());
  }
  return CommitWork(whole, nullptr);
}

Status Buffer::Distrust(std::span<const uint32_t> chunks) {
  stop_catching_up_ = true;
  const Turn turn(*this);
  stop_catching_up_ = false;
  return Withdraw(chunks);
}

Status Buffer::Withdraw(std::span<const uint32_t> chunks) {
  const int front = front_;
  const int slot = front >= 0 ? front : static_cast<int>(state_.active());
  if (front >= 0) {
    BufferFile& file = *slots_[slot].file;
    struct stat named;
    const fs::path name = dir_ / kWeights;
    const bool ours = ::stat(name.c_str(), &named) == 0 && named.st_ino == file.inode();
    if (ours) DW_RETURN_IF_ERROR(file.Rename(FreeHiddenName(slot)));
    front_ = -1;
    state_.BeginWrite(static_cast<uint32_t>(slot));
  }
  for (const uint32_t c : chunks) {
    if (!Known(slot, c)) continue;
    if (state_.phase(static_cast<uint32_t>(slot)) != SlotPhase::kWriting) {
      state_.BeginWrite(static_cast<uint32_t>(slot));
    }
    state_.MarkUnknown(static_cast<uint32_t>(slot), c);
  }
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
