// A model's two halves: the files, the version that each holds, the pulls that read it (by lease),
// and the ranks that were granted it. A rank that never reported its end may still write. So its
// half is granted again only if no other process has the file open; otherwise a fresh file replaces
// it ("Fencing", docs/lifecycle.md). Thread-safe, with one caller at a time of Drain to Commit.
// Errors name model and file.
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
#include "common/serving/model_facts.h"
#include "common/shm/buffer_file.h"
#include "common/shm/state_file.h"

namespace deltawire::sender {

/// kIdle -> kTaken (no new lease) -> kGranted (written) -> kIdle (whole). A failed Drain or Fence
/// moves back.
enum class HalfUse : uint8_t { kIdle, kTaken, kGranted };

class Halves {
 public:
  struct Context {
    const ModelFacts& model;  ///< outlives the halves
    std::filesystem::path directory;
    BufferOptions buffer;
  };
  static constexpr const char* kStateName = ".deltawire.state";
  static std::filesystem::path PathOf(const std::filesystem::path& directory, uint32_t half);

  /// Makes both files and the state, replacing existing ones.
  static StatusOr<std::unique_ptr<Halves>> Create(Context context, const StateShape& shape);
  /// Opens the files of an earlier process.
  static StatusOr<std::unique_ptr<Halves>> Open(Context context, StateFile state);

  MutableBytes writable(uint32_t half) { return files_[half].data(); }
  Bytes data(uint32_t half) const { return files_[half].data(); }
  const std::filesystem::path& path(uint32_t half) const { return files_[half].path(); }
  uint64_t data_offset() const { return data_offset_; }
  const Hash128& lineage() const { return state_.shape().lineage; }
  /// The chunks' digests in the state file. REQUIRES: the half is whole.
  std::vector<uint64_t> Digests(uint32_t half) const;
  /// The newer whole half; nullopt after a first start.
  std::optional<uint32_t> Newest() const;
  /// The highest version that was ever published in this lineage; a rollback does not lower it.
  uint64_t highest_version() const { return state_.highest_version(); }
  /// Makes `half` the active one in the state file, after a crash between a publish's two writes.
  void Activate(uint32_t half) { state_.set_active(half); }

  /// The version that the half holds; empty while it holds none, or is granted.
  Identity holds(uint32_t half) const;
  /// Returns a lease: while the caller holds it, `half` keeps the bytes of `id`. Null when the half
  /// has other bytes or is granted.
  std::shared_ptr<const void> Lease(uint32_t half, const Identity& id);
  /// Overwrites corrupt bytes at `offset`. Returns false if `half` does not hold `id` any more, or
  /// has another lease than the caller's.
  bool Patch(uint32_t half, const Identity& id, uint64_t offset, Bytes bytes);

  // Writers.
  struct Writer {
    uint64_t lease = 0;
    uint32_t rank = 0;
    uint64_t client = 0;
    std::string publisher;
  };
  void AddWriter(uint32_t half, Writer writer);
  /// Ends a rank's write under that lease, as the rank has reported.
  void EndWriter(uint64_t lease, uint32_t rank);
  /// Ends a client's earlier writes, since it asks for another grant. `client` 0 is ignored.
  void EndWritersOf(uint64_t client, uint32_t rank);
  /// Whether the half must be fenced before it is granted.
  bool NeedsFence(uint32_t half) const;

  /// The part of a grace in which cut streams may end their frames.
  static constexpr std::chrono::milliseconds CutTime(std::chrono::milliseconds grace) {
    return grace / 2;
  }
  /// The time after which a cut stream is closed, soon enough for the half to be free when the
  /// grace ends.
  static constexpr std::chrono::milliseconds CloseAfter(std::chrono::milliseconds grace) {
    return CutTime(grace) * 4 / 5;
  }
  /// Waits until no lease of `half` is left, for at most `grace`. Calls `cut` when CutTime of that
  /// remains. Lease refuses the half from now on. Fails with Stop's reason.
  Status Drain(uint32_t half, std::chrono::milliseconds grace,
               const std::function<void(uint32_t)>& cut, double* waited_seconds);
  /// Undoes a Drain. REQUIRES: the half is unchanged since.
  void GiveBack(uint32_t half);
  /// Replaces the half's file if an old writer may still have it open. `replacing` is called before
  /// the old mapping goes. REQUIRES: drained.
  Status Fence(uint32_t half, const std::function<void()>& replacing);
  /// Marks the half as holding no version. REQUIRES: drained.
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
  Status stopped_ ABSL_GUARDED_BY(mu_);  // Stop's reason
  struct Half {
    HalfUse use = HalfUse::kIdle;
    Identity holds;
    uint32_t readers = 0;
    std::vector<Writer> writers;  // granted, without an end
    bool suspect = false;         // an earlier process may have granted it
  };
  Half halves_[2] ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::sender
