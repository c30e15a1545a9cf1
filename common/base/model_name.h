// The rule for the names of models and of groups. Both are words on command lines, and a model's
// name is also its directory's. Errors are kInvalidArgument, with the name and the rule.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace deltawire {

inline constexpr size_t kMaxModelName = 128;

Status CheckModelName(std::string_view name);
Status CheckGroupName(std::string_view name);

}  // namespace deltawire
