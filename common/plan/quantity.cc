#include "common/plan/quantity.h"

#include <charconv>
#include <initializer_list>
#include <utility>

namespace deltawire::plan {
namespace {

using Unit = std::pair<std::string_view, double>;

StatusOr<double> Parse(std::string_view text, std::initializer_list<Unit> units,
                       std::string_view example) {
  double number = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (ec == std::errc()) {
    if (unit.empty()) return number;
    for (const auto& [name, factor] : units) {
      if (unit == name) return number * factor;
    }
  }
  return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not like {}", text, example);
}

}  // namespace

StatusOr<double> ParseBytes(std::string_view text) {
  return Parse(text,
               {{"B", 1},
                {"kB", 1e3},
                {"MB", 1e6},
                {"GB", 1e9},
                {"TB", 1e12},
                {"KiB", 1024},
                {"MiB", 1048576.0},
                {"GiB", 1073741824.0},
                {"TiB", 1099511627776.0}},
               "\"2 TB\" or \"128 MiB\"");
}

StatusOr<double> ParseRate(std::string_view text) {
  return Parse(text,
               {{"B/s", 1},
                {"kB/s", 1e3},
                {"MB/s", 1e6},
                {"GB/s", 1e9},
                {"MiB/s", 1048576.0},
                {"GiB/s", 1073741824.0},
                {"kbit/s", 125},
                {"Mbit/s", 125e3},
                {"Gbit/s", 125e6},
                {"Tbit/s", 125e9}},
               "\"5 Gbit/s\" or \"600 MB/s\"");
}

StatusOr<double> ParseSeconds(std::string_view text) {
  return Parse(text, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}},
               "\"20 ms\" or \"90 s\"");
}

StatusOr<double> ParseShare(std::string_view text) {
  return Parse(text, {{"%", 0.01}}, "\"3 %\" or 0.03");
}

StatusOr<double> ParseCount(std::string_view text) {
  return Parse(text, {{"k", 1e3}, {"M", 1e6}, {"G", 1e9}}, "\"160 M\"");
}

}  // namespace deltawire::plan
