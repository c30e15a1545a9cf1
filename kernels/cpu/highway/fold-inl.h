// Fold and negate, which touch only elements that payloads change; compiled once per target. Each
// thread's scratch is one block of elements, zero between blocks. Payloads are not trusted.
#include "hwy/highway.h"
#include "kernels/cpu/highway/pack-inl.h"
#include "kernels/cpu/highway/sparse_reader-inl.h"
#include "kernels/payload.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_FOLD_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_FOLD_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_FOLD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

/// Adds changes, times `sign` (1 or -1), to the dense scratch and marks their places.
template <typename T>
struct FoldSink {
  HWY_INLINE void Prefetch(uint32_t) const {}
  HWY_INLINE void Change(uint32_t at, T d) {
    const uint64_t sum = uint64_t{LoadElement<T>(sums, at)} + uint64_t{sign} * d;
    StoreElement<T>(sums, at, static_cast<T>(sum));
    touched[at / 64] |= uint64_t{1} << at % 64;
  }
  uint8_t* sums;
  T sign;
  uint64_t touched[kBlockElements / 64];
};

/// Writes the touched sums as a block and sets them to zero.
template <typename T>
void EncodeSums(FoldSink<T>& sink, size_t elements, PayloadWriter& writer) {
  Changes changes;
  uint16_t* const places = changes.at();
  size_t changed = 0;
  const size_t words = (elements + 63) / 64;
  for (size_t w = 0; w < words; ++w) {
    if (sink.touched[w] == 0) continue;
    const uint16_t* const found = places + changed;
    const size_t count =
        AppendPositions(sink.touched[w], static_cast<uint32_t>(w * 64), places + changed);
    for (size_t i = 0; i < count; ++i) {
      const uint16_t place = found[i];
      const T d = LoadElement<T>(sink.sums, place);
      if (d == 0) continue;  // the changes canceled out
      places[changed] = place;
      changes.Put<T>(changed++, d);
    }
  }
  changes.SetCount(changed);
  const BlockRow row = changes.Pack<T>(
      elements, [&](size_t, size_t at) { return LoadElement<T>(sink.sums, at); }, writer.cursor());
  if (row.IsRaw(elements, sizeof(T))) {
    std::memcpy(writer.cursor(), sink.sums, elements * sizeof(T));
  }
  writer.Add(row);
  for (size_t w = 0; w < words; ++w) {
    for (uint64_t bits = sink.touched[w]; bits != 0; bits &= bits - 1) {
      const size_t at = w * 64 + static_cast<size_t>(std::countr_zero(bits));
      StoreElement<T>(sink.sums, at, T{0});
    }
    sink.touched[w] = 0;
  }
}

/// Adds a block's changes to the sums; returns false when its stream is malformed.
template <typename T>
bool AddBlock(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements,
              FoldSink<T>& sink) {
  if (!row.IsRaw(elements, sizeof(T))) {
    SparseReader<T> reader(row, stream, end, elements);
    return reader.Walk(sink);
  }
  for (size_t i = 0; i < elements; ++i) {
    const T d = LoadElement<T>(stream, i);
    if (d != 0) sink.Change(static_cast<uint32_t>(i), d);
  }
  return true;
}

/// Writes block b of sign * (sum of all payloads).
template <typename T>
bool FoldBlock(std::span<const Bytes> payloads, size_t raw_bytes, size_t b, FoldSink<T>& sink,
               PayloadWriter& writer) {
  const size_t elements = BlockSize(raw_bytes / sizeof(T), b);
  size_t changing = 0;
  const Bytes* only = nullptr;
  for (const Bytes& payload : payloads) {
    if (PayloadView::Parsed(payload, raw_bytes, sizeof(T)).Row(b).changed == 0) continue;
    only = &payload;
    ++changing;
  }
  if (changing == 1 && sink.sign == 1) {  // the payload's stream already encodes the sum
    const PayloadView view = PayloadView::Parsed(*only, raw_bytes, sizeof(T));
    const BlockRow row = view.Row(b);
    std::memcpy(writer.cursor(), view.StreamOf(b), row.bytes);
    writer.Add(row);
    return true;
  }
  for (const Bytes& payload : payloads) {
    const PayloadView view = PayloadView::Parsed(payload, raw_bytes, sizeof(T));
    const BlockRow row = view.Row(b);
    if (row.changed == 0) continue;
    if (!AddBlock<T>(row, view.StreamOf(b), view.end(), elements, sink)) return false;
  }
  EncodeSums<T>(sink, elements, writer);
  return true;
}

/// Checks the arguments of fold and negate before any byte is written.
template <typename T>
DecodeStatus CheckSum(std::span<const Bytes> payloads, size_t raw_bytes, MutableBytes scratch,
                      MutableBytes out) {
  if (!SizesAllowed(raw_bytes, sizeof(T)) || out.size() < MaxEncodedBytes(raw_bytes, sizeof(T)) ||
      scratch.size() < FoldScratchBytes(sizeof(T))) {
    return DecodeStatus::kTooLarge;
  }
  for (const Bytes payload : payloads) {
    PayloadView view;
    const DecodeStatus s = PayloadView::Parse(payload, raw_bytes, sizeof(T), &view);
    if (s != DecodeStatus::kOk) return s;
  }
  return DecodeStatus::kOk;
}

template <typename T>
DecodeStatus FoldAs(std::span<const Bytes> payloads, size_t raw_bytes, T sign, MutableBytes scratch,
                    MutableBytes out, size_t* bytes) {
  *bytes = 0;
  const DecodeStatus s = CheckSum<T>(payloads, raw_bytes, scratch, out);
  if (s != DecodeStatus::kOk) return s;
  const size_t elements = raw_bytes / sizeof(T);
  FoldSink<T> sink{Ptr(scratch), sign, {}};
  std::memset(sink.sums, 0, std::min(elements, kBlockElements) * sizeof(T));
  PayloadWriter writer(out, elements, sizeof(T));
  for (size_t b = 0; b < BlockCount(elements); ++b) {
    if (!FoldBlock<T>(payloads, raw_bytes, b, sink, writer)) return DecodeStatus::kMalformed;
  }
  *bytes = writer.Finish();
  return DecodeStatus::kOk;
}

inline DecodeStatus Sum(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width, int sign,
                        MutableBytes scratch, MutableBytes out, size_t* bytes) {
  if (!IsElementWidth(width)) return DecodeStatus::kMalformed;
  return WithWidth(width, [&]<typename T>(T) {
    return FoldAs<T>(payloads, raw_bytes, static_cast<T>(sign), scratch, out, bytes);
  });
}

inline DecodeStatus Fold(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width,
                         MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return Sum(payloads, raw_bytes, width, 1, scratch, out, bytes);
}

inline DecodeStatus Negate(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                           MutableBytes out, size_t* bytes) {
  return Sum({&payload, 1}, raw_bytes, width, -1, scratch, out, bytes);
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_FOLD_INL_H_
