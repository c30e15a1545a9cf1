// The file beside a model's state that says which chunks the agent owns, when it is not all of them
// (docs/lifecycle.md, "A part of a model"). No owner; not thread-safe for one path.
// Errors: kDataLoss for a file that is not whole or not of this model, naming it.
#pragma once

#include <filesystem>

#include "common/base/status.h"
#include "common/layout/coverage.h"

namespace deltawire::sender {

/// Writes `coverage` to `path`, atomically; a coverage of all chunks removes the file.
Status WriteOwnedFile(const std::filesystem::path& path, const Coverage& coverage);
/// All of `chunks` when there is no file.
StatusOr<Coverage> ReadOwnedFile(const std::filesystem::path& path, uint32_t chunks);

}  // namespace deltawire::sender
