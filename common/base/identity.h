// The whole name of a published state. A version number alone does not identify bytes: a restarted
// sender or a resumed trainer uses numbers again. Lineage and root tell such states apart.
// A plain value; no errors.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/checksum.h"
#include "common/base/state_id.h"

namespace deltawire {

/// (lineage, epoch, version, root), beside the attempt that all parts of one offload share.
struct Identity {
  /// 128 random bits, drawn when a sender first makes the model's files. They name the history in
  /// which `id` counts.
  Hash128 lineage;
  /// Rises within a lineage; ids of different lineages cannot be compared. Epoch 0: no state.
  StateId id;
  /// One number over all chunk digests and their positions (common/layout/root.h).
  uint64_t root = 0;
  /// The random number of the offload that was published; 0: not known. Not part of the name.
  uint64_t attempt = 0;

  bool empty() const { return id.epoch == 0; }
  friend bool operator==(const Identity& a, const Identity& b) {
    return a.lineage == b.lineage && a.id == b.id && a.root == b.root;
  }
};

/// True when `a` is a later state than `than` in the same history.
inline bool IsLater(const Identity& a, const Identity& than) {
  return a.lineage == than.lineage && a.id > than.id;
}

/// The text of the StateId alone. Use DescribeFully where versions of several lineages can meet.
inline std::string ToString(const Identity& identity) { return ToString(identity.id); }

/// "version 7 (lineage edbee4f0, root 0f3c…)": enough to tell two states apart.
std::string DescribeFully(const Identity& identity);

}  // namespace deltawire
