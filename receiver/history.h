// The last deltas that a replica applied, one pull each, for the codec tight (docs/wire_format.md,
// "History"). Memory only: a restarted receiver has none and gets payloads that need none.
// Owner: a Replica, whose driving thread alone uses it; a sink records into the builder from many
// threads. Cost: at most its limit, and half as much again while a pull runs.
#pragma once

#include <cstdint>
#include <memory>

#include "common/delta/delta_log.h"
#include "common/wire/messages.h"

namespace deltawire::receiver {

class History {
 public:
  explicit History(uint64_t limit_bytes);

  /// A pull begins, and the sender asks for `wanted` deltas. `committed`: what the buffer wholly
  /// is; with epoch 0 nothing that follows is one delta, so all is forgotten.
  void BeginPull(StateId committed, uint32_t wanted);
  /// Where the pull's chunks are to be noted: a delta with its fast payload, a whole chunk without.
  /// Null when nothing is kept.
  DeltaBuilder* recording() { return builder_.get(); }
  /// The pull ended in `to`, committed.
  void Commit(StateId to);
  void Forget();

  /// Adds to `have` which deltas are here. REQUIRES: have is of the committed state.
  void Describe(wire::Have& have) const;
  LogView view() const { return log_.View(); }
  size_t deltas() const { return log_.View().size(); }
  uint64_t bytes() const { return log_.bytes(); }

 private:
  const uint64_t limit_;
  DeltaLog log_;
  StateId from_;
  std::unique_ptr<DeltaBuilder> builder_;
};

}  // namespace deltawire::receiver
