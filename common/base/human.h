// Numbers as people read them: "1.19 GB", "84 ms". Decimal units (1 GB = 1e9 bytes).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace deltawire {

std::string HumanBytes(uint64_t bytes);
std::string HumanSeconds(double seconds);
/// Bytes per second, e.g. "3.1 GB/s".
std::string HumanRate(double bytes_per_second);

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace deltawire
