// Where served pulls take their states from: what is published, the deltas that lead to it, and its
// bytes. The agent's model is one, and so is what a receiver relays.
// Owner: its daemon, by shared_ptr; pulls hold one too. Threads: every method from any.
// Cost: see the implementations. Errors name the model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/serving/version_store.h"
#include "kernels/kernels.h"

namespace deltawire {

/// The published state together with the promise that its half's bytes stay. `lease` is null while
/// these bytes are being changed.
struct LeasedState {
  std::shared_ptr<const Published> state;
  std::shared_ptr<const void> lease;
};

class StateSource {
 public:
  virtual ~StateSource() = default;

  virtual const std::string& name() const = 0;
  virtual const Layout& layout() const = 0;
  virtual const ChunkTable& chunks() const = 0;
  /// The chunks that are published here. All others are never read, sent or counted.
  virtual const Coverage& owned() const = 0;
  virtual uint64_t owned_bytes() const = 0;
  virtual const kernels::DigestKey& key() const = 0;
  virtual const kernels::Backend& backend() const = 0;
  virtual ThreadPool& pool() = 0;
  uint64_t digest_seed() const { return key().seed(); }

  /// Null: nothing yet.
  virtual std::shared_ptr<const Published> published() const = 0;
  /// The published state, with a lease of its half if that can be had; null state when nothing is
  /// published.
  virtual LeasedState Lease() = 0;
  /// The bytes of a half. REQUIRES: a lease of it.
  virtual Bytes half(uint32_t i) const = 0;
  /// A lease: while the caller holds it, `half` keeps the bytes of `id`. Null when the half has
  /// other bytes or may be written to.
  virtual std::shared_ptr<const void> LeaseHalf(uint32_t half, const Identity& id) = 0;
  /// See VersionStore::At.
  virtual StatusOr<std::shared_ptr<const Published>> At(const Identity& id) = 0;
  /// Side files of the published version; before there is one, those that the first will have.
  virtual std::shared_ptr<const SideFileSet> side_files() const = 0;
  /// The set of that hash, if it belongs to the published version or to one that a pull may still
  /// end at; else null.
  virtual std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const = 0;
  /// Compares one chunk of the newest state with its digest at once, as the scrub would.
  virtual void Recheck(uint32_t chunk) = 0;
  /// What brings a chunk back that has lost its digest, for messages.
  virtual std::string_view healed_by() const {
    return "a version in which the trainer writes that tensor";
  }
  /// Counts pulls that may yet pin the newest state: what a version changes of it is kept.
  virtual void CountPull(int change) = 0;
  /// See VersionStore::Pin.
  virtual std::shared_ptr<const void> Pin(const std::shared_ptr<const Published>& state) = 0;
  virtual uint64_t log_limit() const = 0;
};

/// The info that receivers are sent about `state`; null means that nothing is published. The side
/// files' hash is set either way.
inline VersionInfo InfoOf(const StateSource& source, const Published* state) {
  VersionInfo info;
  if (state != nullptr) info = state->info;
  if (info.side_files_hash == 0) info.side_files_hash = source.side_files()->hash;
  return info;
}

}  // namespace deltawire
