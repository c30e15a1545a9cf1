#include "receiver/engine/engine_call.h"

#include <iterator>

namespace deltawire::receiver {
namespace {

// Indexed by the enum's value.
constexpr std::string_view kCalls[] = {
    "probe", "ask",  "clear",  "prepare",  "attach", "pause", "reload", "load",
    "flush", "name", "resume", "rollback", "sample", "prove", "check",
};
static_assert(std::size(kCalls) == static_cast<size_t>(EngineCall::kCheck) + 1);

}  // namespace

std::string_view ToString(EngineCall call) { return kCalls[static_cast<size_t>(call)]; }

EngineTraits TraitsOf(EngineKind kind) {
  switch (kind) {
    case EngineKind::kVllm:
      return {.prepares = true,
              .asks = true,
              .pauses = true,
              .flushes = true,
              .names = true,
              .rolls_back = true,
              .proves = true,
              .probes = true,
              .sleeps = true,
              .checks = true,
              .reload_spoils = true};
    case EngineKind::kVllmReload:
      return {.pauses = true,
              .flushes = true,
              .names = true,
              .probes = true,
              .sleeps = true,
              .reload_spoils = true};
    case EngineKind::kSglang:
      return {.prepares = true,
              .pauses = true,
              .rolls_back = true,
              .proves = true,
              .probes = true,
              .checks = true};
    case EngineKind::kSglangReload:
      return {.pauses = true, .probes = true};
    case EngineKind::kHttp:
    case EngineKind::kExec:
    case EngineKind::kDiskDelta:
      return {};
  }
  return {};
}

std::string VersionName(const Identity& id) { return std::to_string(id.id.version); }

}  // namespace deltawire::receiver
