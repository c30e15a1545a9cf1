// A relay's announcement of the version that it fetches, so that its receivers wait for it, and of
// the relays on its path, so that a circle is noticed.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/fields.h"
#include "common/base/identity.h"

namespace deltawire {

struct RelayNews {
  /// The version that this relay, or a relay above it, is pulling. Epoch 0: none.
  Identity fetching;
  uint64_t fetched_bytes = 0;  ///< of that pull so far
  bool applying = false;       ///< the bytes have arrived and are being applied
  /// The relays on the way from the sender, this one last. Each relay is named by the number that
  /// it drew when it started.
  std::vector<uint64_t> path;

  friend bool operator==(const RelayNews&, const RelayNews&) = default;
};

template <FieldsOf<RelayNews> T>
void ForEachField(T& news, const auto& f) {
  f("fetching", news.fetching);
  f("fetched_bytes", news.fetched_bytes);
  f("applying", news.applying);
  f("path", news.path);
}

}  // namespace deltawire
