// Removes a model's files: the halves, the state, the side files and the directory. Errors name the
// path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace deltawire::sender {

struct RemovedModel {
  uint64_t freed_bytes = 0;  ///< memory of the removed files
  /// Entries that the sender does not know, at most kMostLeft. They and the directory stay.
  std::vector<std::string> left;
};
inline constexpr size_t kMostLeft = 16;

/// Takes the directory's lock, and removes the state file first, so that the rest is no model after
/// a crash. A link to the directory stays. OK if there is no such directory. kAlreadyExists if
/// another process owns it.
StatusOr<RemovedModel> RemoveModelFiles(const std::filesystem::path& dir, const std::string& group);

}  // namespace deltawire::sender
