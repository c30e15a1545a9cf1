#include "common/base/stages.h"

#include <iterator>

namespace deltawire {
namespace {

// Indexed by the enum's value.
constexpr std::string_view kStageNames[] = {
    "wait",  "offload",  "diff",  "publish", "connect", "encode", "send",    "deliver", "queue",
    "ahead", "transfer", "stage", "readers", "apply",   "commit", "prepare", "pause",   "load",
};
static_assert(std::size(kStageNames) == static_cast<size_t>(Stage::kLoad) + 1);

}  // namespace

std::string_view ToString(Stage stage) { return kStageNames[static_cast<size_t>(stage)]; }

}  // namespace deltawire
