// What the engines that a receiver drives serve, as its reports say it. Owner: whoever holds the
// value. Threads: as any value. Cost: under 100 bytes. Errors: none.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/identity.h"

namespace deltawire {

struct EnginesServe {
  std::optional<uint32_t> engines = 0;  ///< that it drives; nullopt: an older release does not say
  Identity oldest;  ///< the oldest state that one of them serves; empty: one's is not known
  friend bool operator==(const EnginesServe& a, const EnginesServe& b) {
    return a.engines == b.engines && a.oldest == b.oldest && a.oldest.attempt == b.oldest.attempt;
  }
};

}  // namespace deltawire
