// The parts of docs/delta_format.md that all coders share: heads, packed columns, tables of fast
// payloads, bounds. A PayloadView points into the caller's payload, which must outlive it. Only
// Parse reads untrusted bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/bits.h"
#include "kernels/element_width.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {

/// Encoders may store whole words past a stream's end.
inline constexpr size_t kStoreSlack = 64;

inline uint32_t LoadU32(const uint8_t* p) {
  return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}
inline void StoreU32(uint8_t* p, uint32_t v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(v >> 8 * i);
}

/// Element i of unaligned little-endian data. Every supported machine is little-endian.
static_assert(std::endian::native == std::endian::little);
template <typename T>
inline T LoadElement(const uint8_t* data, size_t i) {
  T v;
  std::memcpy(&v, data + i * sizeof(T), sizeof(T));
  return v;
}
template <typename T>
inline void StoreElement(uint8_t* data, size_t i, T v) {
  std::memcpy(data + i * sizeof(T), &v, sizeof(T));
}

inline const uint8_t* Ptr(Bytes b) { return reinterpret_cast<const uint8_t*>(b.data()); }
inline uint8_t* Ptr(MutableBytes b) { return reinterpret_cast<uint8_t*>(b.data()); }

/// Returns the order of the exponential Golomb code; lengths[l] of the `large` sizes have l bits.
inline unsigned SizeOrder(const uint32_t (&lengths)[kBitLengths], uint32_t large) {
  uint32_t longer = large;
  for (unsigned j = 0;; ++j) {
    longer -= lengths[j];
    if (longer <= large / 2) return j;
  }
}

inline size_t BlockCount(size_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}
inline size_t BlockSize(size_t elements, size_t block) {
  return std::min(kBlockElements, elements - block * kBlockElements);
}

struct Column {
  uint32_t min = 0;
  unsigned bits = 0;

  static Column Of(const uint32_t* values, size_t count, size_t stride);
  uint32_t Word() const { return ColumnWord(min, bits); }
  /// Returns false when the reserved bit is set or a value could leave 31 bits.
  static bool FromWord(uint32_t word, Column* column);
};

struct BlockRow {
  uint32_t changed = 0;
  uint32_t large = 0;
  uint32_t bytes = 0;

  bool IsRaw(size_t elements, size_t width) const { return bytes == elements * width; }
};

/// A fast payload whose header and table, but not streams, have been checked.
class PayloadView {
 public:
  /// Checks header and table. Returns kOk or the reason for rejection.
  static DecodeStatus Parse(Bytes payload, size_t raw_bytes, unsigned width, PayloadView* view);

  /// Returns the view of a payload that Parse has accepted before.
  static PayloadView Parsed(Bytes payload, size_t raw_bytes, unsigned width);

  size_t blocks() const { return BlockCount(elements_); }
  size_t elements() const { return elements_; }
  uint32_t changed() const { return changed_; }
  size_t BlockElements(size_t block) const { return BlockSize(elements_, block); }
  BlockRow Row(size_t block) const;
  const uint8_t* streams() const { return streams_; }
  /// Returns the start of the block's stream. Costs a sum over the rows before it.
  const uint8_t* StreamOf(size_t block) const;
  /// Returns the payload's end, which no read may pass.
  const uint8_t* end() const { return end_; }

 private:
  /// Reads the header; returns false when it does not fit a fast payload of this size.
  bool ReadHeader(Bytes payload, size_t raw_bytes, unsigned width);
  DecodeStatus CheckRows(size_t payload_bytes);
  const uint8_t* base_ = nullptr;
  const uint8_t* streams_ = nullptr;
  const uint8_t* end_ = nullptr;
  size_t elements_ = 0;
  uint32_t changed_ = 0;
  unsigned width_ = 0;
  unsigned row_bits_ = 0;
  Column columns_[kFastColumns];
};

class BlockCursor {
 public:
  explicit BlockCursor(const PayloadView& view) : view_(view), stream_(view.streams()) {
    if (view.blocks() > 0) row_ = view.Row(0);
  }
  const BlockRow& row() const { return row_; }
  const uint8_t* stream() const { return stream_; }
  void Next() {
    stream_ += row_.bytes;
    if (++block_ < view_.blocks()) row_ = view_.Row(block_);
  }

 private:
  const PayloadView& view_;
  const uint8_t* stream_;
  BlockRow row_;
  size_t block_ = 0;
};

/// Writes a fast payload; the caller writes each block's stream at cursor().
class PayloadWriter {
 public:
  /// REQUIRES: out has at least MaxEncodedBytes.
  PayloadWriter(MutableBytes out, size_t elements, unsigned width);
  uint8_t* cursor() const { return cursor_; }
  /// Adds the next block, whose stream the caller has written at cursor().
  void Add(const BlockRow& row);
  /// Writes the table, moves the streams up to its end, and returns the payload's bytes; 0 when
  /// nothing changed.
  size_t Finish();
  uint64_t changed() const { return changed_; }

 private:
  uint8_t* base_;
  uint8_t* cursor_;
  size_t elements_;
  unsigned width_;
  size_t block_ = 0;
  uint64_t changed_ = 0;
  BlockRow rows_[kMaxBlocks];
};

inline bool SizesAllowed(size_t raw_bytes, unsigned width) {
  return raw_bytes <= kMaxChunkBytes && IsElementWidth(width) && raw_bytes % width == 0;
}

}  // namespace deltawire::kernels
