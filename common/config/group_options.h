// One --group of a sender: "[MODEL:]NAME=ID[,ID...]". Errors are kInvalidArgument, with the text
// and the expected form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire {

struct GroupOptions {
  std::string model;  ///< empty: all models
  std::string name;
  std::vector<std::string> members;  ///< receiver ids
  friend bool operator==(const GroupOptions&, const GroupOptions&) = default;
};

StatusOr<GroupOptions> ParseGroup(std::string_view text);
/// Checks that within a model no name occurs twice and no receiver is in two groups.
Status CheckGroups(const std::vector<GroupOptions>& groups);

}  // namespace deltawire
