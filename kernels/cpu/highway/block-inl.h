// Dense differences of a block, and the places where two blocks differ; compiled once per target.
// Data may be unaligned. Runs at memory speed.
#include "hwy/highway.h"
#include "kernels/payload.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_BLOCK_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_BLOCK_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_BLOCK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// out[i] = a[i] - b[i]; returns how many elements differ.
template <typename T>
inline uint32_t Subtract(const uint8_t* a, const uint8_t* b, uint8_t* out, size_t elements) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0, changed = 0;
  for (; i + lanes <= elements; i += lanes) {
    const auto va = hn::LoadU(d, reinterpret_cast<const T*>(a) + i);
    const auto vb = hn::LoadU(d, reinterpret_cast<const T*>(b) + i);
    hn::StoreU(hn::Sub(va, vb), d, reinterpret_cast<T*>(out) + i);
    changed += hn::CountTrue(d, hn::Ne(va, vb));
  }
  for (; i < elements; ++i) {
    const T x = LoadElement<T>(a, i), y = LoadElement<T>(b, i);
    StoreElement<T>(out, i, static_cast<T>(x - y));
    changed += x != y;
  }
  return static_cast<uint32_t>(changed);
}

/// data[i] += diffs[i].
template <typename T>
inline void AddAll(const uint8_t* diffs, uint8_t* data, size_t elements) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  T* p = reinterpret_cast<T*>(data);
  size_t i = 0;
  for (; i + lanes <= elements; i += lanes) {
    const auto v = hn::LoadU(d, reinterpret_cast<const T*>(diffs) + i);
    hn::StoreU(hn::Add(hn::LoadU(d, p + i), v), d, p + i);
  }
  for (; i < elements; ++i) {
    const T sum = static_cast<T>(LoadElement<T>(data, i) + LoadElement<T>(diffs, i));
    StoreElement<T>(data, i, sum);
  }
}

/// Returns a number whose bit i is set if element i of 64 differs between a and b.
template <typename T>
HWY_INLINE uint64_t Differing64(const uint8_t* a, const uint8_t* b) {
  const hn::CappedTag<T, 64> d;
  const size_t lanes = hn::Lanes(d);
  uint64_t bits = 0;
  for (size_t i = 0; i < 64; i += lanes) {
    const auto va = hn::LoadU(d, reinterpret_cast<const T*>(a) + i);
    const auto vb = hn::LoadU(d, reinterpret_cast<const T*>(b) + i);
    uint64_t part = 0;
    hn::StoreMaskBits(d, hn::Ne(va, vb), reinterpret_cast<uint8_t*>(&part));
    bits |= part << i;
  }
  return bits;
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_BLOCK_INL_H_
