#include "common/base/human.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <cmath>

namespace deltawire {
namespace {

std::string Scaled(double value, const char* suffix) {
  static constexpr std::array<const char*, 6> kPrefix = {"", "k", "M", "G", "T", "P"};
  size_t i = 0;
  while (value >= 999.5 && i + 1 < kPrefix.size()) {
    value /= 1000;
    ++i;
  }
  const int digits = (i == 0 || value >= 99.95) ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", value, digits, kPrefix[i], suffix);
}

}  // namespace

std::string HumanBytes(uint64_t bytes) { return Scaled(static_cast<double>(bytes), "B"); }

std::string HumanRate(double bytes_per_second) { return Scaled(bytes_per_second, "B/s"); }

std::string HumanSeconds(double seconds) {
  if (seconds < 0.0995) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.2f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace deltawire
