// From an element's width to its type: one switch for code that is written once for all widths.
// A pure template; no cost beyond the branch.
#pragma once

#include <cstdint>

namespace deltawire::kernels {

/// fn(T{}) with the unsigned type of `width` bytes. REQUIRES: width is 1, 2, 4 or 8.
template <typename Fn>
auto WithWidth(unsigned width, const Fn& fn) {
  switch (width) {
    case 1:
      return fn(uint8_t{});
    case 2:
      return fn(uint16_t{});
    case 4:
      return fn(uint32_t{});
    default:
      return fn(uint64_t{});
  }
}

}  // namespace deltawire::kernels
