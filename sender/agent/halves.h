// A model's two halves: the files, what each of them wholly is, who reads it (leases of pulls), and
// who was granted it for writing. A writer that never said that it is done may write at any time,
// so its half is granted again only when nobody else has the file open; else a fresh file takes its
// place ("fencing", docs/lifecycle.md). Owner: the Model. Threads: any; Drain to Commit by
// one at a time. Its lock is a leaf. Cost: two halves. Errors name model and file.
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
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/shm/buffer_file.h"
#include "common/shm/state_file.h"

namespace deltawire::sender {

/// What a half is; each state goes to the next, a failed Drain or Fence back to where it was:
///   kIdle -> kTaken (no new lease) -> kGranted (written) -> kIdle (whole)
enum class HalfUse : uint8_t { kIdle, kTaken, kGranted };

class Halves {
 public:
  struct Place {
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
  static StatusOr<std::unique_ptr<Halves>> Create(Place place, const StateShape& shape);
  /// Takes up what an earlier process left.
  static StatusOr<std::unique_ptr<Halves>> Open(Place place, StateFile state);

  MutableBytes writable(uint32_t half) { return files_[half].data(); }
  Bytes data(uint32_t half) const { return files_[half].data(); }
  const std::filesystem::path& path(uint32_t half) const { return files_[half].path(); }
  uint64_t data_offset() const { return data_offset_; }
  const Hash128& lineage() const { return state_.shape().lineage; }
  /// Of the published half's entries, as the state file has them.
  std::vector<uint64_t> Digests(uint32_t half) const;
  /// The newest half that is whole; none after a first start.
  std::optional<uint32_t> Newest() const;
  /// After a crash between the two words of a publish.
  void Activate(uint32_t half) { state_.set_active(half); }

  /// What the half wholly is; empty while it is none, or handed out.
  Identity holds(uint32_t half) const;
  /// The promise that `half` keeps the bytes of `id`; null when it has others or is handed out.
  std::shared_ptr<const void> Lease(uint32_t half, const Identity& id);
  /// Puts right what memory has lost. False when it is not `id` any more, or others than the
  /// caller, who holds one lease, read it.
  bool Patch(uint32_t half, const Identity& id, uint64_t offset, Bytes bytes);

  // Writers.
  struct Writer {
    uint64_t lease = 0;
    uint32_t rank = 0;
    uint64_t client = 0;
    std::string publisher;
  };
  void Granted(uint32_t half, Writer writer);
  /// The rank says that it writes no more under that lease.
  void LetGo(uint64_t lease, uint32_t rank);
  /// The client asks for another grant, so it has dropped those before; 0 is nobody.
  void LetGoOf(uint64_t client, uint32_t rank);
  /// Whether the half must be fenced before it is granted.
  bool Suspect(uint32_t half) const;

  /// Waits until nobody reads `half`: for `grace`, then calls `cut` and waits for its effect.
  /// From here on nothing is promised of it. kUnavailable after Stop.
  Status Drain(uint32_t half, std::chrono::milliseconds grace,
               const std::function<void(uint32_t)>& cut, double* waited_seconds);
  /// Undoes a Drain after which nobody wrote.
  void GiveBack(uint32_t half);
  /// Puts a fresh file in the half's place if somebody may still write into this one. `replacing`
  /// is called before the old mapping goes. REQUIRES: drained.
  Status Fence(uint32_t half, const std::function<void()>& replacing);
  /// REQUIRES: drained. The half is nothing whole from here on.
  void BeginWrite(uint32_t half);
  /// The half is `id`, with these digests, and the active one.
  void Commit(uint32_t half, const Identity& id, std::span<const uint64_t> digests);

  void Stop();

 private:
  Halves(Place place, StateFile state, std::vector<BufferFile> files, bool fresh);
  Status Replace(uint32_t half);
  // REQUIRES: mu_ held.
  std::string WritersOf(uint32_t half) const;
  bool IsSuspect(uint32_t half) const {
    return halves_[half].suspect || !halves_[half].writers.empty();
  }

  const Place place_;
  StateFile state_;
  std::vector<BufferFile> files_;
  const uint64_t data_offset_;  // of the data section, in any file of the layout

  mutable Mutex mu_;
  CondVar cv_;
  bool stopping_ = false;
  struct Half {
    HalfUse use = HalfUse::kIdle;
    Identity holds;
    uint32_t readers = 0;
    std::vector<Writer> writers;  // that have not let go
    bool suspect = false;         // an earlier process may have granted it
  };
  Half halves_[2];
};

}  // namespace deltawire::sender
