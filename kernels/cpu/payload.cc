#include "kernels/cpu/payload.h"

namespace deltawire::kernels {
namespace {

DecodeStatus ValidateSparse(const BlockEntry& e, const uint8_t* streams, size_t elements,
                            unsigned width) {
  const uint8_t* gaps = streams + size_t{e.wide} * width;
  const uint8_t* codes = gaps + e.gap_bytes;
  // Gaps only ever add up, so their sum bounds every position: no need to walk them one by one.
  uint32_t sum = 0, ends = 0;
  for (size_t i = 0; i < e.gap_bytes; ++i) {
    sum += gaps[i];
    ends += gaps[i] != kGapGoesOn;
  }
  if (ends != e.changed || gaps[e.gap_bytes - 1] == kGapGoesOn) return DecodeStatus::kMalformed;
  if (size_t{sum} + e.changed > elements) return DecodeStatus::kMalformed;
  uint32_t wide = 0, reserved = 0;
  for (size_t i = 0; i < e.changed; ++i) {
    wide += codes[i] == kCodeWide;
    reserved += codes[i] == 254;
  }
  if (wide != e.wide || (width > 1 && reserved != 0)) return DecodeStatus::kMalformed;
  for (size_t i = 0; i < e.wide; ++i) {
    uint64_t d = 0;
    std::memcpy(&d, streams + i * width, width);
    const uint64_t mask = width == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * width) - 1;
    if (((d + 127) & mask) <= 254) return DecodeStatus::kMalformed;  // it has a code, or is 0
  }
  return DecodeStatus::kOk;
}

/// Sizes that the sparse codec would need, from dense differences.
template <typename T>
BlockEntry Measure(const uint8_t* diffs, size_t elements) {
  BlockEntry e;
  size_t next = 0;
  for (size_t i = 0; i < elements; ++i) {
    const T d = LoadElement<T>(diffs, i);
    if (d == 0) continue;
    ++e.changed;
    e.gap_bytes += static_cast<uint32_t>((i - next) / kGapGoesOn + 1);
    e.wide += sizeof(T) > 1 && CodeOf<T>(d) == kCodeWide;
    next = i + 1;
  }
  return e;
}

DecodeStatus ValidateRaw(const BlockEntry& e, const uint8_t* diffs, size_t elements,
                         unsigned width) {
  BlockEntry m;
  switch (width) {
    case 1:
      m = Measure<uint8_t>(diffs, elements);
      break;
    case 2:
      m = Measure<uint16_t>(diffs, elements);
      break;
    case 4:
      m = Measure<uint32_t>(diffs, elements);
      break;
    default:
      m = Measure<uint64_t>(diffs, elements);
      break;
  }
  const bool canonical = m.changed == e.changed && m.SparseBytes(width) >= elements * width;
  return canonical ? DecodeStatus::kOk : DecodeStatus::kMalformed;
}

}  // namespace

BlockEntry PayloadView::ReadEntry(const uint8_t* table, size_t block) {
  const uint8_t* p = table + block * kEntryBytes;
  return {static_cast<BlockCodec>(p[0]), LoadU32(p + 4), LoadU32(p + 8), LoadU32(p + 12)};
}

DecodeStatus PayloadView::CheckEntry(const uint8_t* raw, const BlockEntry& e, size_t elements,
                                     unsigned width) {
  constexpr auto kBad = DecodeStatus::kMalformed;
  if ((raw[1] | raw[2] | raw[3]) != 0 || e.changed > elements) return kBad;
  switch (e.codec) {
    case BlockCodec::kSame:
      return (e.changed | e.wide | e.gap_bytes) == 0 ? DecodeStatus::kOk : kBad;
    case BlockCodec::kRaw:
      return e.changed != 0 && (e.wide | e.gap_bytes) == 0 ? DecodeStatus::kOk : kBad;
    case BlockCodec::kSparse:
      if (e.changed == 0 || e.wide > e.changed || (width == 1 && e.wide != 0)) return kBad;
      if (e.gap_bytes < e.changed || e.gap_bytes - e.changed > kMaxGapBytesExtra) return kBad;
      return e.SparseBytes(width) < elements * width ? DecodeStatus::kOk : kBad;
  }
  return kBad;
}

DecodeStatus PayloadView::Parse(Bytes payload, size_t raw_bytes, unsigned width,
                                PayloadView* view) {
  if (raw_bytes > kMaxChunkBytes) return DecodeStatus::kTooLarge;
  if (!SizesAllowed(raw_bytes, width)) return DecodeStatus::kMalformed;
  if (payload.size() < kHeaderBytes) return DecodeStatus::kTruncated;
  const uint8_t* p = Ptr(payload);
  view->base_ = p;
  view->elements_ = raw_bytes / width;
  view->width_ = width;
  view->changed_ = LoadU32(p + 8);
  if (p[0] != kFormat || p[1] != width || p[2] != 0 || p[3] != 0 ||
      LoadU32(p + 4) != view->elements_ || view->changed_ == 0) {
    return DecodeStatus::kMalformed;
  }
  const size_t table_end = kHeaderBytes + view->blocks() * kEntryBytes;
  if (payload.size() < table_end) return DecodeStatus::kTruncated;
  size_t end = table_end, changed = 0;
  for (size_t b = 0; b < view->blocks(); ++b) {
    const BlockEntry e = view->Entry(b);
    const DecodeStatus s =
        CheckEntry(p + kHeaderBytes + b * kEntryBytes, e, view->BlockElements(b), width);
    if (s != DecodeStatus::kOk) return s;
    end += e.StreamBytes(view->BlockElements(b), width);
    changed += e.changed;
  }
  if (payload.size() < end) return DecodeStatus::kTruncated;
  return payload.size() == end && changed == view->changed_ ? DecodeStatus::kOk
                                                            : DecodeStatus::kMalformed;
}

PayloadView PayloadView::Parsed(Bytes payload, unsigned width) {
  PayloadView view;
  view.base_ = Ptr(payload);
  view.elements_ = LoadU32(view.base_ + 4);
  view.changed_ = LoadU32(view.base_ + 8);
  view.width_ = width;
  return view;
}

const uint8_t* PayloadView::StreamsOf(size_t block) const {
  const uint8_t* at = streams();
  for (size_t b = 0; b < block; ++b) at += StreamBytes(b);
  return at;
}

PayloadWriter::PayloadWriter(MutableBytes out, size_t elements, unsigned width)
    : base_(Ptr(out)),
      cursor_(Ptr(out) + kHeaderBytes + BlockCount(elements) * kEntryBytes),
      elements_(elements),
      width_(width) {}

void PayloadWriter::Add(const BlockEntry& entry) {
  uint8_t* p = base_ + kHeaderBytes + block_ * kEntryBytes;
  StoreU32(p, static_cast<uint32_t>(entry.codec));
  StoreU32(p + 4, entry.changed);
  StoreU32(p + 8, entry.wide);
  StoreU32(p + 12, entry.gap_bytes);
  cursor_ += entry.StreamBytes(BlockSize(elements_, block_), width_);
  changed_ += entry.changed;
  ++block_;
}

size_t PayloadWriter::Finish() {
  if (changed_ == 0) return 0;
  base_[0] = kFormat;
  base_[1] = static_cast<uint8_t>(width_);
  base_[2] = base_[3] = 0;
  StoreU32(base_ + 4, static_cast<uint32_t>(elements_));
  StoreU32(base_ + 8, static_cast<uint32_t>(changed_));
  return static_cast<size_t>(cursor_ - base_);
}

DecodeStatus ValidatePayload(Bytes payload, size_t raw_bytes, unsigned width, uint64_t* changed) {
  PayloadView view;
  DecodeStatus s = PayloadView::Parse(payload, raw_bytes, width, &view);
  if (s != DecodeStatus::kOk) return s;
  const uint8_t* streams = view.streams();
  for (size_t b = 0; b < view.blocks(); ++b) {
    const BlockEntry e = view.Entry(b);
    const size_t elements = view.BlockElements(b);
    if (e.codec == BlockCodec::kSparse) s = ValidateSparse(e, streams, elements, width);
    if (e.codec == BlockCodec::kRaw) s = ValidateRaw(e, streams, elements, width);
    if (s != DecodeStatus::kOk) return s;
    streams += e.StreamBytes(elements, width);
  }
  if (changed != nullptr) *changed = view.changed();
  return DecodeStatus::kOk;
}

}  // namespace deltawire::kernels
