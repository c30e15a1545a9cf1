// The last deltas that a replica applied, one per pull, for the codec tight (docs/wire_format.md,
// "History"). It is in memory only: a restarted receiver has none, and gets payloads that need
// none. It takes memory up to its limit, and half as much again while a pull runs. A Puller owns
// it; its driving thread alone uses it, except that a sink records from many threads.
#pragma once

#include <cstdint>
#include <memory>

#include "common/delta/delta_log.h"
#include "common/wire/messages.h"

namespace deltawire::receiver {

class ReplicaHistory {
 public:
  /// `served_bytes`: payload bytes of a pull's delta that are recorded for receivers that this one
  /// serves, whatever the sender asks for; 0: none are served.
  explicit ReplicaHistory(uint64_t limit_bytes, uint64_t served_bytes = 0);

  /// A pull begins, and the sender asks to keep `wanted` deltas. `committed` is the state that the
  /// buffer wholly is. With epoch 0 it is none, so the pull is not a delta between two states, and
  /// the history is forgotten.
  void BeginPull(StateId committed, uint32_t wanted);
  /// Records the running pull's chunks: a delta with its fast payload, a whole chunk without one.
  /// Null when nothing is recorded.
  DeltaBuilder* recording() { return builder_.get(); }
  /// The pull has committed state `to`. Returns what was recorded; null: nothing, or `to` is the
  /// state from before.
  std::shared_ptr<const Delta> Commit(StateId to);
  void Forget();

  /// Adds to `have` which deltas are kept. REQUIRES: `have` describes the committed state.
  void Describe(wire::Have& have) const;
  LogView view() const { return log_.View(); }
  size_t deltas() const { return log_.View().size(); }
  uint64_t bytes() const { return log_.bytes(); }

 private:
  const uint64_t limit_, served_bytes_;
  bool keeps_ = false;  // the running pull's delta is kept
  DeltaLog log_;
  StateId from_;
  std::unique_ptr<DeltaBuilder> builder_;
};

}  // namespace deltawire::receiver
