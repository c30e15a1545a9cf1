// A dispatch from an element's width to its type, for code that is written once for all widths; for
// device and CPU.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace deltawire::kernels {

DW_HD constexpr bool IsElementWidth(unsigned width) {
  return width == 1 || width == 2 || width == 4 || width == 8;
}

/// Returns fn(T{}) with T the unsigned type of `width` bytes. REQUIRES: IsElementWidth(width).
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // a kernel's lambda exists on the device only
#endif
template <typename Fn>
DW_HD auto WithWidth(unsigned width, const Fn& fn) {
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
