// The choice of the delta format's class function for a dtype (docs/delta_format.md, "Class"). A
// dtype without an exponent has kNone.
#pragma once

#include "common/layout/dtype.h"
#include "kernels/kernels.h"

namespace deltawire {

inline kernels::ClassFunction ClassFunctionOf(DType t) {
  switch (t) {
    case DType::kBF16:
      return kernels::ClassFunction::kBF16;
    case DType::kF16:
      return kernels::ClassFunction::kF16;
    case DType::kF32:
      return kernels::ClassFunction::kF32;
    case DType::kF8E4M3:
      return kernels::ClassFunction::kF8E4M3;
    case DType::kF8E5M2:
      return kernels::ClassFunction::kF8E5M2;
    default:
      return kernels::ClassFunction::kNone;
  }
}

}  // namespace deltawire
