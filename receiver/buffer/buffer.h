// The receiver's buffer of one model: a HF model directory. Its weight file has its name only while
// it is one whole version, and its bytes never change under a reader. There is one file, or two
// that take turns (docs/lifecycle.md). It takes the model's size once or twice, and 33 bytes per
// chunk. Queries may be called from any thread, the rest from one. Errors name the directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/shm/dir_lock.h"
#include "common/shm/state_file.h"
#include "kernels/kernels.h"
#include "receiver/buffer/buffer_update.h"
#include "receiver/buffer/chunk_bases.h"
#include "receiver/buffer/served_file.h"
#include "receiver/buffer/side_files.h"
#include "receiver/buffer/weight_files.h"

namespace deltawire::receiver {

class Buffer {
 public:
  struct Options {
    /// 1: one file, updated in place when nobody reads it. 2: two files; the named one is always
    /// whole, and updates go to the other. 0: 2 if the memory is enough (ChooseBuffers), else 1.
    uint32_t buffers = 1;
    bool huge_pages = true;
    ThreadPool* pool =
        nullptr;  ///< for populating, checking and copying; null: the caller's thread
    /// Change bytes even while others read them.
    bool unsafe_in_place = false;
  };

  /// REQUIRES: the caller is CreateBuffer or RecoverBuffer (recovery.h).
  Buffer(const std::filesystem::path& dir, std::shared_ptr<DirLock> lock, Layout layout,
         ChunkTable chunks, StateFile state, const Options& options);

  const Layout& layout() const { return layout_; }
  const ChunkTable& chunks() const { return chunks_; }
  const kernels::DigestKey& key() const { return key_; }
  const Options& options() const { return options_; }
  const std::filesystem::path& directory() const { return files_.directory(); }
  uint32_t buffers() const { return buffers_; }
  /// Empty where leases work, else the reason why not. Without leases every update goes to a fresh
  /// file (or, with unsafe_in_place, changes bytes that others may be reading).
  const std::string& lease_problem() const { return lease_problem_; }

  /// The identity of the file that has the weights' name; empty when no file has it.
  Identity committed() const;
  /// The chunks' digests in that file, whatever an update has brought to the other one. All are 0
  /// when no file has the name.
  std::vector<uint64_t> CommittedDigests() const;
  /// The identity that the buffer last was wholly, also while the only file is being changed.
  Identity last_whole() const { return files_.slot(files_.last_front()).identity(); }
  /// True while no file has the weights' name.
  bool updating() const { return files_.front() < 0; }
  /// True when a pull may change bytes while it still runs, because that keeps nobody from loading.
  bool at_once() const { return updating() || buffers_ == 2; }
  /// The committed file, to be served to other receivers. While a lease of it is out, no update
  /// changes its bytes: the update goes to a fresh file, or with one file is not begun. Null when
  /// no file has the name.
  std::shared_ptr<ServedFile> Serve();

  WeightFiles& files() { return files_; }
  const WeightFiles& files() const { return files_; }
  InstalledSideFiles& side_files() { return side_files_; }
  const InstalledSideFiles& side_files() const { return side_files_; }
  ChunkBases& bases() { return bases_; }
  const ChunkBases& bases() const { return bases_; }
  BufferUpdate& update() { return update_; }
  const BufferUpdate& update() const { return update_; }

 private:
  const Layout layout_;
  const ChunkTable chunks_;
  const Options options_;
  const kernels::DigestKey key_;
  const uint32_t buffers_;
  const std::string lease_problem_;
  WeightFiles files_;
  InstalledSideFiles side_files_;
  ChunkBases bases_;
  BufferUpdate update_;
};

}  // namespace deltawire::receiver
