// The file beside a model's state that holds its groups' decisions, so that a restarted sender
// gives every member the same word (docs/groups.md, "The file"). One thread at a time for one path.
// kDataLoss names a corrupt file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/status.h"
#include "sender/agent/fleet/group_course.h"

namespace deltawire::sender {

inline constexpr const char* kGroupFileName = ".deltawire.groups";

struct KeptGroup {
  std::string name;
  bool standing = true;
  std::vector<std::string> members;
  GroupDecision decision;  ///< the state that it names is of the file's lineage
  friend bool operator==(const KeptGroup&, const KeptGroup&) = default;
};

struct KeptGroups {
  Hash128 lineage;  ///< of the model whose groups these are
  std::vector<KeptGroup> groups;
  friend bool operator==(const KeptGroups&, const KeptGroups&) = default;
};

std::string GroupFileText(const KeptGroups& kept);
StatusOr<KeptGroups> ParseGroupFile(std::string_view text);

/// Replaces the file and syncs it. An error or a crash leaves the old file or the new one.
Status WriteGroupFile(const std::filesystem::path& path, const KeptGroups& kept);
/// Returns no groups if there is no file.
StatusOr<KeptGroups> ReadGroupFile(const std::filesystem::path& path);

}  // namespace deltawire::sender
