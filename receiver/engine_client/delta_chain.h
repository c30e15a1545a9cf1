// The chain of delta files that leads an engine from one committed version to another.
#pragma once

#include <filesystem>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/identity.h"
#include "common/base/status.h"

namespace deltawire::engine {

/// Returns the files in `folder` that lead from one state to the other, in order. Waits for the
/// last of them, which the receiver writes after the commit, for as long as it may take. kNotFound
/// and kOutOfRange: there is no such chain.
StatusOr<std::vector<std::filesystem::path>> AwaitDeltaChain(const std::filesystem::path& folder,
                                                             const Hash128& fingerprint,
                                                             const Identity& from,
                                                             const Identity& to);

}  // namespace deltawire::engine
