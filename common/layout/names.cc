#include "common/layout/names.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace deltawire {
namespace {

constexpr size_t kMaxQuoted = 160;

bool IsControl(unsigned char c) { return c < 0x20 || c == 0x7f; }

}  // namespace

size_t Utf8SequenceLength(std::string_view s) {
  if (s.empty()) return 0;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  // Limits on the second byte exclude overlong forms, surrogates and code points above U+10FFFF.
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  }
  if (length == 0 || s.size() < length || at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (at(i) < 0x80 || at(i) > 0xbf) return 0;
  }
  return length;
}

bool IsUtf8(std::string_view s) {
  while (!s.empty()) {
    const size_t n = Utf8SequenceLength(s);
    if (n == 0) return false;
    s.remove_prefix(n);
  }
  return true;
}

std::string FitUtf8(std::string_view s, size_t most) {
  std::string out;
  out.reserve(std::min(s.size(), most));
  while (!s.empty()) {
    const size_t n = Utf8SequenceLength(s), taken = std::max<size_t>(n, 1);
    if (out.size() + taken > most) break;
    if (n == 0) {
      out += '?';
    } else {
      out += s.substr(0, n);
    }
    s.remove_prefix(taken);
  }
  return out;
}

std::string Quoted(std::string_view s) {
  std::string out = "\"";
  while (!s.empty() && out.size() < kMaxQuoted) {
    const auto c = static_cast<unsigned char>(s[0]);
    const size_t n = Utf8SequenceLength(s);
    if (n == 0 || IsControl(c)) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", c);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += s[0];
    } else {
      out.append(s.substr(0, n));
    }
    s.remove_prefix(n == 0 ? 1 : n);
  }
  out += '"';
  if (!s.empty()) fmt::format_to(std::back_inserter(out), "... ({} more bytes)", s.size());
  return out;
}

void AppendJsonString(std::string_view s, std::string& out) {
  out += '"';
  while (!s.empty()) {
    const auto c = static_cast<unsigned char>(s[0]);
    const size_t n = Utf8SequenceLength(s);
    if (n == 0) {
      out += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += s[0];
    } else if (c < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    } else {
      out.append(s.substr(0, n));
    }
    s.remove_prefix(n == 0 ? 1 : n);
  }
  out += '"';
}

}  // namespace deltawire
