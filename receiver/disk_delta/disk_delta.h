// A writer of each committed version into a directory of its own, whole or as the changes, for
// engines that apply such chains themselves (docs/disk_delta.md). A DiskDeltaHook owns it; one
// thread uses it. Write reads the model and a copy of the version before, which it keeps in memory
// (as large as the model). Errors name the file; a version that failed leaves no directory behind,
// and the next one is written whole.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/base/unique_fd.h"
#include "common/layout/model_dir.h"

namespace deltawire::receiver {

enum class DiskDeltaEncoding : uint8_t {
  kXor,        ///< new bytes XOR old bytes, of the whole tensor
  kOverwrite,  ///< positions and values of the bytes that changed
};
/// "xor", "overwrite": as in the format.
std::string_view ToString(DiskDeltaEncoding encoding);

struct DiskDeltaOptions {
  /// Made for this user alone if it does not exist. All that is written there may be read by those
  /// who may read the directory. One that others may write is refused.
  std::filesystem::path directory;
  DiskDeltaEncoding encoding = DiskDeltaEncoding::kXor;
  /// A version is written whole after this many that were not, and versions older than the whole
  /// one before are removed: at most 2 * (keep + 1) directories of a run stay. > 0.
  uint32_t keep = 64;
  size_t threads = 0;  ///< 0: one for each core
};

class DiskDelta {
 public:
  explicit DiskDelta(const DiskDeltaOptions& options);
  ~DiskDelta();
  DiskDelta(const DiskDelta&) = delete;

  /// Writes `id`, whose bytes are `model`'s: a receiver's directory that nobody changes meanwhile.
  /// Does nothing if the version lies there already. kCancelled soon after `stop` returns true.
  Status Write(const std::filesystem::path& model, const Identity& id,
               const std::function<bool()>& stop);

 private:
  class Part;  // a version's directory under construction

  /// Takes the directory for this object alone; kAlreadyExists where another writer has it.
  Status Own();
  bool Follows(const Identity& id, const ModelDir& model) const;
  StatusOr<bool> LiesThere(const std::filesystem::path& run, const Identity& id) const;
  Status WriteWhole(const std::filesystem::path& run, const ModelDir& model, const Identity& id,
                    const std::function<bool()>& stop);
  Status WriteGap(const std::filesystem::path& run, const Identity& id);
  Status WriteDelta(const std::filesystem::path& run, const ModelDir& model, const Identity& id,
                    const std::function<bool()>& stop);
  Status Keep(const ModelDir& model, const Identity& id);
  void Tidy(const std::filesystem::path& run, uint64_t newest);

  const DiskDeltaOptions options_;
  UniqueFd lock_;    // once Own has succeeded
  mode_t mode_ = 0;  // of the directory
  ThreadPool pool_;
  Identity held_;             // what old_ holds; empty: nothing
  Hash128 layout_;            // its fingerprint
  std::byte* old_ = nullptr;  // anonymous memory
  uint64_t old_bytes_ = 0;
  std::vector<uint32_t> changed_;  // tensors that WriteDelta found changed
  bool all_changed_ = false;       // the same for WriteWhole, and for a version that lies there
};

}  // namespace deltawire::receiver
