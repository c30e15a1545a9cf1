// Keeps one engine at the committed version: makes the calls that its EngineCourse decides on, and
// holds the directory while the engine reads it. It has a thread of its own, which waits for no
// other engine. Errors are in view(). Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/stages.h"
#include "common/base/sync.h"
#include "common/base/trace.h"
#include "receiver/engine/engine_course.h"
#include "receiver/engine/engine_hook.h"

namespace deltawire::receiver {

/// The directory of a model that follows a sender, as engines see it. Thread-safe; methods do not
/// block.
class EngineSource {
 public:
  virtual ~EngineSource() = default;
  /// Returns the version that engines may get: the one committed last; empty: none yet.
  virtual Identity Ready() = 0;
  /// Keeps the directory at `id` until Release, or until `until` at the latest, since a call may
  /// hang in the kernel. Returns false if it is at another version or being changed. Updates that
  /// wait name `reader`.
  virtual bool Hold(const Identity& id, const std::string& reader,
                    SteadyClock::time_point until) = 0;
  virtual void Release(const std::string& reader) = 0;
};

class EngineDriver {
 public:
  struct View : EngineCourse::View {
    std::string name;
    EngineKind kind{};
    int64_t served_unix_nanos = 0;  ///< when it began to serve `served`
  };
  struct Settings {
    EngineOptions options;
    EngineModel model;
    EngineCourse::Policy policy;
    /// The limit of one request. The directory is held for twice as long at most.
    std::chrono::milliseconds call_limit{120000};
    StageObserver stages = {};                  ///< observes each update that succeeds
    std::shared_ptr<EngineAccess> access = {};  ///< for MakeHook; null: none
  };

  /// The driver's thread calls `served` with the view when the engine begins to serve a version,
  /// and `called` after each call to the engine, or when one could not be made.
  EngineDriver(
      Settings settings, std::unique_ptr<EngineHook> hook, EngineSource& source,
      std::function<void(const View&)> served, std::function<void()> called = [] {});
  /// Stops it.
  ~EngineDriver();

  /// Notes that a version is ready. If the engine can take it now, the directory is held when this
  /// returns.
  void NoteReady();
  View view() const;
  /// Asks the engine to compare its memory with the version that it serves, as soon as that is the
  /// newest. Returns the number for View::CheckAfter; nullopt: engines of this kind cannot.
  std::optional<uint64_t> AskCheck();
  /// Begins to stop. An engine that is paused for an update gets kGrace for the rest of it.
  void Stop();
  /// Stops, and waits until the last call has ended.
  void Join();
  static constexpr std::chrono::milliseconds kGrace{1000};

 private:
  void Run();
  /// Holds or releases the directory, as `action` needs it.
  bool HoldFor(const EngineCourse::Action& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Releases mu_ during the call.
  void Call(const EngineCourse::Action& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Makes the call within its limit.
  EngineAnswer Ask(const EngineCourse::Action& action, SteadyClock::time_point hold_end)
      ABSL_LOCKS_EXCLUDED(mu_);
  View MakeView() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogChange(const EngineCourse::View& before, const EngineCourse::View& after,
                 const Identity& to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReportStages(const EngineCourse::View& update) const ABSL_LOCKS_EXCLUDED(mu_);

  const Settings settings_;
  const std::string name_, reader_;
  const std::unique_ptr<EngineHook> hook_;
  EngineSource& source_;
  const std::function<void(const View&)> served_;
  const std::function<void()> called_;

  mutable CheckedMutex mu_;
  CondVar cv_;
  EngineCourse course_ ABSL_GUARDED_BY(mu_);
  bool calling_ ABSL_GUARDED_BY(mu_) = false;
  bool holding_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  SteadyClock::time_point stop_at_ ABSL_GUARDED_BY(mu_){};
  SteadyClock::time_point hold_end_ ABSL_GUARDED_BY(mu_){};
  int64_t served_unix_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  TraceId failed_ ABSL_GUARDED_BY(mu_);  // the version whose failure the log has
  Thread thread_;
};

}  // namespace deltawire::receiver
