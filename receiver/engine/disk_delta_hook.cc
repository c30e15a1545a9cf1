// Writes each version to a disk, for engines that apply chains of deltas themselves. A version
// counts as served when its directory is there.
#include <atomic>

#include "common/base/sync.h"
#include "receiver/disk_delta/disk_delta.h"
#include "receiver/engine/engine_hook.h"

namespace deltawire::receiver {
namespace {

class DiskDeltaHook : public EngineHook {
 public:
  DiskDeltaHook(const EngineOptions& options, EngineModel model)
      : model_(std::move(model)),
        writer_({.directory = options.directory,
                 .encoding =
                     options.overwrite ? DiskDeltaEncoding::kOverwrite : DiskDeltaEncoding::kXor,
                 .keep = options.keep}) {}

  EngineAnswer Make(EngineCall, const Identity& to, std::chrono::milliseconds limit) override {
    const auto end = SteadyClock::now() + limit;
    const Status written = writer_.Write(model_.directory, to, [this, end] {
      return cancelled_.load() || SteadyClock::now() >= end;
    });
    if (written.ok()) return {};
    if (cancelled_) return {EngineAnswer::Result::kUnsure, kStopping, {}};
    return {EngineAnswer::Result::kRefused, std::string(MessageOf(written)), {}};
  }

  void Cancel() override { cancelled_ = true; }

 private:
  const EngineModel model_;
  DiskDelta writer_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

std::unique_ptr<EngineHook> MakeDiskDeltaHook(const EngineOptions& options,
                                              const EngineModel& model) {
  return std::make_unique<DiskDeltaHook>(options, model);
}

}  // namespace deltawire::receiver
