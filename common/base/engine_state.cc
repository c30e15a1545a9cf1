#include "common/base/engine_state.h"

#include <iterator>

namespace deltawire {
namespace {

// Indexed by the enum's value.
constexpr std::string_view kNames[] = {
    "waiting",  "unreachable", "preparing", "updating", "serving",
    "retrying", "paused",      "behind",    "out",      "asleep",
};
static_assert(std::size(kNames) == static_cast<size_t>(EngineState::kAsleep) + 1);

}  // namespace

std::string_view ToString(EngineState state) { return kNames[static_cast<size_t>(state)]; }

}  // namespace deltawire
