// One --group of a sender: "[MODEL:]NAME=ID[,ID...]". A plain value and its parser.
// Errors: kInvalidArgument, with the text and what is expected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire {

struct GroupOptions {
  std::string model;  ///< empty: of every model
  std::string name;
  std::vector<std::string> members;  ///< receiver ids
  friend bool operator==(const GroupOptions&, const GroupOptions&) = default;
};

StatusOr<GroupOptions> ParseGroup(std::string_view text);
/// No name twice, and no receiver in two groups, of one model.
Status CheckGroups(const std::vector<GroupOptions>& groups);

}  // namespace deltawire
