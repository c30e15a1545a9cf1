// Text that an engine, a gateway or a program of somebody else's wrote, before it goes into a log
// line, a status or an error. All such text goes through here. Pure functions; threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deltawire::receiver {

/// Characters of an engine's error or of a line that a program has printed.
inline constexpr size_t kMostForeign = 500;
/// Characters of a version's name.
inline constexpr size_t kMostForeignName = 64;

/// One line of printable ASCII, cut after `most` characters. Each of `keys` is "[key]" in it, also
/// where JSON has escaped it.
std::string Foreign(std::string text, std::vector<std::string> keys = {},
                    size_t most = kMostForeign);

}  // namespace deltawire::receiver
