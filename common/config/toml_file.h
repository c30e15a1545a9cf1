// The part of TOML that an option file needs, read strictly: `key = value` lines and comments.
// Values: strings, integers, booleans, and arrays of strings; no tables, floats, dates or dotted
// keys. Stricter than CLI11's own reader, which takes malformed lines for flags and knows no lines.
// Errors: kInvalidArgument (kNotFound, kPermissionDenied for the file) with file and line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire {

struct TomlItem {
  enum class Kind { kString, kInteger, kBoolean, kStrings };
  std::string key;
  Kind kind = Kind::kString;
  std::vector<std::string> values;  ///< one, except for kStrings; integers in decimal digits
  int line = 0;                     ///< of the key, from 1
};

/// `file` is for messages only. A key that comes twice is an error.
StatusOr<std::vector<TomlItem>> ParseToml(std::string_view text, std::string_view file);
StatusOr<std::vector<TomlItem>> ReadTomlFile(const std::string& path);

}  // namespace deltawire
