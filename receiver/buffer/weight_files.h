// The weight files of one directory, one or two, and their names. The front file is wholly one
// version and has the weights' name; every other file has a hidden name. A crash at any moment
// leaves names that recovery.h takes up. A Buffer owns it. front() may be called from any thread,
// the rest from one at a time. Errors name the directory.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>

#include "common/base/status.h"
#include "common/shm/dir_lock.h"
#include "common/shm/file_lease.h"
#include "common/shm/state_file.h"
#include "receiver/buffer/buffer_slot.h"

namespace deltawire::receiver {

class WeightFiles {
 public:
  WeightFiles(std::filesystem::path dir, std::shared_ptr<DirLock> lock, StateFile state,
              const BufferSlot::Env& env);

  const std::filesystem::path& directory() const { return dir_; }
  /// REQUIRES: `i` is 0 or 1.
  BufferSlot& slot(int i) { return slots_[i]; }
  const BufferSlot& slot(int i) const { return slots_[i]; }
  /// The slot of the front file; -1: no file has the weights' name.
  int front() const { return front_; }
  /// The slot of the file that is the front one, or was it last.
  int last_front() const {
    const int front = front_;
    return front < 0 ? static_cast<int>(state_.active()) : front;
  }

  /// An error once the buffer's directory was removed or replaced: nothing there is ours.
  Status CheckPlace() const;
  /// Puts a new file, under a hidden name, in the place of the slot's. kCancelled: see
  /// BufferSlot::Make.
  Status Make(int slot, const std::function<bool()>& stop = nullptr);
  /// Makes the slot's file the front one.
  Status GiveName(int slot);
  /// Hides the front file, even from processes that have it open.
  Status Hide();
  /// Hides the front file if nobody else has it open; else the file has its name again. REQUIRES:
  /// there is one.
  StatusOr<FileLease::Answer> HideIfAlone();
  enum class Name : uint8_t {
    kThere,
    kRestored,
    kLost,  ///< the file has no name left, and the kernel gives such a file no new one
  };
  /// Gives the front file its name back if another process took it. REQUIRES: there is one.
  StatusOr<Name> RestoreName();
  /// A hidden name that the slot's file may take.
  std::filesystem::path HiddenName(int slot) const;

  /// Drops the file that the front one has replaced. If that fails, RemoveLeftOver tries again.
  void RemoveReplaced();
  Status RemoveLeftOver();
  /// Removes the files from the directory, unless others lie under their names.
  void Remove();

 private:
  const std::filesystem::path dir_;
  const std::shared_ptr<DirLock> lock_;
  StateFile state_;
  BufferSlot slots_[2];
  std::atomic<int> front_{-1};
  std::filesystem::path left_over_;  // for RemoveLeftOver
};

}  // namespace deltawire::receiver
