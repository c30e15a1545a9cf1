// What a relay tells its receivers beside its newest version: the version that it is fetching, so
// that they wait for it, and the relays that its versions come through, so that a circle is
// noticed. Owner: whoever holds the value. Threads: as any value. Cost: 8 bytes per relay passed.
// Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/identity.h"

namespace deltawire {

struct RelayNews {
  /// The version that it, or a relay that it pulls from, is pulling; epoch 0: none.
  Identity fetching;
  uint64_t fetched_bytes = 0;  ///< of that pull so far
  bool applying = false;       ///< the bytes have come and are being put in place
  /// The relays that this relay's versions come through; it is the last one itself. Each relay is
  /// named by the number that it drew when it started.
  std::vector<uint64_t> path;

  friend bool operator==(const RelayNews&, const RelayNews&) = default;
};

}  // namespace deltawire
