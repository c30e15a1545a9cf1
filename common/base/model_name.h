// The rule for the names of models and of groups. A model's is also its directory's name; both are
// words on command lines. Pure functions. Errors: kInvalidArgument, with the name and the rule.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace deltawire {

inline constexpr size_t kMaxModelName = 128;

Status CheckModelName(std::string_view name);
/// Of a group of receivers.
Status CheckGroupName(std::string_view name);

}  // namespace deltawire
