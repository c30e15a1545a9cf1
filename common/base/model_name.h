// The rule for a model's name, which is also its directory's name and a word on command lines.
// A pure function. Errors: kInvalidArgument, with the name and the rule.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace deltawire {

inline constexpr size_t kMaxModelName = 128;

Status CheckModelName(std::string_view name);

}  // namespace deltawire
