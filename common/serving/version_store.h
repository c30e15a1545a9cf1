// What a model has published: the newest state, the delta log that leads to it, and earlier states
// rebuilt from both. Owner: the Model. Threads: any; Install by one at a time. Its locks are
// leaves. Cost: the log; At and UndoInto walk the later deltas. Errors name model, version and
// tensor.
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
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/serving/encoded_cache.h"
#include "common/serving/side_file_set.h"
#include "common/serving/way_back.h"
#include "kernels/kernels.h"

namespace deltawire {

/// A published state: everything that a pull is planned from. Immutable, except for `damaged` and
/// the caches.
struct Published {
  VersionInfo info;
  uint64_t serial = 0;  ///< rises with every publish and rollback of this process; 0: rebuilt by At
  uint32_t half = 0;    ///< the half with its bytes, valid only under a lease
  std::shared_ptr<const std::vector<uint64_t>> digests;  ///< one per chunk
  LogView log;                                           ///< the deltas that lead to it
  std::shared_ptr<const SideFileSet> side_files;
  /// What this version changed, per tensor; null when nobody knows (after a restart).
  std::shared_ptr<const std::vector<TensorChange>> tensors;
  std::shared_ptr<EncodedCache> encoded;
  /// Per chunk; not 0: the chunk in the half was found to lack its digest, and must not be sent.
  std::unique_ptr<std::atomic<uint8_t>[]> damaged;
  /// For pulls that end at this state when its half may be written to.
  std::shared_ptr<WayBack> back;
};

class VersionStore {
 public:
  struct Context {
    std::string model;  ///< its name, for messages
    const Layout* layout = nullptr;
    const ChunkTable* chunks = nullptr;
    const kernels::Backend* backend = nullptr;
    const kernels::DigestKey* key = nullptr;
    uint64_t bytes = 0;  ///< of the chunks that are published here
  };
  VersionStore(Context context, uint64_t log_bytes)
      : context_(std::move(context)),
        old_bytes_(std::make_shared<OldBytes::Budget>(context_.bytes)),
        log_limit_(log_bytes),
        log_(log_bytes) {}

  /// Limits the deltas that the log has dropped and pulls still hold, as a multiple of the log's
  /// limit. One state's log, and the later deltas that lead back to it, fit.
  static constexpr uint64_t kHeldLogs = 2;

  std::shared_ptr<const Published> newest() const;  ///< null: nothing yet
  /// A state for the caller to fill in; Install sets its serial and log.
  std::shared_ptr<Published> Make(const VersionInfo& info, uint32_t half) const;
  /// Makes `next` the newest state. `delta` leads to it from the state before; null: no delta does,
  /// and the log starts anew.
  void Install(std::shared_ptr<Published> next, std::shared_ptr<const Delta> delta);
  /// A pull ends at `state`, as long as the result lives: what leads back to its bytes is kept.
  std::shared_ptr<const void> Pin(const std::shared_ptr<const Published>& state);
  /// The version that is being made changes a chunk, whose bytes in the newest state are `before`.
  /// `undoable`: its delta can undo that. `may_pin`: a pull may yet pin the newest state. Cheap
  /// where no pull needs a way back; else copies the chunk at most once for each pinned state.
  void Changing(uint32_t chunk, Bytes before, bool undoable, bool may_pin);
  /// Keeps, after a restart, the earlier state that the other half still holds.
  void KeepEarlier(std::shared_ptr<const Published> state);

  /// The state that was published as `id`; its lineage, root and attempt are compared unless they
  /// are zero. A rebuilt state has digests and the deltas that lead to it; read its `half` only
  /// under a lease. kAborted when the state is not kept any more, or was not published here.
  StatusOr<std::shared_ptr<const Published>> At(const Identity& id);

  /// The newest state of that version, for a rollback, if every later delta can be undone.
  /// kNotFound says how far back the log reaches.
  StatusOr<Identity> Reach(uint64_t version) const;
  /// Turns `data` (the bytes of `newest`, all chunks) into the bytes of `target`, and `digests`
  /// with them.
  Status UndoInto(MutableBytes data, const Published& newest, const Identity& target,
                  std::vector<uint64_t>& digests) const;

  /// The side files of that hash, if they belong to the newest state, to one that At can make or a
  /// pull still holds, or to one of the last that were replaced (a pull may just have ended at it);
  /// else null.
  std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const;

  uint64_t log_bytes() const;
  uint64_t log_limit() const { return log_limit_; }
  /// Returns the bytes held for pulls of earlier states: dropped deltas, and old bytes of chunks.
  uint64_t held_bytes() const;
  /// Sums over the caches of all states that somebody still holds.
  EncodedCache::Counts encoded() const { return encoded_->counts(); }

 private:
  /// A state before one of the log's deltas: log[i].from() is steps_[i].
  struct Step {
    VersionInfo info;
    std::shared_ptr<const SideFileSet> side_files;
  };
  using States = std::vector<std::shared_ptr<const Published>>;
  /// Where the budget is spent: the old bytes of the oldest pinned state replace those of newer
  /// ones, first of states that no pull has pinned. The oldest alone always fits.
  std::shared_ptr<const OldBytes> CopyInPlaceOfNewer(
      Bytes before, const std::vector<std::shared_ptr<WayBack>>& wanting);
  /// Earlier states that somebody holds, the newest first.
  States Earlier() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Bytes of the deltas that these states hold and the log does not. States beyond `limit` are
  /// given up, but not the newest of them.
  uint64_t HeldDeltas(const States& states, uint64_t limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Published> Rebuild(size_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<size_t> Find(const Identity& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The deltas from `id` to `newest`, oldest first; empty when there is no such step, or `newest`
  /// is not the newest.
  LogView Since(const Published& newest, const Identity& id) const;
  Status UndoChunk(const ChunkDelta& delta, MutableBytes bytes, uint64_t& digest) const;

  const Context context_;
  // Shared by all states; one model's bytes in all.
  const std::shared_ptr<OldBytes::Budget> old_bytes_;
  const std::shared_ptr<EncodedCache::Totals> encoded_ = std::make_shared<EncodedCache::Totals>();
  const uint64_t log_limit_;
  // Shared from when old bytes are copied until a way has them, so that whoever holds it alone
  // finds all that the budget was spent for. Taken before mu_.
  SharedMutex keeping_;
  mutable CheckedMutex mu_;
  std::shared_ptr<const Published> newest_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Published> kept_ ABSL_GUARDED_BY(mu_);  // kept from before a restart
  DeltaLog log_ ABSL_GUARDED_BY(mu_);
  std::deque<Step> steps_ ABSL_GUARDED_BY(mu_);
  // States that pulls were pinned to: receivers with the same end share one, and its cache.
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
