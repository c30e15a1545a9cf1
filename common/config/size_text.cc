#include "common/config/size_text.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <string>

namespace deltawire {
namespace {

__extension__ typedef unsigned __int128 Wide;  // ISO C++ has none

constexpr size_t kMostDigits = 18;  // of a fraction; times a unit's factor they fit in Wide

// Returns the factor of a unit in lower case, or 0 for no unit.
uint64_t FactorOf(std::string_view unit, bool kb_is_1000) {
  if (unit.empty() || unit == "b") return 1;
  constexpr std::string_view kPrefixes = "kmgtpe";
  const size_t power = kPrefixes.find(unit.front());
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos) return 0;
  const bool binary = rest == "i" || rest == "ib";
  if (!binary && !rest.empty() && rest != "b") return 0;
  uint64_t factor = 1;
  for (size_t i = 0; i <= power; ++i) factor *= binary || !kb_is_1000 ? 1024 : 1000;
  return factor;
}

// Moves digits from the front of `text` into `number`, and returns their count.
size_t TakeDigits(std::string_view& text, Wide& number) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits])) != 0) {
    number = number * 10 + static_cast<unsigned>(text[digits] - '0');
    if (++digits > kMostDigits + 2) break;  // more than 2^64 either way
  }
  text.remove_prefix(digits);
  return digits;
}

}  // namespace

StatusOr<uint64_t> ParseSize(std::string_view text, bool kb_is_1000) {
  std::string_view rest = text;
  Wide whole = 0, part = 0;
  const size_t digits = TakeDigits(rest, whole);
  size_t fraction = 0;
  const bool point = rest.starts_with('.');
  if (point) {
    rest.remove_prefix(1);
    fraction = TakeDigits(rest, part);
  }
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  std::string unit(rest);
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const uint64_t factor = FactorOf(unit, kb_is_1000);
  if (digits == 0 || (point && fraction == 0) || fraction > kMostDigits || factor == 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" is no size; write a number with or without a unit: 512MiB, 1.5GiB, 2GB",
                  text);
  }
  Wide divisor = 1;
  for (size_t i = 0; i < fraction; ++i) divisor *= 10;
  const Wide bytes = whole * factor + part * factor / divisor;
  if (digits > kMostDigits + 2 || bytes > std::numeric_limits<uint64_t>::max()) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" is more than 16 EiB", text);
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace deltawire
