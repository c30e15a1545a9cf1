// The side files (config.json, tokenizer) of one version, in memory. Immutable. Errors name the
// file.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/layout/model_dir.h"

namespace deltawire {

/// Files sorted by name, and the hash that names the set: XXH3-64 of each file's two sizes, name
/// and content.
struct SideFileSet {
  std::vector<SideFile> files;
  uint64_t hash = 0;
};

/// kInvalidArgument: a name that is not a plain file name, names a weight file or occurs twice; too
/// many bytes.
StatusOr<std::shared_ptr<const SideFileSet>> MakeSideFileSet(std::vector<SideFile> files);

}  // namespace deltawire
