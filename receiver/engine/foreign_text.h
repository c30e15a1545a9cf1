// Text of an engine, a gateway or another program, made safe for a log line, a status or an error.
// All such text goes through here.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deltawire::receiver {

/// Characters of an engine's error, or of a line of a program's output.
inline constexpr size_t kMostForeign = 500;
/// Characters of a version's name.
inline constexpr size_t kMostForeignName = 64;

/// Returns one line of printable ASCII, cut after `most` characters. Each of `keys` becomes
/// "[key]", also where JSON has escaped it.
std::string QuoteForeign(std::string text, std::vector<std::string> keys = {},
                         size_t most = kMostForeign);

}  // namespace deltawire::receiver
