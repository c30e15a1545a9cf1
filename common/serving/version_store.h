// A model's published states: the newest one, the delta log that leads to it, and earlier states
// rebuilt from both. At and UndoInto walk the later deltas. Thread-safe, with one Install at a
// time. Errors name model, version and tensor.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/delta_log.h"
#include "common/delta/version_info.h"
#include "common/serving/encoded_cache.h"
#include "common/serving/model_facts.h"
#include "common/serving/side_file_set.h"
#include "common/serving/way_back.h"

namespace deltawire {

/// A published state, with everything that a pull needs. Immutable, except for `damaged` and the
/// caches.
struct Published {
  VersionInfo info;
  uint64_t serial = 0;  ///< increases with every publish and rollback here; 0: rebuilt by At
  uint32_t half = 0;    ///< the half with its bytes, valid only under a lease
  std::shared_ptr<const std::vector<uint64_t>> digests;  ///< one per chunk
  LogView log;                                           ///< the deltas that lead to it
  std::shared_ptr<const SideFileSet> side_files;
  /// The version's changes per tensor; null when they are unknown (after a restart).
  std::shared_ptr<const std::vector<TensorChange>> tensors;
  std::shared_ptr<EncodedCache> encoded;
  /// Per chunk; not 0: the chunk in the half is corrupt and must not be sent.
  std::unique_ptr<std::atomic<uint8_t>[]> damaged;
  /// For pulls that end at this state when its half may be written to.
  std::shared_ptr<WayBack> back;
};

class VersionStore {
 public:
  /// `model` outlives the store.
  VersionStore(const ModelFacts& model, uint64_t log_bytes)
      : model_(model),
        old_bytes_(std::make_shared<OldBytes::Budget>(model.owned_bytes)),
        log_limit_(log_bytes),
        log_(log_bytes) {}

  /// Limits the deltas that only pulls still hold, as a multiple of the log's limit. One state's
  /// log, and the later deltas that lead back to it, fit.
  static constexpr uint64_t kHeldLogs = 2;

  std::shared_ptr<const Published> newest() const;  ///< null: nothing yet
  /// Returns a state for the caller to fill in. Install sets its serial and log.
  std::shared_ptr<Published> Make(const VersionInfo& info, uint32_t half) const;
  /// Makes `next` the newest state. `delta` leads to it from the state before; null: no delta does,
  /// and the log starts anew.
  void Install(std::shared_ptr<Published> next, std::shared_ptr<const Delta> delta);
  /// Keeps the way back to the bytes of `state`, the end of a pull, while the result lives.
  std::shared_ptr<const void> Pin(const std::shared_ptr<const Published>& state);
  /// Keeps the bytes `before` of a chunk of the newest state that the next version changes, if
  /// pulls need them. `undoable`: the version's delta can undo the change. `may_pin`: a pull may
  /// yet pin the newest state. Copies the chunk at most once for each pinned state.
  void KeepOldBytes(uint32_t chunk, Bytes before, bool undoable, bool may_pin);
  /// Keeps the earlier state that the other half still holds after a restart.
  void KeepEarlier(std::shared_ptr<const Published> state);

  /// Returns the state that was published as `id`. Its lineage, root and attempt are compared
  /// unless they are zero. A rebuilt state has digests and the deltas that lead to it; read its
  /// `half` only under a lease. kAborted when the state is not kept any more, or was never
  /// published here.
  StatusOr<std::shared_ptr<const Published>> At(const Identity& id);

  /// Returns the newest state of that version, for a rollback, if every later delta can be undone.
  /// kNotFound says how far back the log reaches.
  StatusOr<Identity> Reach(uint64_t version) const;
  /// Turns `data` (the bytes of `newest`, all chunks) into the bytes of `target`, and `digests`
  /// with them.
  Status UndoInto(MutableBytes data, const Published& newest, const Identity& target,
                  std::vector<uint64_t>& digests) const;

  /// Returns the side files of that hash if they belong to the newest state, to one that At can
  /// make or a pull still holds, or to one that was replaced lately (a pull may just have ended at
  /// it); else null.
  std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const;

  uint64_t log_bytes() const;
  uint64_t log_limit() const { return log_limit_; }
  /// The bytes held for pulls of earlier states: deltas that have left the log, and old bytes of
  /// chunks.
  uint64_t held_bytes() const;
  /// Sums over the caches of all states that still exist.
  EncodedCache::Counts encoded() const { return encoded_->counts(); }

 private:
  /// A state before one of the log's deltas: log[i].from() is steps_[i].
  struct Step {
    VersionInfo info;
    std::shared_ptr<const SideFileSet> side_files;
  };
  using States = std::vector<std::shared_ptr<const Published>>;
  /// Copies old bytes when the budget is spent: those for the oldest pinned state replace those of
  /// newer ones, first of states that no pull has pinned. The oldest alone always fits.
  std::shared_ptr<const OldBytes> CopyReplacingNewer(
      Bytes before, const std::vector<std::shared_ptr<WayBack>>& wanting);
  /// Earlier states that still exist, the newest first.
  States Earlier() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Returns the bytes of the deltas that these states hold and the log does not. Discards the ways
  /// back of states beyond `limit`, except the newest of them.
  uint64_t HeldDeltas(const States& states, uint64_t limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Published> Rebuild(size_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<size_t> Find(const Identity& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The deltas from `id` to `newest`, oldest first. Empty when there is no such step, or `newest`
  /// is not the newest.
  LogView Since(const Published& newest, const Identity& id) const;
  Status UndoChunk(const ChunkDelta& delta, MutableBytes bytes, uint64_t& digest) const;

  const ModelFacts& model_;
  // Shared by all states: one model's bytes.
  const std::shared_ptr<OldBytes::Budget> old_bytes_;
  const std::shared_ptr<EncodedCache::Totals> encoded_ = std::make_shared<EncodedCache::Totals>();
  const uint64_t log_limit_;
  // Held shared from the copy of old bytes until a way has them, so that its exclusive holder finds
  // all bytes that the budget was spent for. Taken before mu_.
  SharedMutex keeping_;
  mutable CheckedMutex mu_;
  std::shared_ptr<const Published> newest_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Published> kept_ ABSL_GUARDED_BY(mu_);  // from before a restart
  DeltaLog log_ ABSL_GUARDED_BY(mu_);
  std::deque<Step> steps_ ABSL_GUARDED_BY(mu_);
  // States that At has made. Receivers with the same end share one, and its cache.
  std::map<std::pair<StateId, uint64_t>, std::weak_ptr<const Published>> made_ ABSL_GUARDED_BY(mu_);
  // Earlier states that pulls may still hold.
  std::vector<std::weak_ptr<const Published>> held_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<WayBack>> ways_ ABSL_GUARDED_BY(mu_);  // of pinned states
  // By serial, from first_sum_ on: bytes of all deltas up to that state's.
  std::deque<uint64_t> delta_sums_ ABSL_GUARDED_BY(mu_);
  uint64_t first_sum_ ABSL_GUARDED_BY(mu_) = 1;
  // The side files of the states that were replaced last.
  std::deque<std::shared_ptr<const SideFileSet>> last_side_files_ ABSL_GUARDED_BY(mu_);
  uint64_t next_serial_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace deltawire
