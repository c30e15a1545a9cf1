// The places of a tensor's elements in an engine's memory, and the sink of block_decode.h that adds
// differences there; for device and CPU. REQUIRES of boxes: no two elements share a place, so no
// two lanes write to one.
#pragma once

#include "kernels/cuda/portable.h"

namespace deltawire::kernels::gpu {

/// Some bytes of a tensor and their places: runs in nested dimensions, the outermost first. Each
/// source stride is at least the span of the dimensions inside, so a byte finds its run by
/// division.
struct PlaceBox {
  static constexpr uint32_t kMaxDims = 6;
  uint8_t* memory = nullptr;  ///< the place of its first byte
  uint64_t first = 0;         ///< its bytes of the tensor lie in [first, last)
  uint64_t last = 0;
  uint64_t run_bytes = 0;
  uint32_t dims = 0;
  uint32_t padding = 0;
  uint64_t counts[kMaxDims] = {};
  uint64_t src_strides[kMaxDims] = {};
  int64_t dst_strides[kMaxDims] = {};
};

/// Returns the place of the tensor's byte `at`; null if the box does not have that byte.
DW_HD uint8_t* PlaceOf(const PlaceBox& box, uint64_t at) {
  if (at < box.first || at >= box.last) return nullptr;
  uint64_t rest = at - box.first;
  uint8_t* place = box.memory;
  for (uint32_t d = 0; d < box.dims; ++d) {
    // Tensors of more than 4 GB are rare, and a 32-bit division costs a fraction of a 64-bit one.
    const uint64_t digit =
        (rest | box.src_strides[d]) >> 32 == 0
            ? static_cast<uint32_t>(rest) / static_cast<uint32_t>(box.src_strides[d])
            : rest / box.src_strides[d];
    if (digit >= box.counts[d]) return nullptr;
    rest -= digit * box.src_strides[d];
    place += static_cast<int64_t>(digit) * box.dst_strides[d];
  }
  return rest < box.run_bytes ? place + rest : nullptr;
}

/// Adds differences at all places of an element, or subtracts them. It returns 0 for the growth of
/// the digest, since the payloads were checked before.
template <typename T>
struct AtPlaces {
  const PlaceBox* boxes = nullptr;
  uint32_t count = 0;
  uint64_t first_byte = 0;  ///< offset of the block in the tensor
  bool backwards = false;

  DW_HD uint64_t operator()(uint32_t element, T d) const {
    const T step = static_cast<T>(backwards ? T{0} - d : d);
    const uint64_t at = first_byte + uint64_t{element} * sizeof(T);
    for (uint32_t b = 0; b < count; ++b) {
      auto* place = reinterpret_cast<T*>(PlaceOf(boxes[b], at));
      if (place != nullptr) *place = static_cast<T>(*place + step);
    }
    return 0;
  }
};

}  // namespace deltawire::kernels::gpu
