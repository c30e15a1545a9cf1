// The small file beside the buffers that says what they hold, and is right after a crash at any
// point: it is mapped, and each claim in it is one atomic 64-bit word, written only once the claim
// is true. One owner process writes it (under DirLock), its threads different entries at once. Any
// process may map it read-only (StateReader). It has 16 bytes per chunk and slot. The byte table
// and the order of writes are in docs/lifecycle.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>

#include "common/base/checksum.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/shm/mapped_file.h"

namespace deltawire {

/// A chunk with unknown content: never written, being written, or torn by a crash.
inline constexpr uint64_t kVersionUnknown = ~uint64_t{0};

/// The content of a slot (one buffer file). Allowed moves:
///   kEmpty -> kWriting -> kWhole -> kWriting -> ...
enum class SlotPhase : uint64_t {
  kEmpty = 0,    ///< nothing usable
  kWriting = 1,  ///< chunks may differ from the identity; the entries tell which are known
  kWhole = 2,    ///< every chunk is at the identity's version
};

/// The fields of a state file that never change.
struct StateShape {
  uint32_t chunks = 0;
  uint32_t slots = 1;  ///< 1 or 2
  Hash128 fingerprint;
  uint64_t digest_seed = 0;
  Hash128 lineage = {};  ///< a sender's; 0 for a receiver, whose slots name lineages
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

class StateFile {
 public:
  using Shape = StateShape;

  /// Makes a new file, replacing an existing one: all slots kEmpty, all chunks kVersionUnknown.
  static StatusOr<StateFile> Create(const std::filesystem::path& path, const Shape& shape);
  /// Maps an existing file. Returns kNotFound when absent. Returns kDataLoss when it is incomplete,
  /// not ours, or older than the machine's last boot: a disk may have kept the claims but not the
  /// data.
  static StatusOr<StateFile> Open(const std::filesystem::path& path);

  const Shape& shape() const { return shape_; }

  /// Returns the active slot: the sender's published half, or the receiver's named file. The file
  /// gets its name before this changes.
  uint32_t active() const;
  void set_active(uint32_t slot);
  /// Returns the highest version that a sender has published in this lineage; 0: none, or not
  /// recorded.
  uint64_t highest_version() const;
  void set_highest_version(uint64_t version);

  SlotPhase phase(uint32_t slot) const;
  /// Returns the last identity of the whole slot, also while it is kWriting; empty: none.
  Identity identity(uint32_t slot) const;
  StateId id(uint32_t slot) const { return identity(slot).id; }
  /// Returns the inode of the buffer file that the slot's entries describe; 0: not set.
  uint64_t inode(uint32_t slot) const;
  /// Gives the slot another file: sets kWriting, marks every entry unknown, then sets the inode.
  /// The identity stays.
  void set_inode(uint32_t slot, uint64_t inode);
  /// Sets kWriting, and makes the slot's sequence word odd.
  void BeginWrite(uint32_t slot);
  /// Sets kWhole with `identity`, and makes the slot's sequence word even.
  /// REQUIRES: kWriting, and every chunk entry is set to identity.id.version.
  void FinishWrite(uint32_t slot, const Identity& identity);

  /// Chunk entries. MarkUnknown is ordered before any later write to the chunk's bytes, SetChunk
  /// after any earlier one. REQUIRES: kWriting.
  void MarkUnknown(uint32_t slot, uint32_t chunk);
  void SetChunk(uint32_t slot, uint32_t chunk, uint64_t version, uint64_t digest);
  uint64_t chunk_version(uint32_t slot, uint32_t chunk) const;
  uint64_t chunk_digest(uint32_t slot, uint32_t chunk) const;

  /// Returns a value that is odd while the slot's buffer changes. A reader that sees the same even
  /// value before and after a read has read one version. Without `slot`: covers all slots.
  uint64_t sequence(uint32_t slot) const;
  uint64_t sequence() const;

 private:
  StateFile() = default;
  Shape shape_;
  Mapping map_;
};

/// Other processes' access to a state file: a read-only mapping, which stays valid even when the
/// owner is gone. When the model's layout changes, the owner replaces the file and IsCurrent()
/// becomes false.
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
  /// Returns all words of a slot, as they were at one moment.
  Slot slot(uint32_t slot) const;
  uint64_t chunk_version(uint32_t slot, uint32_t chunk) const;
  uint64_t chunk_digest(uint32_t slot, uint32_t chunk) const;
  /// Returns true if `before` is kWhole and no write to `slot` has begun since `before` was read.
  /// Then all bytes read from the buffer in between belong to before.identity.
  bool StillHolds(uint32_t slot, const Slot& before) const;
  /// Returns false when `path` no longer names the mapped file.
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
