// The full name of a published state. A version number alone does not identify bytes, because a
// restarted sender or a resumed trainer reuses numbers. Lineage and root tell such states apart.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/checksum.h"
#include "common/base/state_id.h"

namespace deltawire {

/// The name (lineage, epoch, version, root), and the attempt of the offload.
struct Identity {
  /// 128 random bits, drawn when a sender first makes the model's files. They name the history in
  /// which `id` counts.
  Hash128 lineage;
  /// Increases within a lineage; ids of different lineages cannot be compared. Epoch 0: no state.
  StateId id;
  /// A hash of all chunk digests and their positions (common/layout/root.h).
  uint64_t root = 0;
  /// The random number of the published offload; 0: unknown. Not part of the name.
  uint64_t attempt = 0;

  bool empty() const { return id.epoch == 0; }
  friend bool operator==(const Identity& a, const Identity& b) {
    return a.lineage == b.lineage && a.id == b.id && a.root == b.root;
  }
};

/// Returns true when `a` is a later state than `than` in the same history.
inline bool IsLater(const Identity& a, const Identity& than) {
  return a.lineage == than.lineage && a.id > than.id;
}

/// Describes the StateId alone. Use DescribeFully where versions of several lineages can meet.
inline std::string ToString(const Identity& identity) { return ToString(identity.id); }

/// Returns "version 7 (lineage edbee4f0, root 0f3c…)", which is enough to tell two states apart.
std::string DescribeFully(const Identity& identity);

}  // namespace deltawire
