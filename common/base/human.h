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
/// Returns the time that `bytes` take at a rate. REQUIRES: bytes_per_s > 0.
inline std::chrono::nanoseconds TimeAtRate(uint64_t bytes, uint64_t bytes_per_s) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(bytes_per_s)));
}

}  // namespace deltawire
