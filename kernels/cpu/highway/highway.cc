#include "kernels/cpu/highway/highway.h"

#include <array>
#include <string>

#include "kernels/cpu/highway/place_nest.h"
#include "kernels/cpu/scalar/place.h"
#include "kernels/cpu/validate.h"
#include "kernels/payload.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/highway/highway.cc"
#include "hwy/foreach_target.h"
// These must follow foreach_target.h, which includes this file once per instruction set.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/highway/block-inl.h"
#include "kernels/cpu/highway/classes-inl.h"
#include "kernels/cpu/highway/digest-inl.h"
#include "kernels/cpu/highway/fold-inl.h"
#include "kernels/cpu/highway/pack-inl.h"
#include "kernels/cpu/highway/place-inl.h"
#include "kernels/cpu/highway/sparse_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

uint64_t Digest(const DigestKey& key, Bytes data) {
  return RangeDigest(key, Ptr(data), data.size(), 0);
}

uint64_t DigestRange(const DigestKey& key, Bytes data, size_t offset) {
  return RangeDigest(key, Ptr(data), data.size(), offset);
}

/// The number of elements that are compared before some of the found changes are processed.
constexpr size_t kSegment = 512;

/// Finds the changes of one block and returns the digest's growth. After each segment it processes
/// `pace` changes, if there are as many. A loop over exactly the segment's changes would have an
/// unpredictable end, and each misprediction would stall the prefetching. `digest` is a copy, since
/// a reference would be reloaded after each byte store. With kCheck, *before grows by the digest of
/// the old bytes. It is summed between the comparisons, where the memory's latency hides much of
/// its cost.
template <typename T, bool kCheck>
uint64_t FindChanges(const uint8_t* o, const uint8_t* n, size_t elements, size_t pace,
                     BlockDigest<T> digest, Changes& changes, uint64_t* before) {
  constexpr size_t kAhead = 5120;  // bytes; more is slower with many changes, 4096 always slower
  constexpr size_t kStep = 64 * sizeof(T);
  uint16_t* const found = changes.at();
  size_t count = 0, taken = 0;
  const auto take = [&](size_t i) {
    const size_t at = found[i];
    const T old_value = LoadElement<T>(o, at), new_value = LoadElement<T>(n, at);
    changes.Put<T>(i, static_cast<T>(new_value - old_value));
    digest.Step(at, old_value, new_value);
  };
  SumLanes low = hn::Zero(SumTag()), high = low;  // old bytes since the last digest block's begin
  for (size_t first = 0; first < elements; first += kSegment) {
    const size_t end = std::min(first + kSegment, elements);
    size_t i = first;
    for (; i + 64 <= end; i += 64) {
      const size_t byte = i * sizeof(T);
      for (size_t at = 0; at < kStep; at += 64) {
        hwy::Prefetch(o + byte + kAhead + at);
        hwy::Prefetch(n + byte + kAhead + at);
      }
      const uint64_t bits = Differing64<T>(o + byte, n + byte);
      count += AppendPositions(bits, static_cast<uint32_t>(i), found + count);
      if constexpr (kCheck) AddWords<kStep / 4>(digest.WordsAt(byte), o + byte, low, high);
    }
    if constexpr (kCheck) {
      // At the end of a digest block of 4 KiB, and before the remainder of the last segment.
      const size_t byte = i * sizeof(T);
      if (end == elements || byte % DigestKey::kBlockBytes == 0) {
        *before += digest.MultiplierAt(first * sizeof(T)) * TakeSum(low, high);
        *before += digest.Rest(o, byte, end * sizeof(T));
      }
    }
    for (; i < end; ++i) {
      found[count] = static_cast<uint16_t>(i);
      count += LoadElement<T>(o, i) != LoadElement<T>(n, i);
    }
    if (count - taken < pace) continue;
    for (const size_t stop = taken + pace; taken < stop; ++taken) take(taken);
  }
  for (; taken < count; ++taken) take(taken);
  changes.SetCount(count);
  return digest.Sum();
}

/// With kCheck, ignores `digest_before` and computes it from the old bytes instead.
template <typename T, bool kCheck>
EncodeResult DiffEncodeAs(const DigestKey& key, Bytes old_data, Bytes new_data,
                          uint64_t digest_before, MutableBytes out) {
  const size_t elements = old_data.size() / sizeof(T);
  PayloadWriter writer(out, elements, sizeof(T));
  uint64_t growth = 0;
  size_t pace = 8;
  if constexpr (kCheck) digest_before = 0;
  for (size_t b = 0; b < BlockCount(elements); ++b) {
    const size_t offset = b * kBlockElements * sizeof(T);
    const size_t block = BlockSize(elements, b);
    const uint8_t* o = Ptr(old_data) + offset;
    const uint8_t* n = Ptr(new_data) + offset;
    Changes changes;
    growth +=
        FindChanges<T, kCheck>(o, n, block, pace, BlockDigest<T>(key, b), changes, &digest_before);
    pace = changes.count() / (kBlockElements / kSegment) + 1;  // the next block is probably similar
    const auto fetch = [&](size_t, size_t at) {
      return static_cast<T>(LoadElement<T>(n, at) - LoadElement<T>(o, at));
    };
    const BlockRow row = changes.Pack<T>(block, fetch, writer.cursor());
    if (row.IsRaw(block, sizeof(T))) Subtract<T>(n, o, writer.cursor(), block);
    writer.Add(row);
  }
  return {writer.changed(), digest_before + growth, writer.Finish(), digest_before};
}

template <typename T>
struct ApplySink {
  HWY_INLINE void Prefetch(uint32_t at) const { hwy::Prefetch(data + at * sizeof(T)); }
  HWY_INLINE void Change(uint32_t at, T d) {
    const T before = LoadElement<T>(data, at);
    const T after = static_cast<T>(before + d);
    StoreElement<T>(data, at, after);
    digest.Step(at, before, after);
  }
  uint8_t* data;
  BlockDigest<T> digest;
};

template <typename T>
DecodeStatus DecodeApplyAs(const DigestKey& key, Bytes payload, MutableBytes data,
                           uint64_t digest_before, uint64_t* digest_after) {
  PayloadView view;
  const DecodeStatus s = PayloadView::Parse(payload, data.size(), sizeof(T), &view);
  if (s != DecodeStatus::kOk) return s;
  uint64_t digest = digest_before;
  BlockCursor cursor(view);
  for (size_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
    const BlockRow& row = cursor.row();
    if (row.changed == 0) continue;
    const size_t elements = view.BlockElements(b);
    const size_t offset = b * kBlockElements * sizeof(T);
    uint8_t* p = Ptr(data) + offset;
    if (row.IsRaw(elements, sizeof(T))) {
      digest -= RangeDigest(key, p, elements * sizeof(T), offset);
      AddAll<T>(cursor.stream(), p, elements);
      digest += RangeDigest(key, p, elements * sizeof(T), offset);
    } else {
      ApplySink<T> sink{p, BlockDigest<T>(key, b)};
      SparseReader<T> reader(row, cursor.stream(), view.end(), elements);
      if (!reader.Walk(sink)) return DecodeStatus::kMalformed;
      digest += sink.digest.Sum();
    }
  }
  *digest_after = digest;
  return DecodeStatus::kOk;
}

template <bool kCheck>
EncodeResult DiffEncodeOf(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                          uint64_t digest_before, MutableBytes out) {
  return WithWidth(width, [&]<typename T>(T) {
    return DiffEncodeAs<T, kCheck>(key, old_data, new_data, digest_before, out);
  });
}

EncodeResult DiffEncode(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                        uint64_t digest_before, MutableBytes out) {
  return DiffEncodeOf<false>(key, old_data, new_data, width, digest_before, out);
}

EncodeResult DiffEncodeChecked(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                               MutableBytes out) {
  return DiffEncodeOf<true>(key, old_data, new_data, width, 0, out);
}

DecodeStatus DecodeApply(const DigestKey& key, Bytes payload, MutableBytes data, unsigned width,
                         uint64_t digest_before, uint64_t* digest_after) {
  if (!IsElementWidth(width)) return DecodeStatus::kMalformed;
  return WithWidth(width, [&]<typename T>(T) {
    return DecodeApplyAs<T>(key, payload, data, digest_before, digest_after);
  });
}

template <typename T>
DecodeStatus ValidateAs(const PayloadView& view) {
  return ValidateStreams<T>(view, [&](const BlockRow& row, const uint8_t* stream, size_t elements,
                                      auto& sink, unsigned* order) {
    SparseReader<T> reader(row, stream, view.end(), elements);
    const bool ok = reader.Walk(sink);
    *order = reader.order();
    return ok;
  });
}

DecodeStatus Validate(Bytes payload, size_t raw_bytes, unsigned width, uint64_t* changed) {
  PayloadView view;
  const DecodeStatus s = PayloadView::Parse(payload, raw_bytes, width, &view);
  if (s != DecodeStatus::kOk) return s;
  if (changed != nullptr) *changed = view.changed();
  return WithWidth(width, [&]<typename T>(T) { return ValidateAs<T>(view); });
}

/// Returns the table of this target; the registry below sets its name.
const Backend* Table() {
  static constexpr Backend kTable = {
      .name = nullptr,
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
      .place = Place,
      .place_convert = PlaceConvert,
  };
  return &kTable;
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {
namespace {

HWY_EXPORT(Table);

/// Every table that the machine can run, named after its target.
class Registry {
 public:
  Registry() {
    // Highway must be told each target to dispatch to, one by one, to reach all compiled ones.
    for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
      const int64_t target = left & -left;  // a lower bit is a better target
      hwy::GetChosenTarget().Update(target);
      Backend& table = tables_[count_];
      table = *HWY_DYNAMIC_DISPATCH(Table)();
      names_[count_] = std::string("highway (") + hwy::TargetName(target) + ")";
      table.name = names_[count_].c_str();
      pointers_[count_++] = &table;
    }
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  std::span<const Backend* const> tables() const { return {pointers_.data(), count_}; }

 private:
  static constexpr size_t kMax = 24;
  std::array<Backend, kMax> tables_{};
  std::array<std::string, kMax> names_;
  std::array<const Backend*, kMax> pointers_{};
  size_t count_ = 0;
};

}  // namespace

std::span<const Backend* const> HighwayBackends() {
  // The registry is never destroyed: threads may still use its tables while the program exits.
  static const Registry& registry = *new Registry;
  return registry.tables();
}

const Backend& HighwayBackend() { return *HighwayBackends().front(); }

}  // namespace deltawire::kernels
#endif  // HWY_ONCE
