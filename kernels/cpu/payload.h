// The shared grammar of docs/delta_format.md: header, block table, code bytes, bounds.
// A PayloadView points into the caller's payload, which must outlive it.
// Pure functions; no allocation. Only PayloadView::Parse meets untrusted bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/kernels.h"

namespace deltawire::kernels {

inline constexpr uint8_t kFormat = 1;
inline constexpr size_t kHeaderBytes = 1 + 1 + 2 + 4 + 4;  // format width reserved elements changed
inline constexpr size_t kEntryBytes = 1 + 3 + 4 + 4 + 4;   // codec reserved changed wide gap_bytes
inline constexpr size_t kMaxGapBytesExtra = kBlockElements / 255;
inline constexpr unsigned kGapGoesOn = 255;
inline constexpr unsigned kCodeWide = 255;
static_assert(kHeaderBytes == 12 && kEntryBytes == 16);

enum class BlockCodec : uint8_t { kSame = 0, kSparse = 1, kRaw = 2 };

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

/// The code byte of a difference (not 0), or kCodeWide.
template <typename T>
inline unsigned CodeOf(T d) {
  using S = std::make_signed_t<T>;
  const S s = static_cast<S>(d);
  if constexpr (sizeof(T) > 1) {
    // One unsigned comparison for -127 <= s <= 127.
    if (static_cast<T>(d + 127) > 254) return kCodeWide;
  }
  const int v = static_cast<int>(s);
  return static_cast<unsigned>(((v << 1) ^ (v >> 31)) - 1);
}
/// The difference of a code byte that is not kCodeWide.
template <typename T>
inline T DifferenceOf(unsigned code) {
  const uint64_t z = code + 1;
  return static_cast<T>((z >> 1) ^ (0 - (z & 1)));
}

struct BlockEntry {
  BlockCodec codec = BlockCodec::kSame;
  uint32_t changed = 0;
  uint32_t wide = 0;
  uint32_t gap_bytes = 0;

  size_t SparseBytes(size_t width) const { return size_t{wide} * width + gap_bytes + changed; }
  size_t StreamBytes(size_t elements, size_t width) const {
    switch (codec) {
      case BlockCodec::kSame:
        return 0;
      case BlockCodec::kSparse:
        return SparseBytes(width);
      case BlockCodec::kRaw:
        return elements * width;
    }
    return 0;
  }
};

inline size_t BlockCount(size_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}
inline size_t BlockSize(size_t elements, size_t block) {
  return std::min(kBlockElements, elements - block * kBlockElements);
}

/// A payload whose header and table were checked (not its streams).
class PayloadView {
 public:
  /// kOk, or why header and table are refused. REQUIRES: width divides raw_bytes.
  static DecodeStatus Parse(Bytes payload, size_t raw_bytes, unsigned width, PayloadView* view);

  /// The view of a payload that Parse has accepted before.
  static PayloadView Parsed(Bytes payload, unsigned width);

  size_t blocks() const { return BlockCount(elements_); }
  size_t elements() const { return elements_; }
  uint32_t changed() const { return changed_; }
  size_t BlockElements(size_t block) const { return BlockSize(elements_, block); }
  BlockEntry Entry(size_t block) const { return ReadEntry(base_ + kHeaderBytes, block); }
  const uint8_t* streams() const { return base_ + kHeaderBytes + blocks() * kEntryBytes; }
  size_t StreamBytes(size_t block) const {
    return Entry(block).StreamBytes(BlockElements(block), width_);
  }
  /// Where the block's streams start: a sum over the table before it.
  const uint8_t* StreamsOf(size_t block) const;

 private:
  static BlockEntry ReadEntry(const uint8_t* table, size_t block);
  static DecodeStatus CheckEntry(const uint8_t* raw, const BlockEntry& e, size_t elements,
                                 unsigned width);
  const uint8_t* base_ = nullptr;
  size_t elements_ = 0;
  uint32_t changed_ = 0;
  unsigned width_ = 0;
};

/// Writes a payload's header and table around streams that the caller writes at cursor().
class PayloadWriter {
 public:
  /// REQUIRES: out has room for MaxEncodedBytes.
  PayloadWriter(MutableBytes out, size_t elements, unsigned width);
  uint8_t* cursor() const { return cursor_; }
  /// Notes the next block, whose streams the caller has written at cursor().
  void Add(const BlockEntry& entry);
  /// Bytes of the whole payload; 0 when nothing changed.
  size_t Finish();
  uint64_t changed() const { return changed_; }

 private:
  uint8_t* base_;
  uint8_t* cursor_;
  size_t elements_;
  unsigned width_;
  size_t block_ = 0;
  uint64_t changed_ = 0;
};

/// Full structural check, streams included (Backend::validate of every backend).
DecodeStatus ValidatePayload(Bytes payload, size_t raw_bytes, unsigned width, uint64_t* changed);

/// True when the sizes are ones that a chunk may have.
inline bool SizesAllowed(size_t raw_bytes, unsigned width) {
  return raw_bytes <= kMaxChunkBytes && (width == 1 || width == 2 || width == 4 || width == 8) &&
         raw_bytes % width == 0;
}

}  // namespace deltawire::kernels
