// Quantities as a fleet's file writes them: "5 Gbit/s", "2 TB", "128 MiB", "20 ms", "3 %", or a
// plain number in the base unit. Pure functions. Errors: kInvalidArgument says what was expected.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace deltawire::plan {

StatusOr<double> ParseBytes(std::string_view text);    ///< B, kB, MB, GB, TB, KiB .. TiB
StatusOr<double> ParseRate(std::string_view text);     ///< bytes/s: GB/s, Mbit/s, Gbit/s, ...
StatusOr<double> ParseSeconds(std::string_view text);  ///< us, ms, s, min, h
StatusOr<double> ParseShare(std::string_view text);    ///< "3 %" or "0.03"
StatusOr<double> ParseCount(std::string_view text);    ///< "160 M", of things a second

}  // namespace deltawire::plan
