#include "kernels/cpu/scalar/scalar.h"

#include "kernels/cpu/changes.h"
#include "kernels/cpu/scalar/place.h"
#include "kernels/cpu/tight.h"
#include "kernels/cpu/validate.h"
#include "kernels/payload.h"

namespace deltawire::kernels {
namespace {

uint64_t DigestRange(const DigestKey& key, Bytes data, size_t offset) {
  const uint8_t* p = Ptr(data);
  uint64_t digest = 0;
  for (size_t i = 0; i < data.size(); i += 4) {
    uint32_t word = 0;
    std::memcpy(&word, p + i, std::min<size_t>(4, data.size() - i));
    const size_t at = offset + i;
    digest += key.multiplier(at / DigestKey::kBlockBytes) *
              key.words()[at / 4 % DigestKey::kWordsPerBlock] * word;
  }
  return digest;
}

uint64_t Digest(const DigestKey& key, Bytes data) { return DigestRange(key, data, 0); }

/// Returns the digest's growth when element i turns from `o` to `n`.
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

/// Writes the sparse form of a block, or its first `raw` bytes if it is not smaller than that.
template <typename T, typename Difference>
BlockRow WriteSparse(size_t elements, Difference difference, uint8_t* out, size_t raw) {
  BlockRow row;
  uint32_t lengths[kBitLengths] = {};
  for (size_t i = 0; i < elements; ++i) {
    const T magnitude = Magnitude<T>(difference(i));
    row.changed += magnitude != 0;
    row.large += magnitude >= 2;
    if (magnitude >= 2) ++lengths[Bits(static_cast<T>(magnitude - 2))];
  }
  if (row.changed == 0) return row;
  BitWriter bits(out, raw);
  const unsigned k = RiceParameter(row.changed, elements);
  const auto each_gap = [&](auto use) {
    size_t next = 0;
    for (size_t i = 0; i < elements; ++i) {
      if (difference(i) == 0) continue;
      use(i - next);
      next = i + 1;
    }
  };
  each_gap([&](size_t gap) { bits.Put(gap, k); });
  for (size_t i = 0; i < elements; ++i) {
    if (difference(i) != 0) bits.Put(IsNegative<T>(difference(i)), 1);
  }
  each_gap([&](size_t gap) { bits.PutUnary(gap >> k); });
  if (row.large > 0) {
    const unsigned kl = RiceParameter(row.large, row.changed);
    const auto each_large_gap = [&](auto use) {
      size_t gap = 0;
      for (size_t i = 0; i < elements; ++i) {
        const T magnitude = Magnitude<T>(difference(i));
        if (magnitude == 0) continue;
        if (magnitude == 1) {
          ++gap;
          continue;
        }
        use(gap);
        gap = 0;
      }
    };
    each_large_gap([&](size_t gap) { bits.Put(gap, kl); });
    each_large_gap([&](size_t gap) { bits.PutUnary(gap >> kl); });
    const unsigned order = SizeOrder(lengths, row.large);
    bits.Put(order, kOrderBits);
    for (size_t i = 0; i < elements; ++i) {
      const T magnitude = Magnitude<T>(difference(i));
      if (magnitude < 2) continue;
      const uint64_t v = static_cast<T>(magnitude - 2);
      const uint64_t u = (v >> order) + 1;
      bits.PutUnary(Bits(u) - 1);
      bits.Put(u, Bits(u) - 1);
      bits.Put(v, order);
    }
  }
  row.bytes = static_cast<uint32_t>(std::min(bits.Finish(), raw));
  return row;
}

/// Writes one block whose element i differs by `difference(i)` (0: unchanged).
template <typename T, typename Difference>
BlockRow EncodeBlock(size_t elements, Difference difference, uint8_t* out) {
  const size_t raw = elements * sizeof(T);
  BlockRow row = WriteSparse<T>(elements, difference, out, raw);
  if (row.bytes == raw) {
    for (size_t i = 0; i < elements; ++i) StoreElement<T>(out, i, difference(i));
    row.large = 0;
  }
  return row;
}

/// Calls change(i, d) for every changed element of a block; returns false when the stream is
/// malformed. Each part of the stream has its own reader.
template <typename T, typename Change>
bool DecodeBlock(const BlockRow& row, const uint8_t* stream, size_t elements, Change change,
                 unsigned* order_used = nullptr) {
  if (row.changed == 0) return true;
  if (row.IsRaw(elements, sizeof(T))) {
    for (size_t i = 0; i < elements; ++i) {
      const T d = LoadElement<T>(stream, i);
      if (d != 0) change(i, d);
    }
    return true;
  }
  const auto part = [&](uint64_t at) {
    BitReader reader(stream, row.bytes);
    reader.Skip(at);
    return reader;
  };
  const unsigned k = RiceParameter(row.changed, elements);
  const unsigned kl = row.large > 0 ? RiceParameter(row.large, row.changed) : 0;
  BitReader low = part(0), sign = part(uint64_t{row.changed} * k);
  BitReader quotient = part(uint64_t{row.changed} * (k + 1));
  BitReader skipped = quotient;
  for (size_t i = 0; i < row.changed; ++i) skipped.GetUnary(elements);
  BitReader large_low = skipped, large_quotient = part(skipped.position() + row.large * kl);
  BitReader size = large_quotient;
  for (size_t i = 0; i < row.large; ++i) size.GetUnary(row.changed);
  const auto order = static_cast<unsigned>(row.large > 0 ? size.Get(kOrderBits) : 0);
  if (order_used != nullptr) *order_used = order;
  const auto large_gap = [&] {
    return large_quotient.GetUnary(row.changed) << kl | large_low.Get(kl);
  };
  uint64_t at = 0, next_large = row.large > 0 ? large_gap() : row.changed, used = 0;
  for (uint64_t i = 0; i < row.changed; ++i, ++at) {
    at += quotient.GetUnary(elements) << k | low.Get(k);
    const bool negative = sign.Get(1) != 0;
    uint64_t magnitude = 1;
    if (i == next_large) {
      const auto n = static_cast<unsigned>(size.GetUnary(63));
      if (n + order > 63) return false;
      const uint64_t u = uint64_t{1} << n | size.Get(n);
      magnitude = ((u - 1) << order | size.Get(order)) + 2;
      if (magnitude < 2 || magnitude - negative >= kLargestMagnitude<T>) return false;
      next_large = ++used < row.large ? i + 1 + large_gap() : row.changed;
    }
    if (at >= elements || !quotient.ok() || !size.ok()) return false;
    change(at, static_cast<T>(negative ? 0 - magnitude : magnitude));
  }
  return used == row.large && size.AtPaddedEnd();
}

template <typename T>
EncodeResult DiffEncodeAs(const DigestKey& key, Bytes old_data, Bytes new_data,
                          uint64_t digest_before, MutableBytes out) {
  const size_t elements = old_data.size() / sizeof(T);
  const uint8_t* o = Ptr(old_data);
  const uint8_t* n = Ptr(new_data);
  PayloadWriter writer(out, elements, sizeof(T));
  for (size_t first = 0; first < elements; first += kBlockElements) {
    const auto difference = [=](size_t i) {
      return static_cast<T>(LoadElement<T>(n, first + i) - LoadElement<T>(o, first + i));
    };
    const size_t block = std::min(kBlockElements, elements - first);
    writer.Add(EncodeBlock<T>(block, difference, writer.cursor()));
  }
  uint64_t digest = digest_before;
  for (size_t i = 0; i < elements; ++i) {
    digest += DigestStep<T>(key, i, LoadElement<T>(o, i), LoadElement<T>(n, i));
  }
  return {writer.changed(), digest, writer.Finish(), digest_before};
}

template <typename T>
DecodeStatus DecodeApplyAs(const DigestKey& key, Bytes payload, MutableBytes data,
                           uint64_t digest_before, uint64_t* digest_after) {
  PayloadView view;
  const DecodeStatus s = PayloadView::Parse(payload, data.size(), sizeof(T), &view);
  if (s != DecodeStatus::kOk) return s;
  uint64_t digest = digest_before;
  uint8_t* p = Ptr(data);
  BlockCursor cursor(view);
  for (size_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
    const auto add = [&](size_t i, T d) {
      const size_t at = b * kBlockElements + i;
      const T o = LoadElement<T>(p, at);
      const T n = static_cast<T>(o + d);
      StoreElement<T>(p, at, n);
      digest += DigestStep<T>(key, at, o, n);
    };
    if (!DecodeBlock<T>(cursor.row(), cursor.stream(), view.BlockElements(b), add)) {
      return DecodeStatus::kMalformed;
    }
  }
  *digest_after = digest;
  return DecodeStatus::kOk;
}

/// Encodes sign * (sum of payloads), one dense block at a time.
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
      const PayloadView view = PayloadView::Parsed(payload, raw_bytes, sizeof(T));
      const auto add = [&](size_t i, T d) {
        StoreElement<T>(sum, i, static_cast<T>(LoadElement<T>(sum, i) + uint64_t{sign} * d));
      };
      if (!DecodeBlock<T>(view.Row(b), view.StreamOf(b), block, add)) {
        return DecodeStatus::kMalformed;
      }
    }
    const auto difference = [=](size_t i) { return LoadElement<T>(sum, i); };
    writer.Add(EncodeBlock<T>(block, difference, writer.cursor()));
  }
  *bytes = writer.Finish();
  return DecodeStatus::kOk;
}

template <typename T>
DecodeStatus ValidateAs(const PayloadView& view) {
  return ValidateStreams<T>(view, [](const BlockRow& row, const uint8_t* stream, size_t elements,
                                     auto& sink, unsigned* order) {
    const auto change = [&](uint64_t at, T d) { sink.Change(static_cast<uint32_t>(at), d); };
    return DecodeBlock<T>(row, stream, elements, change, order);
  });
}

DecodeStatus Validate(Bytes payload, size_t raw_bytes, unsigned width, uint64_t* changed) {
  PayloadView view;
  const DecodeStatus s = PayloadView::Parse(payload, raw_bytes, width, &view);
  if (s != DecodeStatus::kOk) return s;
  if (changed != nullptr) *changed = view.changed();
  return WithWidth(width, [&]<typename T>(T) { return ValidateAs<T>(view); });
}

EncodeResult DiffEncode(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                        uint64_t digest_before, MutableBytes out) {
  return WithWidth(width, [&]<typename T>(T) {
    return DiffEncodeAs<T>(key, old_data, new_data, digest_before, out);
  });
}

EncodeResult DiffEncodeChecked(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                               MutableBytes out) {
  return DiffEncode(key, old_data, new_data, width, Digest(key, old_data), out);
}

DecodeStatus DecodeApply(const DigestKey& key, Bytes payload, MutableBytes data, unsigned width,
                         uint64_t digest_before, uint64_t* digest_after) {
  if (!IsElementWidth(width)) return DecodeStatus::kMalformed;
  return WithWidth(width, [&]<typename T>(T) {
    return DecodeApplyAs<T>(key, payload, data, digest_before, digest_after);
  });
}

DecodeStatus Sum(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width, int sign,
                 MutableBytes scratch, MutableBytes out, size_t* bytes) {
  if (!IsElementWidth(width)) return DecodeStatus::kMalformed;
  return WithWidth(width, [&]<typename T>(T) {
    return SumAs<T>(payloads, raw_bytes, static_cast<T>(sign), scratch, out, bytes);
  });
}

DecodeStatus Fold(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width,
                  MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return Sum(payloads, raw_bytes, width, 1, scratch, out, bytes);
}

DecodeStatus Negate(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                    MutableBytes out, size_t* bytes) {
  return Sum({&payload, 1}, raw_bytes, width, -1, scratch, out, bytes);
}

// --- the tight codec's BlockOps, element by element ---

void Classes(const uint8_t* data, size_t elements, ClassFunction function, unsigned base,
             uint8_t* classes) {
  const size_t width = std::max(WidthOf(function), 1u);
  for (size_t i = 0; i < elements; ++i) {
    uint64_t bits = 0;
    if (function != ClassFunction::kNone) std::memcpy(&bits, data + i * width, width);
    classes[i] = static_cast<uint8_t>(ClassOfExponent(ExponentOf(bits, function), base));
  }
}

void ClassSums(const uint8_t* classes, size_t elements, const ClassWeights& weights, uint64_t* sums,
               uint64_t* total) {
  std::fill_n(sums, elements / kSumStep, 0);
  for (size_t i = 0; i < elements / kSumStep * kSumStep; ++i) {
    sums[i / kSumStep] += weights.weights[classes[i]];
  }
  if (total != nullptr) AddUp(sums, elements / kSumStep, total);
}

void CountClasses(const uint8_t* classes, size_t elements, uint32_t (&counts)[kClasses]) {
  for (size_t i = 0; i < elements; ++i) ++counts[classes[i]];
}

bool Unpack(const BlockRow& row, const uint8_t* stream, const uint8_t*, size_t elements,
            unsigned width, uint16_t* at, uint64_t* d) {
  size_t count = 0;
  const auto change = [&](uint64_t i, auto difference) {
    at[count] = static_cast<uint16_t>(i);
    d[count++] = difference;
  };
  return WithWidth(width,
                   [&]<typename T>(T) { return DecodeBlock<T>(row, stream, elements, change); });
}

bool Places(const BlockRow& row, const uint8_t* stream, const uint8_t*, size_t elements,
            unsigned width, uint16_t* at, uint64_t* down) {
  size_t count = 0;
  const auto change = [&](uint64_t i, auto difference) {
    if (count % 64 == 0) down[count / 64] = 0;
    down[count / 64] |= uint64_t{IsNegative(difference)} << count % 64;
    at[count++] = static_cast<uint16_t>(i);
  };
  return WithWidth(width,
                   [&]<typename T>(T) { return DecodeBlock<T>(row, stream, elements, change); });
}

template <typename T>
BlockRow PackAs(const uint16_t* at, const uint64_t* d, size_t changed, size_t elements,
                uint8_t* dense, uint8_t* out) {
  std::memset(dense, 0, elements * sizeof(T));
  for (size_t i = 0; i < changed; ++i) StoreElement<T>(dense, at[i], static_cast<T>(d[i]));
  return EncodeBlock<T>(
      elements, [=](size_t i) { return LoadElement<T>(dense, i); }, out);
}

BlockRow Pack(const uint16_t* at, const uint64_t* d, size_t changed, size_t elements,
              unsigned width, uint8_t* dense, uint8_t* out) {
  return WithWidth(width,
                   [&]<typename T>(T) { return PackAs<T>(at, d, changed, elements, dense, out); });
}

void PutLanes(const LaneModel& model, const LaneBlock& block, LaneEncoder* lanes,
              unsigned lane_bits, const uint16_t* at, const uint64_t* d, size_t changed) {
  size_t i = 0;
  for (unsigned l = 0; l < 1u << lane_bits; ++l) {
    LaneEncoder& lane = lanes[l];
    lane.cursor.Start(block, model, l, lane_bits);
    for (; i < changed && at[i] < lane.cursor.last; ++i) {
      const uint8_t context = block.contexts[at[i]];
      lane.PutSkips(model, block, at[i]);
      lane.PutChange(model, context, lane.cursor.sum, d[i]);
      lane.cursor.PassChange(at[i], SumBefore(model, block, at[i]), model.WeightOf(context));
    }
    lane.PutSkips(model, block, lane.cursor.last);
  }
}

bool GetLanes(const LaneModel& model, const LaneBlock& block, LaneDecoder* lanes,
              unsigned lane_bits, uint16_t* at, uint64_t* d) {
  for (unsigned l = 0; l < 1u << lane_bits; ++l) {
    LaneDecoder& lane = lanes[l];
    lane.cursor.Start(block, model, l, lane_bits);
    lane.changed = 0;
    LaneStep step = LaneStep::kMore;
    const size_t first = lane.cursor.at;
    while (step == LaneStep::kMore) step = lane.Step(model, block, at + first, d + first);
    if (step == LaneStep::kBad) return false;
  }
  return true;
}

constexpr BlockOps kBlockOps = {Classes, ClassSums, CountClasses, Unpack,
                                Places,  Pack,      PutLanes,     GetLanes};

DecodeStatus Changed(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                     ChangeVisitor visit, void* context) {
  return VisitChanges(kBlockOps, payload, raw_bytes, width, scratch, visit, context);
}

DecodeStatus EncodeTight(Bytes old_data, Bytes payload, unsigned width, ClassFunction function,
                         const History& history, MutableBytes scratch, MutableBytes out,
                         size_t* bytes) {
  return TightEncode(kBlockOps, old_data, payload, width, function, history, scratch, out, bytes);
}

DecodeStatus DecodeTight(Bytes old_data, Bytes tight, unsigned width, const History& history,
                         MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return TightDecode(kBlockOps, old_data, tight, width, history, scratch, out, bytes);
}

}  // namespace

const Backend& ScalarBackend() {
  static constexpr Backend kBackend = {
      .name = "scalar",
      .digest = Digest,
      .digest_range = DigestRange,
      .diff_encode = DiffEncode,
      .diff_encode_checked = DiffEncodeChecked,
      .decode_apply = DecodeApply,
      .validate = Validate,
      .changes = Changed,
      .fold = Fold,
      .negate = Negate,
      .tight_encode = EncodeTight,
      .tight_decode = DecodeTight,
      .place = PlaceNaive,
      .place_convert = PlaceConvertNaive,
  };
  return kBackend;
}

}  // namespace deltawire::kernels
