// Byte spans, which own nothing, and explicit little-endian loads and stores at any alignment.
// REQUIRES, for every load and store: the range has room for the value.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace deltawire {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

static_assert(std::endian::native == std::endian::little,
              "the formats are little-endian; a big-endian host needs byte swaps here");

template <std::unsigned_integral T>
inline T LoadLe(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <std::unsigned_integral T>
inline void StoreLe(std::byte* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

inline Bytes AsBytes(std::string_view s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

inline std::string_view AsChars(Bytes b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

}  // namespace deltawire
