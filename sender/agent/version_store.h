// What a model has published: the newest state, the delta log behind it, and states before it made
// from both. Owner: the Model. Threads: any; Install by one at a time. Its lock is a leaf.
// Cost: the log; At and Undo walk the deltas since. Errors name model, version and tensor.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/delta_log.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "kernels/kernels.h"
#include "sender/agent/encoded_cache.h"
#include "sender/agent/kept_chunks.h"
#include "sender/agent/side_file_store.h"
#include "sender/agent/version_info.h"

namespace deltawire::sender {

/// A published state, immutable. Everything that a pull plans from.
struct Published {
  VersionInfo info;
  uint64_t serial = 0;  ///< rises with every publish and rollback of this process; 0: made by At
  uint32_t half = 0;    ///< that has its bytes, as long as a lease says so
  std::shared_ptr<const std::vector<uint64_t>> digests;  ///< one per chunk
  LogView log;                                           ///< that leads to it
  std::shared_ptr<const SideFileSet> side_files;
  /// What this version changed, per tensor; null when nobody knows (after a restart).
  std::shared_ptr<const std::vector<TensorChange>> tensors;
  std::shared_ptr<EncodedCache> encoded;
  /// Not 0: the half's chunk was found not to have its digest, and must not be sent.
  std::unique_ptr<std::atomic<uint8_t>[]> damaged;
  /// Its bytes, for pulls that end here, once newer versions have changed too much to go back.
  std::shared_ptr<KeptChunks> kept;
};

class VersionStore {
 public:
  struct Place {
    std::string model;  ///< its name, for messages
    const Layout* layout = nullptr;
    const ChunkTable* chunks = nullptr;
    const kernels::Backend* backend = nullptr;
    const kernels::DigestKey* key = nullptr;
    uint64_t bytes = 0;  ///< of the chunks that are published here
  };
  VersionStore(Place place, uint64_t log_bytes)
      : place_(std::move(place)),
        kept_chunks_(std::make_shared<KeptChunks::Budget>(place_.bytes)),
        log_(log_bytes) {}

  std::shared_ptr<const Published> newest() const;  ///< null: nothing yet
  /// A state to fill in; its serial and log are set by Install.
  std::shared_ptr<Published> Make(const VersionInfo& info, uint32_t half) const;
  /// `next` is the newest from here on; `delta` leads to it (null: nothing does).
  void Install(std::shared_ptr<Published> next, std::shared_ptr<const Delta> delta);
  /// After a restart: a state that the other half still is.
  void KeepEarlier(std::shared_ptr<const Published> state);

  /// What was published as `id`, of which lineage, root and attempt count as far as they are said
  /// (not zero). Digests and the deltas that lead to it; its `half` is only to be read under a
  /// lease. kAborted when it is not kept any more, or not published here.
  StatusOr<std::shared_ptr<const Published>> At(const Identity& id);

  /// The state to roll back to: the newest of that version, if every delta since can be undone.
  /// kNotFound says how far back the log reaches.
  StatusOr<Identity> Reach(uint64_t version) const;
  /// Turns `data` (the newest's bytes, all chunks) into those of `target`, the digests along.
  Status UndoInto(MutableBytes data, const Published& newest, const Identity& target,
                  std::vector<uint64_t>& digests) const;

  /// Side files of the newest state, of one that At can make or a pull still holds, or of one of
  /// the last that were replaced (a pull has just ended at it); null when none has that hash.
  std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const;

  uint64_t log_bytes() const;
  uint64_t log_limit() const { return log_.limit(); }

 private:
  /// A state that the log leads on from: log[i].from() is steps_[i].
  struct Step {
    VersionInfo info;
    std::shared_ptr<const SideFileSet> side_files;
  };
  std::shared_ptr<Published> Rebuild(size_t step) const;  // REQUIRES: mu_ held
  std::optional<size_t> Find(const Identity& id) const;   // REQUIRES: mu_ held
  /// The deltas since `id`, oldest first; empty when there is no such step.
  LogView Since(const Published& newest, const Identity& id) const;
  Status UndoChunk(const ChunkDelta& delta, MutableBytes bytes, uint64_t& digest) const;

  const Place place_;
  const std::shared_ptr<KeptChunks::Budget> kept_chunks_;  // of all states; one model's bytes
  mutable Mutex mu_;
  std::shared_ptr<const Published> newest_;
  std::shared_ptr<const Published> kept_;  // of before a restart
  DeltaLog log_;
  std::deque<Step> steps_;
  // What pulls were pinned to: several receivers share one, and with it what was coded for them.
  std::map<std::pair<StateId, uint64_t>, std::weak_ptr<const Published>> made_;
  std::vector<std::weak_ptr<const Published>> held_;                // by pulls, after Install
  std::deque<std::shared_ptr<const SideFileSet>> last_side_files_;  // that were replaced
  uint64_t next_serial_ = 1;
};

}  // namespace deltawire::sender
