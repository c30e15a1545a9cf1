// Writes each version to a disk, for engines that apply chains of deltas themselves. A version
// counts as served when its directory is there.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "common/base/sync.h"
#include "receiver/disk_delta/disk_delta.h"
#include "receiver/engine/engine_hook.h"

namespace deltawire::receiver {
namespace {

constexpr std::chrono::milliseconds kStopSlice{50};
/// The time for a cancelled write to remove its files.
constexpr std::chrono::seconds kStopGrace{2};

/// A writer, shared with the thread that uses it. That thread may hang in the kernel until the
/// process ends, as on NFS when its server is gone, so it is never joined.
struct Writing {
  explicit Writing(const DiskDeltaOptions& options) : writer(options) {}

  DiskDelta writer;  // of the thread that runs
  std::atomic<bool> stop{false};
  Mutex mu;
  CondVar news;
  bool running = false;
  Status result;
};

class DiskDeltaHook : public EngineHook {
 public:
  DiskDeltaHook(const EngineOptions& options, EngineModel model)
      : model_(std::move(model)),
        directory_(options.directory),
        writing_(std::make_shared<Writing>(DiskDeltaOptions{
            .directory = options.directory,
            .encoding = options.overwrite ? DiskDeltaEncoding::kOverwrite : DiskDeltaEncoding::kXor,
            .keep = options.keep})) {}

  EngineAnswer Make(EngineCall, const Identity& to, std::chrono::milliseconds limit) override {
    const auto end = SteadyClock::now() + limit;
    Writing& writing = *writing_;
    std::unique_lock lock(writing.mu);
    AwaitEnd(lock, end);  // of a write before, which was left
    if (cancelled_) return {EngineAnswer::Result::kUnsure, kStopping, {}};
    if (!writing.running) {
      writing.stop = false;
      std::thread([shared = writing_, model = model_.directory, to, end] {
        const auto stop = [&] { return shared->stop.load() || SteadyClock::now() >= end; };
        const Status written = shared->writer.Write(model, to, stop);
        std::lock_guard guard(shared->mu);
        shared->result = written;
        shared->running = false;
        shared->news.notify_all();
      }).detach();
      writing.running = true;
      AwaitEnd(lock, end);
      if (writing.running) {
        writing.stop = true;
        writing.news.wait_for(lock, kStopGrace, [&] { return !writing.running; });
      }
      if (!writing.running && writing.result.ok()) return {};
    }
    if (cancelled_) return {EngineAnswer::Result::kUnsure, kStopping, {}};
    return {EngineAnswer::Result::kRefused,
            writing.running
                ? fmt::format("{} does not answer; look at the file system there", directory_)
                : std::string(MessageOf(writing.result)),
            {}};
  }

  void Cancel() override { cancelled_ = true; }

 private:
  /// Returns when no write runs, at `end`, or soon after Cancel.
  void AwaitEnd(std::unique_lock<Mutex>& lock, SteadyClock::time_point end) {
    while (writing_->running && !cancelled_ && SteadyClock::now() < end) {
      writing_->news.wait_for(lock, kStopSlice);
    }
  }

  const EngineModel model_;
  const std::string directory_;
  const std::shared_ptr<Writing> writing_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

std::unique_ptr<EngineHook> MakeDiskDeltaHook(const EngineOptions& options,
                                              const EngineModel& model) {
  return std::make_unique<DiskDeltaHook>(options, model);
}

}  // namespace deltawire::receiver
