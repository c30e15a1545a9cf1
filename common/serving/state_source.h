// The source of served pulls: a model's published states, the deltas that lead to them, and their
// bytes. The agent's Model and a relay's RelayedModel are sources. Thread-safe. Errors name the
// model.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/serving/model_facts.h"
#include "common/serving/version_store.h"

namespace deltawire {

/// The published state together with the promise that its half's bytes stay. `lease` is null while
/// these bytes are being changed.
struct LeasedState {
  std::shared_ptr<const Published> state;
  std::shared_ptr<const void> lease;
};

class StateSource {
 public:
  StateSource(std::shared_ptr<const ModelFacts> facts, uint64_t log_bytes, ThreadPool& pool)
      : facts_(std::move(facts)), store_(*facts_, log_bytes), pool_(pool) {}
  virtual ~StateSource() = default;

  const ModelFacts& facts() const { return *facts_; }
  const std::string& name() const { return facts_->name; }
  const Layout& layout() const { return facts_->layout; }
  const ChunkTable& chunks() const { return facts_->chunks; }
  const Coverage& owned() const { return facts_->owned; }
  uint64_t owned_bytes() const { return facts_->owned_bytes; }
  const kernels::DigestKey& key() const { return facts_->key; }
  const kernels::Backend& backend() const { return facts_->backend; }
  VersionStore& store() { return store_; }
  const VersionStore& store() const { return store_; }
  ThreadPool& pool() { return pool_; }

  /// The newest state; null: nothing is published yet.
  std::shared_ptr<const Published> published() const { return store_.newest(); }
  /// The newest state, with a lease of its half if possible. The state is null when nothing is
  /// published.
  virtual LeasedState Lease() = 0;
  /// The bytes of a half. REQUIRES: a lease of it.
  virtual Bytes half(uint32_t i) const = 0;
  /// Returns a lease: while the caller holds it, `half` keeps the bytes of `id`. Null when the half
  /// has other bytes or may be written to.
  virtual std::shared_ptr<const void> LeaseHalf(uint32_t half, const Identity& id) = 0;
  /// See VersionStore::At.
  virtual StatusOr<std::shared_ptr<const Published>> At(const Identity& id) = 0;
  /// The side files of the published version, or of the first one before there is any.
  virtual std::shared_ptr<const SideFileSet> side_files() const = 0;
  /// The set of that hash if it belongs to the published version, or to one at which a pull may
  /// still end; else null.
  virtual std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const = 0;
  /// Scrubs one chunk of the newest state at once.
  virtual void Recheck(uint32_t chunk) = 0;
  /// The remedy for a corrupt chunk, for messages.
  virtual std::string_view healed_by() const {
    return "a version in which the trainer writes that tensor";
  }
  /// Counts the pulls that may yet pin the newest state. While there are any, the old bytes of
  /// changed chunks are kept.
  void CountPull(int change) { pulls_ += change; }
  bool has_pulls() const { return pulls_ > 0; }

 private:
  const std::shared_ptr<const ModelFacts> facts_;
  VersionStore store_;
  ThreadPool& pool_;
  std::atomic<int> pulls_{0};
};

/// The published version's info, or epoch 0 if there is none.
inline VersionInfo PublishedInfo(const StateSource& source) {
  const auto state = source.published();
  return state == nullptr ? VersionInfo{} : state->info;
}

/// The info about `state` for receivers. A null `state` means that nothing is published. The side
/// files' hash is set either way.
inline VersionInfo InfoOf(const StateSource& source, const Published* state) {
  VersionInfo info;
  if (state != nullptr) info = state->info;
  if (info.side_files_hash == 0) info.side_files_hash = source.side_files()->hash;
  return info;
}

}  // namespace deltawire
