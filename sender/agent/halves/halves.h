// A model's two halves: the files, the version that each holds, the pulls that read it (by lease),
// and the ranks that were granted it. A rank that never said it was done may still write. So its
// half is granted again only if no other process has the file open; else a fresh file takes its
// place ("Fencing", docs/lifecycle.md). Any thread may call any method, but one at a time calls
// Drain to Commit. Errors name model and file.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/shm/buffer_file.h"
#include "common/shm/state_file.h"

namespace deltawire::sender {

/// Use of a half. Each state goes to the next; a failed Drain or Fence goes back to the state
/// before:
///   kIdle -> kTaken (no new lease) -> kGranted (written) -> kIdle (whole)
enum class HalfUse : uint8_t { kIdle, kTaken, kGranted };

class Halves {
 public:
  struct Context {
    std::string model;
    std::filesystem::path directory;
    const Layout* layout = nullptr;  ///< outlives the halves, as `chunks` and `owned` do
    const ChunkTable* chunks = nullptr;
    const Coverage* owned = nullptr;
    BufferOptions buffer;
  };
  static constexpr const char* kStateName = ".deltawire.state";
  static std::filesystem::path PathOf(const std::filesystem::path& directory, uint32_t half);

  /// Makes both files and the state, in place of what is there.
  static StatusOr<std::unique_ptr<Halves>> Create(Context context, const StateShape& shape);
  /// Takes up what an earlier process left.
  static StatusOr<std::unique_ptr<Halves>> Open(Context context, StateFile state);

  MutableBytes writable(uint32_t half) { return files_[half].data(); }
  Bytes data(uint32_t half) const { return files_[half].data(); }
  const std::filesystem::path& path(uint32_t half) const { return files_[half].path(); }
  uint64_t data_offset() const { return data_offset_; }
  const Hash128& lineage() const { return state_.shape().lineage; }
  /// The chunks' digests as the state file has them. REQUIRES: the half is whole.
  std::vector<uint64_t> Digests(uint32_t half) const;
  /// The newest half that is whole; nullopt after a first start.
  std::optional<uint32_t> Newest() const;
  /// The highest version that was ever published in this lineage; a rollback does not lower it.
  uint64_t highest_version() const { return state_.highest_version(); }
  /// Makes `half` the active one in the state file, after a crash between the two words of a
  /// publish.
  void Activate(uint32_t half) { state_.set_active(half); }

  /// The version that the half wholly holds; empty while it holds none, or is handed out.
  Identity holds(uint32_t half) const;
  /// A lease: while the caller holds it, `half` keeps the bytes of `id`. Null when the half has
  /// other bytes or is handed out.
  std::shared_ptr<const void> Lease(uint32_t half, const Identity& id);
  /// Overwrites damaged bytes at `offset`. False when `half` does not hold `id` any more, or when
  /// anybody besides the caller, who holds one lease, reads it.
  bool Patch(uint32_t half, const Identity& id, uint64_t offset, Bytes bytes);

  // Writers.
  struct Writer {
    uint64_t lease = 0;
    uint32_t rank = 0;
    uint64_t client = 0;
    std::string publisher;
  };
  void AddWriter(uint32_t half, Writer writer);
  /// The rank has said that it writes no more under that lease.
  void EndWriter(uint64_t lease, uint32_t rank);
  /// The client asks for another grant, so it has dropped those before; `client` 0 is ignored.
  void EndWritersOf(uint64_t client, uint32_t rank);
  /// Whether the half must be fenced before it is granted.
  bool NeedsFence(uint32_t half) const;

  /// The part of a grace that is left to streams that are cut, to end the frame under way.
  static constexpr std::chrono::milliseconds CutTime(std::chrono::milliseconds grace) {
    return grace / 2;
  }
  /// A stream that is cut is closed after so long, whatever it has sent: soon enough before the
  /// grace is over for the half to be free by then.
  static constexpr std::chrono::milliseconds CloseAfter(std::chrono::milliseconds grace) {
    return CutTime(grace) * 4 / 5;
  }
  /// Waits until nobody reads `half`, for `grace` in all: when CutTime of it is left, calls `cut`.
  /// From here on Lease refuses the half. After Stop its reason.
  Status Drain(uint32_t half, std::chrono::milliseconds grace,
               const std::function<void(uint32_t)>& cut, double* waited_seconds);
  /// Undoes a Drain. REQUIRES: nobody has written to the half since.
  void GiveBack(uint32_t half);
  /// Puts a fresh file in the half's place if somebody may still write into the present one.
  /// `replacing` is called before the old mapping is dropped. REQUIRES: drained.
  Status Fence(uint32_t half, const std::function<void()>& replacing);
  /// From here on the half holds no version. REQUIRES: drained.
  void BeginWrite(uint32_t half);
  /// Records that the half holds `id`, with these digests, and makes it the active one.
  void Commit(uint32_t half, const Identity& id, std::span<const uint64_t> digests);

  void Stop(const Status& why);

 private:
  Halves(Context context, StateFile state, std::vector<BufferFile> files, bool fresh);
  Status Replace(uint32_t half);
  std::string WritersOf(uint32_t half) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsSuspect(uint32_t half) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return halves_[half].suspect || !halves_[half].writers.empty();
  }

  const Context context_;
  StateFile state_;
  std::vector<BufferFile> files_;
  const uint64_t data_offset_;  // of the data section, in any file of the layout

  mutable CheckedMutex mu_;
  CondVar cv_;
  Status stopped_ ABSL_GUARDED_BY(mu_);  // why; OK: it is not
  struct Half {
    HalfUse use = HalfUse::kIdle;
    Identity holds;
    uint32_t readers = 0;
    std::vector<Writer> writers;  // granted, and not let go since
    bool suspect = false;         // an earlier process may have granted it
  };
  Half halves_[2] ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::sender
