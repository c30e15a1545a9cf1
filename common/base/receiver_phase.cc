#include "common/base/receiver_phase.h"

#include <algorithm>
#include <iterator>

namespace deltawire {
namespace {

// Indexed by the enum's value.
constexpr std::string_view kPhaseNames[] = {
    "",
    "unknown",
    "starting",
    "idle",
    "pulling",
    "applying",
    "paused",
    "failed",
    "waiting for version",
    "waiting for reader",
    "prepared",
    "asked",
    "committed",
};
static_assert(std::size(kPhaseNames) == static_cast<size_t>(ReceiverPhase::kCommitted) + 1);

}  // namespace

std::string_view ToString(ReceiverPhase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

ReceiverPhase ParseReceiverPhase(std::string_view name) {
  const auto* const found = std::find(std::begin(kPhaseNames), std::end(kPhaseNames), name);
  if (found == std::end(kPhaseNames)) return ReceiverPhase::kUnknown;
  return static_cast<ReceiverPhase>(found - std::begin(kPhaseNames));
}

}  // namespace deltawire
