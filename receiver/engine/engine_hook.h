// Makes the calls that an EngineCourse decides on, to one engine. One implementation speaks HTTP
// (http_hook.cc), one starts a program (exec_hook.cc), one writes to a disk (disk_delta_hook.cc).
// One thread makes the calls, which block for `limit` at most; any thread may cancel.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "common/base/identity.h"
#include "common/config/engine_options.h"
#include "receiver/engine/engine_access.h"
#include "receiver/engine/engine_call.h"

namespace deltawire::receiver {

/// The facts about a model that an engine needs.
struct EngineModel {
  std::string name;
  std::filesystem::path directory;
};

class EngineHook {
 public:
  virtual ~EngineHook() = default;
  /// Asks whether the engine sleeps, before a call that must not reach one that does. `slept`: it
  /// did when it was last asked. Done: it is awake, and `paused` says whether it holds requests.
  virtual EngineAnswer AskSleep(bool /*slept*/, std::chrono::milliseconds /*limit*/) { return {}; }
  /// `to`: the version that the call is about.
  virtual EngineAnswer Make(EngineCall call, const Identity& to,
                            std::chrono::milliseconds limit) = 0;
  /// Ends a running call soon, and every later one at once, as kUnsure.
  virtual void Cancel() = 0;
};

/// `access`: loaded from `options`; may be null if they name no file and no https. REQUIRES:
/// `options.kind` has a URL.
std::unique_ptr<EngineHook> MakeHttpHook(const EngineOptions& options, const EngineModel& model,
                                         std::shared_ptr<EngineAccess> access);
/// REQUIRES: `options.kind` is kExec.
std::unique_ptr<EngineHook> MakeExecHook(const EngineOptions& options, const EngineModel& model);

/// REQUIRES: `options.kind` is kDiskDelta.
std::unique_ptr<EngineHook> MakeDiskDeltaHook(const EngineOptions& options,
                                              const EngineModel& model);

inline std::unique_ptr<EngineHook> MakeHook(const EngineOptions& options, const EngineModel& model,
                                            std::shared_ptr<EngineAccess> access = nullptr) {
  if (options.kind == EngineKind::kExec) return MakeExecHook(options, model);
  if (options.kind == EngineKind::kDiskDelta) return MakeDiskDeltaHook(options, model);
  return MakeHttpHook(options, model, std::move(access));
}

}  // namespace deltawire::receiver
