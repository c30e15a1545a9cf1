// What whoever serves a model tells its receivers of a version that is still on its way to itself,
// so that they open their pulls of it at once. Owner: whoever holds the value. Threads: as any
// value. Cost: under 200 bytes. Errors: none.
#pragma once

#include "common/base/identity.h"

namespace deltawire {

struct IncomingNews {
  /// The version that is coming; epoch 0: none is.
  Identity version;
  /// What the server held when it began. A receiver that holds something else would lack what the
  /// version does not change. Epoch 0: nothing, so that every chunk comes whole.
  Identity base;

  friend bool operator==(const IncomingNews&, const IncomingNews&) = default;
};

}  // namespace deltawire
