// What whoever serves a model tells its receivers of a version that is still on its way to itself,
// so that they open their pulls of it at once. Owner: whoever holds the value. Threads: as any
// value. Cost: under 200 bytes. Errors: none.
#pragma once

#include "common/base/identity.h"

namespace deltawire {

struct IncomingNews {
  /// The version that is coming; epoch 0: none is. Root 0: it is still being written at the sender
  /// and not published, so nobody knows its root yet.
  Identity version;
  /// What the server held when it began. A receiver that holds something else would lack what the
  /// version does not change. Epoch 0: nothing, so that every chunk comes whole.
  Identity base;

  friend bool operator==(const IncomingNews&, const IncomingNews&) = default;
};

/// Whether `state` is what became of `coming`, whose root may not have been known (0).
inline bool IsOf(const Identity& coming, const Identity& state) {
  return coming.lineage == state.lineage && coming.id == state.id &&
         coming.attempt == state.attempt &&
         (coming.root == 0 || state.root == 0 || coming.root == state.root);
}

}  // namespace deltawire
