// The file beside a model's state that lists the chunks which the agent owns, unless it owns all of
// them (docs/lifecycle.md, "A part of a model"). kDataLoss names a file that is damaged or belongs
// to another model.
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
