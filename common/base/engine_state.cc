#include "common/base/engine_state.h"

#include <iterator>

namespace deltawire {
namespace {

// Indexed by the enum's value.
constexpr std::string_view kStateNames[] = {
    "waiting",  "unreachable", "preparing", "updating", "serving",
    "retrying", "paused",      "behind",    "out",      "asleep",
};
static_assert(std::size(kStateNames) == static_cast<size_t>(EngineState::kAsleep) + 1);

}  // namespace

std::string_view ToString(EngineState state) { return kStateNames[static_cast<size_t>(state)]; }

}  // namespace deltawire
