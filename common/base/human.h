// Numbers for people, in logs and on the command line: "1.19 GB", "84 ms". Units are decimal (1 GB
// = 1e9 bytes).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/sync.h"

namespace deltawire {

std::string HumanBytes(uint64_t bytes);
std::string HumanSeconds(double seconds);
std::string HumanRate(double bytes_per_second);

inline double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

}  // namespace deltawire
