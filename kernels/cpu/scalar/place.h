// The oracle of strided copies: a loop nest in the copy's own order, and the scalar conversions.
// REQUIRES: source and destination do not overlap.
#pragma once

#include "kernels/kernels.h"

namespace deltawire::kernels {

void PlaceNaive(const StridedCopy& copy, Bytes src, MutableBytes dst);
void PlaceConvertNaive(const StridedCopy& copy, const Convert& convert, Bytes src,
                       MutableBytes dst);

}  // namespace deltawire::kernels
