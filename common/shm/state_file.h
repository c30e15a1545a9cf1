// The small file beside the buffers that says what is true of them, after a crash at any point.
// A mapped file; every field that is a claim is one atomic 64-bit word written after what it
// claims. One owner process writes (under DirLock); any process may map it read-only (StateReader).
// Byte table and order of writes: docs/lifecycle.md. Cost: 16 bytes per chunk and slot.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>

#include "common/base/checksum.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/shm/mapped_file.h"

namespace deltawire {

/// A chunk of unknown content: never written, being written, or torn by a crash.
inline constexpr uint64_t kVersionUnknown = ~uint64_t{0};

/// What a slot (one buffer file) holds. Allowed moves:
///   kEmpty -> kWriting -> kWhole -> kWriting -> ...
enum class SlotPhase : uint64_t {
  kEmpty = 0,    ///< nothing usable
  kWriting = 1,  ///< some chunks may differ from `version`; the chunk table says which are known
  kWhole = 2,    ///< every chunk is `version`
};

/// What never changes in a state file.
struct StateShape {
  uint32_t chunks = 0;
  uint32_t slots = 1;  ///< 1 or 2
  Hash128 fingerprint;
  uint64_t digest_seed = 0;
  Hash128 lineage = {};  ///< a sender's; none for a receiver, whose slots say it
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

/// The owner's side.
class StateFile {
 public:
  using Shape = StateShape;

  /// Makes a new file (replacing what is there): all slots kEmpty, all chunks kVersionUnknown.
  static StatusOr<StateFile> Create(const std::filesystem::path& path, const Shape& shape);
  /// Maps an existing one. kNotFound when absent; kDataLoss when it is not whole, not ours, or
  /// older than the machine's last start (a disk may have kept its words and lost the data).
  static StatusOr<StateFile> Open(const std::filesystem::path& path);

  const Shape& shape() const { return shape_; }

  /// Which slot is the active one (the sender's published half, the receiver's named file).
  uint32_t active() const;
  void set_active(uint32_t slot);

  SlotPhase phase(uint32_t slot) const;
  /// What the slot last was wholly, also while it is kWriting; empty when it never was.
  Identity identity(uint32_t slot) const;
  StateId id(uint32_t slot) const { return identity(slot).id; }
  /// The inode of the file that the slot's entries speak of; 0: not said.
  uint64_t inode(uint32_t slot) const;
  /// Another file takes the slot: kWriting, every entry unknown, then the inode. The identity stays
  /// what the slot last was.
  void set_inode(uint32_t slot, uint64_t inode);
  /// kWriting, and the slot's sequence word goes odd when it was even.
  void BeginWrite(uint32_t slot);
  /// The slot is wholly `identity`; its sequence word goes even.
  /// REQUIRES: kWriting, and every chunk entry is set to identity.id.version.
  void FinishWrite(uint32_t slot, const Identity& identity);

  /// Chunk entries. MarkUnknown is ordered before any later write to the chunk's bytes, SetChunk
  /// after any earlier one. REQUIRES: kWriting (Open refuses a file where that was not kept).
  void MarkUnknown(uint32_t slot, uint32_t chunk);
  void SetChunk(uint32_t slot, uint32_t chunk, uint64_t version, uint64_t digest);
  uint64_t chunk_version(uint32_t slot, uint32_t chunk) const;
  uint64_t chunk_digest(uint32_t slot, uint32_t chunk) const;

  /// Odd while a buffer changes; a reader that sees the same even value before and after a read
  /// has read one version. Without `slot`: of all slots together.
  uint64_t sequence(uint32_t slot) const;
  uint64_t sequence() const;

 private:
  StateFile() = default;
  Shape shape_;
  Mapping map_;
};

/// Another process's side: a read-only mapping, valid while it lives, also when the owner is gone.
/// The owner replaces the file when the model's layout changes; IsCurrent() tells.
class StateReader {
 public:
  static StatusOr<StateReader> Open(const std::filesystem::path& path);

  struct Slot {
    uint64_t sequence = 0;
    SlotPhase phase = SlotPhase::kEmpty;
    Identity identity;
    uint64_t inode = 0;
    StateId id() const { return identity.id; }
  };
  const StateShape& shape() const { return shape_; }
  uint32_t active() const;
  uint64_t sequence() const;
  /// The words as they were at one moment.
  Slot slot(uint32_t slot) const;
  uint64_t chunk_version(uint32_t slot, uint32_t chunk) const;
  uint64_t chunk_digest(uint32_t slot, uint32_t chunk) const;
  /// True while no write to `slot` has begun since `before` was taken with an even sequence: what
  /// was read from the buffer in between is wholly before.identity.
  bool StillHolds(uint32_t slot, const Slot& before) const;
  /// False when `path` no longer names the file that is mapped.
  bool IsCurrent() const;

 private:
  StateReader() = default;
  std::filesystem::path path_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  StateShape shape_;
  Mapping map_;
};

}  // namespace deltawire
