// Fold and negate, touching only what the payloads touch; compiled once per target.
// Scratch is one block of elements, kept zero between blocks. Payloads are not trusted.
#include "hwy/highway.h"
#include "kernels/cpu/block-inl.h"
#include "kernels/cpu/payload.h"

#if defined(DELTAWIRE_KERNELS_CPU_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_FOLD_INL_H_
#undef DELTAWIRE_KERNELS_CPU_FOLD_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_FOLD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

/// Adds changes to the dense scratch and marks where.
template <typename T>
struct FoldSink {
  HWY_INLINE void Prefetch(uint32_t) const {}
  HWY_INLINE void Change(uint32_t at, T d) {
    StoreElement<T>(sums, at, static_cast<T>(LoadElement<T>(sums, at) + d));
    touched[at / 64] |= uint64_t{1} << at % 64;
  }
  uint8_t* sums;
  uint64_t touched[kBlockElements / 64];
};

/// Writes the touched sums as a block and makes them zero again.
template <typename T>
void EncodeSums(FoldSink<T>& sink, size_t elements, PayloadWriter& writer) {
  SparseStreams<T> streams(writer.cursor());
  bool sparse = true;
  uint32_t positions[64];
  const size_t words = (elements + 63) / 64;
  for (size_t w = 0; w < words && sparse; ++w) {
    if (sink.touched[w] == 0) continue;
    const size_t found = AppendPositions(sink.touched[w], static_cast<uint32_t>(w * 64), positions);
    for (size_t i = 0; i < found; ++i) {
      const T d = LoadElement<T>(sink.sums, positions[i]);
      if (d != 0) streams.Put(positions[i], d);
    }
    sparse = streams.bytes() < elements * sizeof(T);
  }
  if (sparse) {
    writer.Add(streams.Finish());
  } else {
    uint32_t changed = 0;
    for (size_t i = 0; i < elements; ++i) changed += LoadElement<T>(sink.sums, i) != 0;
    std::memcpy(writer.cursor(), sink.sums, elements * sizeof(T));
    writer.Add({.codec = BlockCodec::kRaw, .changed = changed});
  }
  for (size_t w = 0; w < words; ++w) {
    for (uint64_t bits = sink.touched[w]; bits != 0; bits &= bits - 1) {
      const size_t at = w * 64 + static_cast<size_t>(std::countr_zero(bits));
      StoreElement<T>(sink.sums, at, T{0});
    }
    sink.touched[w] = 0;
  }
}

/// Writes the sum of block `b` of all payloads.
template <typename T>
bool FoldBlock(std::span<const Bytes> payloads, size_t b, FoldSink<T>& sink, PayloadWriter& writer,
               size_t elements) {
  size_t changing = 0;
  BlockEntry only;
  const uint8_t* only_streams = nullptr;
  for (const Bytes payload : payloads) {
    const PayloadView view = PayloadView::Parsed(payload, sizeof(T));
    const BlockEntry e = view.Entry(b);
    if (e.codec == BlockCodec::kSame) continue;
    only = e;
    only_streams = view.StreamsOf(b);
    ++changing;
  }
  if (changing <= 1) {  // nothing, or canonical already
    if (changing == 1) {
      std::memcpy(writer.cursor(), only_streams, only.StreamBytes(elements, sizeof(T)));
    }
    writer.Add(only);
    return true;
  }
  for (const Bytes payload : payloads) {
    const PayloadView view = PayloadView::Parsed(payload, sizeof(T));
    const BlockEntry e = view.Entry(b);
    if (e.codec == BlockCodec::kRaw) {
      AddAll<T>(view.StreamsOf(b), sink.sums, elements);
      std::memset(sink.touched, 0xff, elements / 64 * 8);
      if (elements % 64 != 0) sink.touched[elements / 64] = (uint64_t{1} << elements % 64) - 1;
    } else if (e.codec == BlockCodec::kSparse &&
               !WalkSparse<T>(e, view.StreamsOf(b), elements, sink)) {
      return false;
    }
  }
  EncodeSums<T>(sink, elements, writer);
  return true;
}

/// What fold and negate ask of their arguments before any byte is written.
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
DecodeStatus FoldAs(std::span<const Bytes> payloads, size_t raw_bytes, MutableBytes scratch,
                    MutableBytes out, size_t* bytes) {
  *bytes = 0;
  const DecodeStatus s = CheckSum<T>(payloads, raw_bytes, scratch, out);
  if (s != DecodeStatus::kOk) return s;
  const size_t elements = raw_bytes / sizeof(T);
  FoldSink<T> sink{Ptr(scratch), {}};
  std::memset(sink.sums, 0, std::min(elements, kBlockElements) * sizeof(T));
  PayloadWriter writer(out, elements, sizeof(T));
  for (size_t b = 0; b < BlockCount(elements); ++b) {
    if (!FoldBlock<T>(payloads, b, sink, writer, BlockSize(elements, b))) {
      return DecodeStatus::kMalformed;
    }
  }
  *bytes = writer.Finish();
  return DecodeStatus::kOk;
}

template <typename T>
void NegateElements(const uint8_t* from, uint8_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    StoreElement<T>(to, i, static_cast<T>(T{0} - LoadElement<T>(from, i)));
  }
}

/// Codes pair up, so every size and codec of the payload stays as it is.
template <typename T>
DecodeStatus NegateAs(Bytes payload, size_t raw_bytes, MutableBytes scratch, MutableBytes out,
                      size_t* bytes) {
  *bytes = 0;
  const DecodeStatus s = CheckSum<T>({&payload, 1}, raw_bytes, scratch, out);
  if (s != DecodeStatus::kOk) return s;
  const PayloadView view = PayloadView::Parsed(payload, sizeof(T));
  std::memcpy(out.data(), payload.data(), payload.size());
  const uint8_t* from = view.streams();
  uint8_t* to = Ptr(out) + (from - Ptr(payload));
  for (size_t b = 0; b < view.blocks(); ++b) {
    const BlockEntry e = view.Entry(b);
    const size_t stream_bytes = view.StreamBytes(b);
    if (e.codec == BlockCodec::kRaw) NegateElements<T>(from, to, view.BlockElements(b));
    if (e.codec == BlockCodec::kSparse) {
      NegateElements<T>(from, to, e.wide);
      const size_t codes = stream_bytes - e.changed;
      for (size_t i = 0; i < e.changed; ++i) {
        const uint8_t code = from[codes + i];
        to[codes + i] = code < 254 ? code ^ 1 : code;
      }
    }
    from += stream_bytes;
    to += stream_bytes;
  }
  *bytes = payload.size();
  return DecodeStatus::kOk;
}

inline DecodeStatus Fold(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width,
                         MutableBytes scratch, MutableBytes out, size_t* bytes) {
  switch (width) {
    case 1:
      return FoldAs<uint8_t>(payloads, raw_bytes, scratch, out, bytes);
    case 2:
      return FoldAs<uint16_t>(payloads, raw_bytes, scratch, out, bytes);
    case 4:
      return FoldAs<uint32_t>(payloads, raw_bytes, scratch, out, bytes);
    case 8:
      return FoldAs<uint64_t>(payloads, raw_bytes, scratch, out, bytes);
    default:
      return DecodeStatus::kMalformed;
  }
}

inline DecodeStatus Negate(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                           MutableBytes out, size_t* bytes) {
  switch (width) {
    case 1:
      return NegateAs<uint8_t>(payload, raw_bytes, scratch, out, bytes);
    case 2:
      return NegateAs<uint16_t>(payload, raw_bytes, scratch, out, bytes);
    case 4:
      return NegateAs<uint32_t>(payload, raw_bytes, scratch, out, bytes);
    case 8:
      return NegateAs<uint64_t>(payload, raw_bytes, scratch, out, bytes);
    default:
      return DecodeStatus::kMalformed;
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_FOLD_INL_H_
