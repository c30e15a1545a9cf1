// The number of versions that a holder of weights is behind, for metrics.
#pragma once

#include <cstdint>

#include "common/base/identity.h"

namespace deltawire {

/// Returns the difference of the version numbers, or 0 if nothing newer is known. Without a held
/// state, or across epochs, numbers cannot be subtracted, and the result is 1. Lineages and roots
/// are not compared, since an agent that owns a part names its own.
inline uint64_t VersionsBehind(const Identity& held, const Identity& newest) {
  if (newest.empty() || held.id == newest.id) return 0;
  if (held.id.epoch != newest.id.epoch) return 1;
  return newest.id > held.id ? newest.id.version - held.id.version : 0;
}

}  // namespace deltawire
