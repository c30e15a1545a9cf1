#include "common/base/model_name.h"

#include <absl/strings/ascii.h>

#include <algorithm>

namespace deltawire {
namespace {

Status CheckName(std::string_view name, std::string_view of) {
  const auto allowed = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= kMaxModelName && name[0] != '.' &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return absl::OkStatus();
  }
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not a {} name: 1 to {} of the characters A-Z a-z 0-9 . _ -, the "
                "first not '.'",
                name, of, kMaxModelName);
}

}  // namespace

Status CheckModelName(std::string_view name) { return CheckName(name, "model"); }

Status CheckGroupName(std::string_view name) { return CheckName(name, "group"); }

}  // namespace deltawire
