#include "receiver/engine/foreign_text.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

namespace deltawire::receiver {
namespace {

constexpr std::string_view kNotShown = "[key]";

/// Returns `key` as a JSON text has it.
std::string Escaped(const std::string& key) {
  const std::string quoted =
      nlohmann::json(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

std::string QuoteForeign(std::string text, std::vector<std::string> keys, size_t most) {
  for (size_t i = 0, n = keys.size(); i < n; ++i) {
    std::string escaped = Escaped(keys[i]);
    if (escaped != keys[i]) keys.push_back(std::move(escaped));
  }
  // One key may be a part of another.
  std::ranges::sort(keys, std::ranges::greater{}, &std::string::size);
  for (const std::string& key : keys) {
    for (size_t at = 0; !key.empty() && (at = text.find(key, at)) != std::string::npos;) {
      text.replace(at, key.size(), kNotShown);
      at += kNotShown.size();
    }
  }
  text.resize(std::min(text.size(), most));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return text;
}

}  // namespace deltawire::receiver
