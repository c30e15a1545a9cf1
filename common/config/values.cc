#include "common/config/values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

namespace deltawire {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxHostBytes = 253;

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {{"TiB", uint64_t{1} << 40},
                           {"GiB", uint64_t{1} << 30},
                           {"MiB", uint64_t{1} << 20},
                           {"KiB", uint64_t{1} << 10},
                           {"TB", 1'000'000'000'000},
                           {"GB", 1'000'000'000},
                           {"MB", 1'000'000},
                           {"kB", 1'000},
                           {"KB", 1'000},
                           {"B", 1}};

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

StatusOr<uint64_t> ParseNumber(std::string_view text, uint64_t min, uint64_t max) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= min && value <= max) {
    return value;
  }
  return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not a whole number from {} to {}", text,
                min, max);
}

StatusOr<uint64_t> ParseSize(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error == std::errc()) {
    if (unit.empty()) return value;
    if (unit.starts_with(' ')) unit.remove_prefix(1);
    for (const Unit& known : kUnits) {
      if (unit != known.name) continue;
      if (value > std::numeric_limits<uint64_t>::max() / known.bytes) break;
      return value * known.bytes;
    }
  }
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not a size such as 2GiB, 512MiB, 500MB or 1048576 (bytes)", text);
}

std::string SizeText(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0 && unit.bytes > 1) {
      return fmt::format("{}{}", bytes / unit.bytes, unit.name);
    }
  }
  return fmt::format("{}", bytes);
}

Status CheckModelName(std::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
      std::all_of(name.begin(), name.end(), IsNameChar)) {
    return {};
  }
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not a model name: 1 to {} of the characters A-Z a-z 0-9 . _ -, the "
                "first not '.'",
                name, kMaxNameBytes);
}

Status CheckHost(std::string_view host) {
  const std::string text(host);
  in6_addr v6;
  if (host.find(':') != std::string_view::npos) {
    if (::inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &v6) == 1) return {};
  } else if (!host.empty() && host.size() <= kMaxHostBytes &&
             std::all_of(host.begin(), host.end(), IsNameChar)) {
    return {};
  }
  return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not a host name or address", host);
}

}  // namespace deltawire
