// The file beside a model's state that lists the chunks of an agent that owns a part
// (docs/lifecycle.md, "A part of a model"). kDataLoss names a file that is corrupt or another
// model's.
#pragma once

#include <filesystem>

#include "common/base/status.h"
#include "common/layout/coverage.h"

namespace deltawire::sender {

/// Replaces the file atomically, or removes it if `coverage` has all chunks.
Status WriteOwnedFile(const std::filesystem::path& path, const Coverage& coverage);
/// Returns all of `chunks` if there is no file.
StatusOr<Coverage> ReadOwnedFile(const std::filesystem::path& path, uint32_t chunks);

}  // namespace deltawire::sender
