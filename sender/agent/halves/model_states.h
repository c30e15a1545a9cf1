// The published states of one model on the trainer's node, and their bytes: the StateSource of its
// pulls. It takes two halves, the delta log and 16 bytes per chunk. Thread-safe. Errors name the
// model and the version.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/serving/state_source.h"
#include "sender/agent/halves/halves.h"
#include "sender/agent/halves/model_home.h"
#include "sender/agent/halves/scrubber.h"

namespace deltawire::sender {

class ModelStates : public StateSource {
 public:
  ModelStates(std::unique_ptr<const ModelHome> home, uint64_t delta_log_bytes, ThreadPool& pool);

  std::shared_ptr<const SideFileSet> side_files() const override;
  std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const override;
  LeasedState Lease() override;
  Bytes half(uint32_t i) const override { return std::as_const(home_->halves()).data(i); }
  StatusOr<std::shared_ptr<const Published>> At(const Identity& id) override {
    return store().At(id);
  }
  std::shared_ptr<const void> LeaseHalf(uint32_t half, const Identity& id) override {
    return home_->halves().Lease(half, id);
  }
  void Recheck(uint32_t chunk) override;

  /// Publishes an earlier process's version, and keeps the version before it if its half is whole.
  Status Restore();
  /// The half for the next version.
  uint32_t InactiveHalf() const;
  /// The state under which `version` will be published. An agent that owns a part may publish the
  /// published number again in the same epoch. Elsewhere that begins the next epoch, as a rollback
  /// does.
  StateId NextState(uint64_t version) const;
  /// See VersionStore::KeepOldBytes.
  void KeepOldBytes(uint32_t chunk, Bytes before, bool undoable) {
    store().KeepOldBytes(chunk, before, undoable, has_pulls());
  }
  /// Fills the half with the bytes of `target`. kDataLoss if a chunk is corrupt.
  Status UndoInto(uint32_t half, const Published& newest, const Identity& target);
  uint64_t damaged_chunks() const;  ///< of the published version
  /// Sets the side files of the next version.
  Status SetSideFiles(std::vector<SideFile> files);

  const ModelHome& home() const { return *home_; }
  Halves& halves() const { return home_->halves(); }
  Scrubber& scrubber() { return scrubber_; }
  const Scrubber& scrubber() const { return scrubber_; }

 private:
  StatusOr<std::shared_ptr<Published>> RestoreHalf(uint32_t half);
  Status CheckUndamaged(const Published& newest, uint64_t version) const;

  const std::unique_ptr<const ModelHome> home_;
  Scrubber scrubber_;
};

}  // namespace deltawire::sender
