#include "kernels/cpu/scalar.h"

#include "kernels/cpu/payload.h"
#include "kernels/cpu/place.h"

namespace deltawire::kernels {
namespace {

uint64_t Digest(const DigestKey& key, Bytes data) {
  const uint8_t* p = Ptr(data);
  uint64_t digest = 0;
  for (size_t i = 0; i < data.size(); i += 4) {
    uint32_t word = 0;
    std::memcpy(&word, p + i, std::min<size_t>(4, data.size() - i));
    digest += key.multiplier(i / DigestKey::kBlockBytes) *
              key.words()[i / 4 % DigestKey::kWordsPerBlock] * word;
  }
  return digest;
}

/// What the digest grows by when element i turns from `o` to `n`.
template <typename T>
uint64_t DigestStep(const DigestKey& key, size_t i, T o, T n) {
  const size_t at = i * sizeof(T);
  const uint64_t* k = key.words() + at / 4 % DigestKey::kWordsPerBlock;
  const uint64_t multiplier = key.multiplier(at / DigestKey::kBlockBytes);
  if constexpr (sizeof(T) == 8) {
    const uint64_t low = uint64_t{static_cast<uint32_t>(n)} - static_cast<uint32_t>(o);
    const uint64_t high = (n >> 32) - (o >> 32);
    return multiplier * (k[0] * low + k[1] * high);
  } else {
    return multiplier * k[0] * ((uint64_t{n} - uint64_t{o}) << 8 * (at % 4));
  }
}

/// Writes one block whose element i differs by `difference(i)` (0: unchanged).
template <typename T, typename Difference>
void EncodeBlock(size_t elements, Difference difference, PayloadWriter& writer) {
  BlockEntry sparse;
  size_t next = 0;
  for (size_t i = 0; i < elements; ++i) {
    const T d = difference(i);
    if (d == 0) continue;
    sparse.changed++;
    sparse.gap_bytes += static_cast<uint32_t>((i - next) / kGapGoesOn + 1);
    if (sizeof(T) > 1 && CodeOf<T>(d) == kCodeWide) sparse.wide++;
    next = i + 1;
  }
  if (sparse.changed == 0) return writer.Add({});
  uint8_t* out = writer.cursor();
  if (sparse.SparseBytes(sizeof(T)) >= elements * sizeof(T)) {
    for (size_t i = 0; i < elements; ++i) StoreElement<T>(out, i, difference(i));
    return writer.Add({.codec = BlockCodec::kRaw, .changed = sparse.changed});
  }
  sparse.codec = BlockCodec::kSparse;
  uint8_t* gap = out + sparse.wide * sizeof(T);
  uint8_t* code = gap + sparse.gap_bytes;
  size_t wide = 0;
  next = 0;
  for (size_t i = 0; i < elements; ++i) {
    const T d = difference(i);
    if (d == 0) continue;
    size_t skipped = i - next;
    for (; skipped >= kGapGoesOn; skipped -= kGapGoesOn) *gap++ = kGapGoesOn;
    *gap++ = static_cast<uint8_t>(skipped);
    const unsigned c = CodeOf<T>(d);
    *code++ = static_cast<uint8_t>(c);
    if (sizeof(T) > 1 && c == kCodeWide) StoreElement<T>(out, wide++, d);
    next = i + 1;
  }
  writer.Add(sparse);
}

/// Calls change(i, d) for every changed element of a block; false when the streams are malformed.
template <typename T, typename Change>
bool DecodeBlock(const BlockEntry& e, const uint8_t* streams, size_t elements, Change change) {
  if (e.codec == BlockCodec::kSame) return true;
  if (e.codec == BlockCodec::kRaw) {
    for (size_t i = 0; i < elements; ++i) {
      const T d = LoadElement<T>(streams, i);
      if (d != 0) change(i, d);
    }
    return true;
  }
  const uint8_t* gaps = streams + e.wide * sizeof(T);
  const uint8_t* codes = gaps + e.gap_bytes;
  size_t at = 0, used = 0, wide = 0;
  for (size_t g = 0; g < e.gap_bytes; ++g) {
    at += gaps[g];
    if (gaps[g] == kGapGoesOn) continue;
    if (at >= elements || used == e.changed) return false;
    T d;
    if (sizeof(T) > 1 && codes[used] == kCodeWide) {
      if (wide == e.wide) return false;
      d = LoadElement<T>(streams, wide++);
    } else {
      d = DifferenceOf<T>(codes[used]);
    }
    ++used;
    change(at++, d);
  }
  return used == e.changed && wide == e.wide;
}

template <typename T>
EncodeResult DiffEncodeAs(const DigestKey& key, Bytes old_data, Bytes new_data,
                          uint64_t digest_before, MutableBytes out) {
  const size_t elements = old_data.size() / sizeof(T);
  const uint8_t* o = Ptr(old_data);
  const uint8_t* n = Ptr(new_data);
  PayloadWriter writer(out, elements, sizeof(T));
  for (size_t first = 0; first < elements; first += kBlockElements) {
    EncodeBlock<T>(
        std::min(kBlockElements, elements - first),
        [=](size_t i) -> T {
          return static_cast<T>(LoadElement<T>(n, first + i) - LoadElement<T>(o, first + i));
        },
        writer);
  }
  uint64_t digest = digest_before;
  for (size_t i = 0; i < elements; ++i) {
    digest += DigestStep<T>(key, i, LoadElement<T>(o, i), LoadElement<T>(n, i));
  }
  return {writer.changed(), digest, writer.Finish()};
}

template <typename T>
DecodeStatus DecodeApplyAs(const DigestKey& key, Bytes payload, MutableBytes data,
                           uint64_t digest_before, uint64_t* digest_after) {
  PayloadView view;
  const DecodeStatus s = PayloadView::Parse(payload, data.size(), sizeof(T), &view);
  if (s != DecodeStatus::kOk) return s;
  uint64_t digest = digest_before;
  const uint8_t* streams = view.streams();
  uint8_t* p = Ptr(data);
  for (size_t b = 0; b < view.blocks(); ++b) {
    const auto add = [&](size_t i, T d) {
      const size_t at = b * kBlockElements + i;
      const T o = LoadElement<T>(p, at);
      const T n = static_cast<T>(o + d);
      StoreElement<T>(p, at, n);
      digest += DigestStep<T>(key, at, o, n);
    };
    if (!DecodeBlock<T>(view.Entry(b), streams, view.BlockElements(b), add)) {
      return DecodeStatus::kMalformed;
    }
    streams += view.StreamBytes(b);
  }
  *digest_after = digest;
  return DecodeStatus::kOk;
}

/// Encodes sign * (sum of payloads) by way of one dense block at a time.
template <typename T>
DecodeStatus SumAs(std::span<const Bytes> payloads, size_t raw_bytes, T sign, MutableBytes scratch,
                   MutableBytes out, size_t* bytes) {
  *bytes = 0;
  if (!SizesAllowed(raw_bytes, sizeof(T)) || out.size() < MaxEncodedBytes(raw_bytes, sizeof(T)) ||
      scratch.size() < FoldScratchBytes(sizeof(T))) {
    return DecodeStatus::kTooLarge;
  }
  for (const Bytes payload : payloads) {
    PayloadView view;
    const DecodeStatus s = PayloadView::Parse(payload, raw_bytes, sizeof(T), &view);
    if (s != DecodeStatus::kOk) return s;
  }
  const size_t elements = raw_bytes / sizeof(T);
  PayloadWriter writer(out, elements, sizeof(T));
  uint8_t* sum = Ptr(scratch);
  for (size_t b = 0; b < BlockCount(elements); ++b) {
    const size_t block = BlockSize(elements, b);
    std::memset(sum, 0, block * sizeof(T));
    for (const Bytes payload : payloads) {
      const PayloadView view = PayloadView::Parsed(payload, sizeof(T));
      const auto add = [&](size_t i, T d) {
        StoreElement<T>(sum, i, static_cast<T>(LoadElement<T>(sum, i) + uint64_t{sign} * d));
      };
      if (!DecodeBlock<T>(view.Entry(b), view.StreamsOf(b), block, add)) {
        return DecodeStatus::kMalformed;
      }
    }
    EncodeBlock<T>(
        block, [=](size_t i) { return LoadElement<T>(sum, i); }, writer);
  }
  *bytes = writer.Finish();
  return DecodeStatus::kOk;
}

EncodeResult DiffEncode(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                        uint64_t digest_before, MutableBytes out) {
  switch (width) {
    case 1:
      return DiffEncodeAs<uint8_t>(key, old_data, new_data, digest_before, out);
    case 2:
      return DiffEncodeAs<uint16_t>(key, old_data, new_data, digest_before, out);
    case 4:
      return DiffEncodeAs<uint32_t>(key, old_data, new_data, digest_before, out);
    default:
      return DiffEncodeAs<uint64_t>(key, old_data, new_data, digest_before, out);
  }
}

DecodeStatus DecodeApply(const DigestKey& key, Bytes payload, MutableBytes data, unsigned width,
                         uint64_t digest_before, uint64_t* digest_after) {
  switch (width) {
    case 1:
      return DecodeApplyAs<uint8_t>(key, payload, data, digest_before, digest_after);
    case 2:
      return DecodeApplyAs<uint16_t>(key, payload, data, digest_before, digest_after);
    case 4:
      return DecodeApplyAs<uint32_t>(key, payload, data, digest_before, digest_after);
    case 8:
      return DecodeApplyAs<uint64_t>(key, payload, data, digest_before, digest_after);
    default:
      return DecodeStatus::kMalformed;
  }
}

DecodeStatus Sum(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width, int sign,
                 MutableBytes scratch, MutableBytes out, size_t* bytes) {
  const auto sum = [&]<typename T>(T factor) {
    return SumAs<T>(payloads, raw_bytes, factor, scratch, out, bytes);
  };
  switch (width) {
    case 1:
      return sum(static_cast<uint8_t>(sign));
    case 2:
      return sum(static_cast<uint16_t>(sign));
    case 4:
      return sum(static_cast<uint32_t>(sign));
    case 8:
      return sum(static_cast<uint64_t>(static_cast<int64_t>(sign)));
    default:
      return DecodeStatus::kMalformed;
  }
}

DecodeStatus Fold(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width,
                  MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return Sum(payloads, raw_bytes, width, 1, scratch, out, bytes);
}

DecodeStatus Negate(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                    MutableBytes out, size_t* bytes) {
  return Sum({&payload, 1}, raw_bytes, width, -1, scratch, out, bytes);
}

}  // namespace

const Backend& ScalarBackend() {
  static constexpr Backend kBackend = {
      .name = "scalar",
      .digest = Digest,
      .diff_encode = DiffEncode,
      .decode_apply = DecodeApply,
      .validate = ValidatePayload,
      .fold = Fold,
      .negate = Negate,
      .place = PlaceNaive,
  };
  return kBackend;
}

}  // namespace deltawire::kernels
