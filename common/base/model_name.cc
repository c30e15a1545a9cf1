#include "common/base/model_name.h"

#include <absl/strings/ascii.h>

#include <algorithm>

namespace deltawire {

Status CheckModelName(std::string_view name) {
  const auto allowed = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= kMaxModelName && name[0] != '.' &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return absl::OkStatus();
  }
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not a model name: 1 to {} of the characters A-Z a-z 0-9 . _ -, the "
                "first not '.'",
                name, kMaxModelName);
}

}  // namespace deltawire
