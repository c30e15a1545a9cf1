// How a running Buffer repairs files that somebody else removed or wrote to.
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
  DW_RETURN_IF_ERROR(CheckPlace());
  Health health;
  const int front = front_;
  if (front < 0) return health;  // the next commit puts everything in place
  if (FrontIsTouched()) {
    // Restores the size first: reading beyond the end of a shortened file would give SIGBUS.
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
  DW_RETURN_IF_ERROR(RemoveLeftOver());
  return health;
}

Status Buffer::PutNameBack(Health& health) {
  const int front = front_;
  BufferFile& file = *slots_[front].file;
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
      if (Known(slot, c) && !HasItsDigest(slot, c)) lost.push_back(c);
    }
    if (lost.empty()) continue;
    if (slot == front_) {
      if (HasItsPath(slot)) DW_RETURN_IF_ERROR(slots_[slot].file->Rename(FreeHiddenName(slot)));
      front_ = -1;
    }
    const auto s = static_cast<uint32_t>(slot);
    if (state_.phase(s) != SlotPhase::kWriting) state_.BeginWrite(s);
    for (const uint32_t c : lost) {
      state_.MarkUnknown(s, c);
      if (slot == work_) touched_[c] = 0;  // the other file's bytes are the base again
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
