// The announcement of an incoming version by a sender or a relay, so that receivers open their
// pulls of it at once.
#pragma once

#include "common/base/fields.h"
#include "common/base/identity.h"

namespace deltawire {

struct IncomingNews {
  /// The incoming version. Epoch 0: none. Root 0: the trainer is still writing it, so its root is
  /// unknown.
  Identity version;
  /// The sender's state when the offload began. A receiver with another base would miss the chunks
  /// that the version does not change. Epoch 0: no base, every chunk comes whole.
  Identity base;

  friend bool operator==(const IncomingNews&, const IncomingNews&) = default;
};

template <FieldsOf<IncomingNews> T>
void ForEachField(T& news, const auto& f) {
  f("version", news.version);
  f("base", news.base);
}

/// Returns whether `state` is the published form of `coming`, whose root may be unknown (0).
inline bool IsOf(const Identity& coming, const Identity& state) {
  return coming.lineage == state.lineage && coming.id == state.id &&
         coming.attempt == state.attempt &&
         (coming.root == 0 || state.root == 0 || coming.root == state.root);
}

}  // namespace deltawire
