#include "kernels/payload.h"

namespace deltawire::kernels {
namespace {

constexpr auto kBad = DecodeStatus::kMalformed;

}  // namespace

Column Column::Of(const uint32_t* values, size_t count, size_t stride) {
  if (count == 0) return {};
  uint32_t low = values[0], high = values[0];
  for (size_t i = 1; i < count; ++i) {
    low = std::min(low, values[i * stride]);
    high = std::max(high, values[i * stride]);
  }
  return {low, Bits(high - low)};
}

bool Column::FromWord(uint32_t word, Column* column) {
  *column = {ColumnMin(word), ColumnWidth(word)};
  return !ColumnReserved(word) && column->bits <= kColumnMinBits;
}

BlockRow PayloadView::Row(size_t block) const {
  const size_t at = block * row_bits_;
  uint64_t bits = Load64Within(base_ + kTableOffset + at / 8, end_) >> at % 8;
  uint32_t values[kFastColumns];
  for (size_t c = 0; c < kFastColumns; ++c) {
    values[c] = columns_[c].min + static_cast<uint32_t>(bits & LowMask(columns_[c].bits));
    bits >>= columns_[c].bits;
  }
  return {values[0], values[1], values[2]};
}

DecodeStatus PayloadView::CheckRows(size_t payload_bytes) {
  BlockRow rows[kMaxBlocks];
  size_t bytes = static_cast<size_t>(streams_ - base_), changed = 0;
  for (size_t b = 0; b < blocks(); ++b) {
    const BlockRow row = rows[b] = Row(b);
    const size_t raw = BlockElements(b) * width_;
    if (row.changed > BlockElements(b) || row.large > row.changed || row.bytes > raw) return kBad;
    if ((row.changed == 0) != (row.bytes == 0)) return kBad;
    if (row.bytes == raw && row.large != 0) return kBad;
    bytes += row.bytes;
    changed += row.changed;
  }
  const uint32_t* first[kFastColumns] = {&rows[0].changed, &rows[0].large, &rows[0].bytes};
  for (size_t c = 0; c < kFastColumns; ++c) {
    const Column exact = Column::Of(first[c], blocks(), sizeof(BlockRow) / sizeof(uint32_t));
    if (exact.Word() != columns_[c].Word()) return kBad;
  }
  if (payload_bytes < bytes) return DecodeStatus::kTruncated;
  changed_ = static_cast<uint32_t>(changed);
  return payload_bytes == bytes && changed > 0 ? DecodeStatus::kOk : kBad;
}

bool PayloadView::ReadHeader(Bytes payload, size_t raw_bytes, unsigned width) {
  const uint8_t* p = Ptr(payload);
  if (p[0] != kFormat || p[1] != static_cast<uint8_t>(Codec::kFast) || p[2] != width || p[3] != 0 ||
      LoadU32(p + kHeadBytes + 1) != raw_bytes / width) {
    return false;
  }
  base_ = p;
  end_ = p + payload.size();
  elements_ = raw_bytes / width;
  width_ = width;
  row_bits_ = 0;
  for (size_t c = 0; c < kFastColumns; ++c) {
    if (!Column::FromWord(LoadU32(p + kHeaderBytes + c * kColumnBytes), &columns_[c])) return false;
    row_bits_ += columns_[c].bits;
  }
  streams_ = p + kTableOffset + (blocks() * row_bits_ + 7) / 8;
  return row_bits_ <= 8 * kMaxRowBytes - 7;  // so that one 64-bit load reads a row
}

DecodeStatus PayloadView::Parse(Bytes payload, size_t raw_bytes, unsigned width,
                                PayloadView* view) {
  if (raw_bytes > kMaxChunkBytes) return DecodeStatus::kTooLarge;
  if (!SizesAllowed(raw_bytes, width)) return kBad;
  if (payload.size() < kTableOffset) return DecodeStatus::kTruncated;
  if (!view->ReadHeader(payload, raw_bytes, width)) return kBad;
  const size_t table_bits = view->blocks() * view->row_bits_;
  if (payload.size() - kTableOffset < (table_bits + 7) / 8) return DecodeStatus::kTruncated;
  if (table_bits % 8 != 0 && view->streams_[-1] >> table_bits % 8 != 0) return kBad;
  return view->CheckRows(payload.size());
}

PayloadView PayloadView::Parsed(Bytes payload, size_t raw_bytes, unsigned width) {
  PayloadView view;
  (void)view.ReadHeader(payload, raw_bytes, width);
  return view;
}

const uint8_t* PayloadView::StreamOf(size_t block) const {
  const uint8_t* stream = streams_;
  for (size_t b = 0; b < block; ++b) stream += Row(b).bytes;
  return stream;
}

PayloadWriter::PayloadWriter(MutableBytes out, size_t elements, unsigned width)
    : base_(Ptr(out)),
      cursor_(Ptr(out) + kTableOffset + BlockCount(elements) * kMaxRowBytes),
      elements_(elements),
      width_(width) {}

void PayloadWriter::Add(const BlockRow& row) {
  rows_[block_++] = row;
  cursor_ += row.bytes;
  changed_ += row.changed;
}

size_t PayloadWriter::Finish() {
  if (changed_ == 0) return 0;
  const uint8_t* streams = base_ + kTableOffset + BlockCount(elements_) * kMaxRowBytes;
  const auto stream_bytes = static_cast<size_t>(cursor_ - streams);
  base_[0] = kFormat;
  base_[1] = static_cast<uint8_t>(Codec::kFast);
  base_[2] = static_cast<uint8_t>(width_);
  base_[3] = 0;
  StoreU32(base_ + kHeadBytes + 1, static_cast<uint32_t>(elements_));
  constexpr size_t kStride = sizeof(BlockRow) / sizeof(uint32_t);
  const Column columns[kFastColumns] = {Column::Of(&rows_[0].changed, block_, kStride),
                                        Column::Of(&rows_[0].large, block_, kStride),
                                        Column::Of(&rows_[0].bytes, block_, kStride)};
  for (size_t c = 0; c < kFastColumns; ++c) {
    StoreU32(base_ + kHeaderBytes + c * kColumnBytes, columns[c].Word());
  }
  BitWriter table(base_ + kTableOffset, block_ * kMaxRowBytes);
  for (size_t b = 0; b < block_; ++b) {
    table.Put(rows_[b].changed - columns[0].min, columns[0].bits);
    table.Put(rows_[b].large - columns[1].min, columns[1].bits);
    table.Put(rows_[b].bytes - columns[2].min, columns[2].bits);
  }
  const size_t table_bytes = table.Finish();
  std::memmove(base_ + kTableOffset + table_bytes, streams, stream_bytes);
  return kTableOffset + table_bytes + stream_bytes;
}

}  // namespace deltawire::kernels
