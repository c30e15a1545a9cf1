// The oldest version that a receiver's engines serve, as the receiver reports it.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/identity.h"

namespace deltawire {

struct EnginesServe {
  std::optional<uint32_t> engines = 0;  ///< that it drives; nullopt: older release
  Identity oldest;  ///< the oldest state that an engine serves; empty: unknown for at least one
  friend bool operator==(const EnginesServe& a, const EnginesServe& b) {
    return a.engines == b.engines && a.oldest == b.oldest && a.oldest.attempt == b.oldest.attempt;
  }
};

}  // namespace deltawire
