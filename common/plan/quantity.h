// The quantities of a fleet's file: "5 Gbit/s", "2 TB", "128 MiB", "20 ms", "3 %", or a plain
// number in the base unit. kInvalidArgument names the expected form.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace deltawire::plan {

StatusOr<double> ParseBytes(std::string_view text);    ///< B, kB, MB, GB, TB, KiB .. TiB
StatusOr<double> ParseRate(std::string_view text);     ///< bytes/s: GB/s, Mbit/s, Gbit/s, ...
StatusOr<double> ParseSeconds(std::string_view text);  ///< us, ms, s, min, h
StatusOr<double> ParseShare(std::string_view text);    ///< "3 %" or "0.03"
StatusOr<double> ParseCount(std::string_view text);    ///< "160 M", things per second

}  // namespace deltawire::plan
