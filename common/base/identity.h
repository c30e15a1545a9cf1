// The whole name of a published state. A number names no bytes: a sender that starts anew, or a
// trainer that resumes, uses version numbers again. Lineage and root tell such states apart.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/checksum.h"
#include "common/base/state_id.h"

namespace deltawire {

/// (lineage, epoch, version, root), and the attempt that the parts of one offload share.
struct Identity {
  /// 128 random bits, drawn when a sender makes a model: whose history `id` counts in.
  Hash128 lineage;
  /// Rises within a lineage; means nothing beside another lineage. Epoch 0: nothing.
  StateId id;
  /// Of all chunk digests by position (common/layout/root.h).
  uint64_t root = 0;
  /// Of the offload that was published; 0: not known. No part of the name.
  uint64_t attempt = 0;

  bool empty() const { return id.epoch == 0; }
  friend bool operator==(const Identity& a, const Identity& b) {
    return a.lineage == b.lineage && a.id == b.id && a.root == b.root;
  }
};

/// A later state of the same history.
inline bool IsLater(const Identity& a, const Identity& than) {
  return a.lineage == than.lineage && a.id > than.id;
}

/// As of a StateId; where versions of several lineages meet, DescribeFully.
inline std::string ToString(const Identity& identity) { return ToString(identity.id); }

/// "version 7 (lineage edbee4f0, root 0f3c…)": enough to tell two apart, in one line.
std::string DescribeFully(const Identity& identity);

}  // namespace deltawire
