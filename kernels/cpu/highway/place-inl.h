// Strided copies at memory speed: runs, transpositions through a tile in the cache, and
// conversions; compiled once per target. Data may be unaligned. Uses up to 48 KiB of stack. A copy
// of kStreamBytes or more bypasses the cache.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/highway/convert-inl.h"
#include "kernels/cpu/highway/place_nest.h"
#include "kernels/cpu/scalar/place.h"
#include "kernels/place_pieces.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_PLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_PLACE_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_PLACE_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_PLACE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kLine = 64;

/// Returns the bytes from p to the next cache line; 0 when p starts one.
HWY_INLINE size_t ToNextLine(const std::byte* p) {
  return (kLine - reinterpret_cast<uintptr_t>(p) % kLine) % kLine;
}

HWY_INLINE void StreamLines(std::byte* dst, const std::byte* src, size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, bytes);
#else
  const hn::ScalableTag<uint8_t> d;
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < bytes; i += step) {
    hn::Stream(hn::LoadU(d, reinterpret_cast<const uint8_t*>(src + i)), d,
               reinterpret_cast<uint8_t*>(dst + i));
  }
#endif
}

/// Moves a row of elements of kWidth bytes unchanged.
template <size_t kWidth>
class MoveRow {
 public:
  static constexpr size_t kFromWidth = kWidth, kToWidth = kWidth;
  explicit MoveRow(bool stream) : stream_(stream) {}

  void One(std::byte* dst, const std::byte* src) const { std::memcpy(dst, src, kWidth); }

  HWY_INLINE void operator()(std::byte* dst, const std::byte* src, size_t elements) const {
    const size_t bytes = elements * kWidth;
    const size_t head = ToNextLine(dst);
    if (!stream_ || bytes < head + kLine) {
      std::memcpy(dst, src, bytes);
      return;
    }
    const size_t lines = (bytes - head) / kLine * kLine;
    if (head != 0) std::memcpy(dst, src, head);
    StreamLines(dst + head, src + head, lines);
    const size_t done = head + lines;
    if (done != bytes) std::memcpy(dst + done, src + done, bytes - done);
  }

 private:
  bool stream_;
};

#if HWY_TARGET != HWY_SCALAR
template <Element kFrom, Element kTo>
class ConvertRow {
 public:
  static constexpr size_t kFromWidth = WidthOf(kFrom), kToWidth = WidthOf(kTo);
  ConvertRow(int add, bool stream) : converter_(add), stream_(stream) {}

  void One(std::byte* dst, const std::byte* src) const { converter_.Run(dst, src, 1, false); }

  HWY_INLINE void operator()(std::byte* dst, const std::byte* src, size_t elements) const {
    const size_t to_line = ToNextLine(dst);
    const size_t head = to_line / kToWidth;
    if (!stream_ || to_line % kToWidth != 0 || elements < head + converter_.Step()) {
      return converter_.Run(dst, src, elements, false);
    }
    if (head != 0) converter_.Run(dst, src, head, false);
    converter_.Run(dst + to_line, src + head * kFromWidth, elements - head, true);
  }

 private:
  Converter<kFrom, kTo> converter_;
  bool stream_;
};
#endif

/// Writes rows whose elements lie `step` bytes apart in the destination.
template <typename Row>
class SpreadRow {
 public:
  static constexpr size_t kFromWidth = Row::kFromWidth, kToWidth = Row::kToWidth;
  SpreadRow(const Row& row, int64_t step) : row_(row), step_(step) {}

  HWY_INLINE void operator()(std::byte* dst, const std::byte* src, size_t elements) const {
    constexpr size_t kBatch = 64;
    std::byte batch[kBatch * kToWidth];
    for (size_t i = 0; i < elements; i += kBatch) {
      const size_t now = std::min(kBatch, elements - i);
      row_(batch, src + i * kFromWidth, now);
      for (size_t k = 0; k < now; ++k) {
        std::memcpy(dst + static_cast<int64_t>(i + k) * step_, batch + k * kToWidth, kToWidth);
      }
    }
  }

 private:
  Row row_;
  int64_t step_;
};

template <size_t kWidth>
auto UnsignedOf() {
  if constexpr (kWidth == 1) return uint8_t{};
  if constexpr (kWidth == 2) return uint16_t{};
  if constexpr (kWidth == 4) return uint32_t{};
  if constexpr (kWidth == 8) return uint64_t{};
}

/// Transposes a square whose side is one vector's number of lanes; `from` are its source rows.
template <typename T>
HWY_INLINE void TransposeSquare(const std::byte* const* from, size_t at, std::byte* to,
                                size_t pitch) {
  constexpr size_t kSide = 16 / sizeof(T);
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
  for (size_t c = 0; c < kSide; ++c) {
    for (size_t r = 0; r < kSide; ++r) {
      std::memcpy(to + r * pitch + c * sizeof(T), from[c] + at + r * sizeof(T), sizeof(T));
    }
  }
#else
  const hn::FixedTag<T, kSide> d;
  hn::Vec<decltype(d)> a[kSide], b[kSide];
  for (size_t i = 0; i < kSide; ++i) a[i] = hn::LoadU(d, reinterpret_cast<const T*>(from[i] + at));
  // Each pass interleaves the upper and lower half of the rows. After log2(side) passes row i is
  // the former column i.
  for (size_t pass = 1; pass < kSide; pass *= 2) {
    for (size_t i = 0; i < kSide / 2; ++i) {
      b[2 * i] = hn::InterleaveLower(d, a[i], a[i + kSide / 2]);
      b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + kSide / 2]);
    }
    for (size_t i = 0; i < kSide; ++i) a[i] = b[i];
  }
  for (size_t i = 0; i < kSide; ++i) {
    hn::StoreU(a[i], d, reinterpret_cast<T*>(to + i * pitch));
  }
#endif
}

/// A piece of a transposition whose source and destination lines fit the first-level cache. Its
/// elements get kToWidth bytes on output.
template <typename T, size_t kToWidth>
class Tile {
 public:
  static constexpr size_t kRows = std::min<size_t>(128, 256 / sizeof(T));
  static constexpr size_t kColumns = 128 / std::min(sizeof(T), kToWidth);
  /// Rows are a cache line farther apart than needed, so that they do not all map to the same cache
  /// sets.
  static constexpr size_t kPitch = kColumns * sizeof(T) + kLine;

  /// Reads `rows` elements, starting at byte `skip`, of each of the `columns` source rows at
  /// `from`, and prefetches the bytes `ahead` bytes further on.
  void Fill(const std::byte* const* from, size_t skip, int64_t ahead, size_t rows, size_t columns) {
    constexpr size_t kSide = 16 / sizeof(T);
    constexpr size_t kSquares = kLine / 16;  // squares that one line of a source row fills
    constexpr size_t kFetches = std::max<size_t>(kSide / kSquares, 1);
    if (rows < kSide || columns < kSide) {
      for (size_t c = 0; c < columns; ++c) {
        for (size_t r = 0; r < rows; ++r) {
          std::memcpy(Row(r) + c * sizeof(T), from[c] + skip + r * sizeof(T), sizeof(T));
        }
      }
      return;
    }
    // If a side is not a multiple of kSide, the last square overlaps the one before.
    for (size_t c = 0; c < columns; c += kSide) {
      const size_t column = std::min(c, columns - kSide);
      for (size_t r = 0; r < rows; r += kSide) {
        const size_t row = std::min(r, rows - kSide);
        const size_t first = r / kSide % kSquares * kFetches;
        for (size_t i = 0; i < kFetches && first + i < kSide; ++i) {
          hwy::Prefetch(from[column + first + i] + static_cast<int64_t>(skip) + ahead +
                        r / kSide / kSquares * kLine);
        }
        TransposeSquare<T>(from + column, skip + row * sizeof(T), Row(row) + column * sizeof(T),
                           kPitch);
      }
    }
  }

  std::byte* Row(size_t r) { return bytes_ + r * kPitch; }

 private:
  alignas(kLine) std::byte bytes_[kRows * kPitch];
};

template <typename T, typename Row>
void TransposeMatrix(const Transposition& t, const std::byte* src, std::byte* dst, const Row& row) {
  using Tiles = Tile<T, Row::kToWidth>;
  Tiles tile;
  const std::byte* from[Tiles::kColumns];
  std::byte* onto[Tiles::kRows];
  const uint64_t rows = t.rows.count(), columns = t.columns.count();
  Walker column(t.columns, 0);
  // The first tile may be narrower, so that later ones begin at a cache line of the destination.
  uint64_t wide = Tiles::kColumns - (kLine - ToNextLine(dst)) % kLine / Row::kToWidth;
  for (uint64_t c = 0; c < columns; c += wide, wide = Tiles::kColumns) {
    wide = std::min(wide, columns - c);
    for (size_t i = 0; i < wide; ++i, column.Next()) from[i] = src + column.src();
    std::byte* const to = dst + static_cast<int64_t>(c) * t.column_step;
    const int64_t below = column.src() - (from[0] - src);  // offset of the next tiles' source rows
    Walker at(t.rows, 0);
    for (uint64_t r = 0; r < rows; r += Tiles::kRows) {
      const size_t high = std::min<uint64_t>(Tiles::kRows, rows - r);
      const auto skip = static_cast<int64_t>(r * sizeof(T));
      const bool last = r + Tiles::kRows >= rows;
      const int64_t ahead = last ? below - skip : int64_t{Tiles::kRows * sizeof(T)};
      tile.Fill(from, r * sizeof(T), ahead, high, wide);
      for (size_t i = 0; i < high; ++i, at.Next()) onto[i] = to + at.dst();
      for (size_t i = 0; i < high; ++i) row(onto[i], tile.Row(i), wide);
    }
  }
}

/// Returns how many bytes ahead of a run the source should be prefetched; 0 for runs that are long
/// enough for the hardware's own prefetching.
inline int64_t FetchDistance(const Nest& nest, size_t run_bytes) {
  constexpr size_t kLong = 16 << 10, kAhead = 4096;
  if (nest.dims == 0 || run_bytes >= kLong) return 0;
  return nest.axes[nest.dims - 1].src * static_cast<int64_t>((kAhead + run_bytes - 1) / run_bytes);
}

template <typename Row>
void PlaceRows(const Nest& nest, const std::byte* src, std::byte* dst, const Row& row) {
  using T = decltype(UnsignedOf<Row::kFromWidth>());
  Transposition t;
  if (!FindTransposition(nest, Row::kFromWidth, Row::kToWidth, &t)) {
    if (nest.run == 1) {
      return ForEachRunNearby(nest, Row::kToWidth,
                              [&](int64_t from, int64_t to) { row.One(dst + to, src + from); });
    }
    const size_t bytes = nest.run * Row::kFromWidth;
    const int64_t ahead = FetchDistance(nest, bytes);
    ForEachRunNearby(nest, nest.run * Row::kToWidth, [&](int64_t from, int64_t to) {
      if (ahead != 0) {
        for (size_t i = 0; i < bytes; i += kLine) hwy::Prefetch(src + from + ahead + i);
      }
      row(dst + to, src + from, nest.run);
    });
  } else if (t.column_step == Row::kToWidth) {
    ForEachRun(t.outer,
               [&](int64_t from, int64_t to) { TransposeMatrix<T>(t, src + from, dst + to, row); });
  } else {
    const SpreadRow<Row> spread(row, t.column_step);
    ForEachRun(t.outer, [&](int64_t from, int64_t to) {
      TransposeMatrix<T>(t, src + from, dst + to, spread);
    });
  }
}

/// Copies runs of a compile-time length, so that each takes one or a few moves.
template <size_t kBytes>
void PlaceShort(const Nest& nest, const std::byte* src, std::byte* dst) {
  ForEachRunNearby(nest, kBytes,
                   [&](int64_t from, int64_t to) { std::memcpy(dst + to, src + from, kBytes); });
}

inline void PlaceNest(Nest nest, const std::byte* src, std::byte* dst, bool stream) {
  const auto elements = [&](auto width) {
    nest.run = 1;
    PlaceRows(nest, src, dst, MoveRow<decltype(width)::value>(stream));
  };
  switch (nest.run) {
    case 1:
      return elements(std::integral_constant<size_t, 1>());
    case 2:
      return elements(std::integral_constant<size_t, 2>());
    case 4:
      return elements(std::integral_constant<size_t, 4>());
    case 8:
      return elements(std::integral_constant<size_t, 8>());
    case 16:
      return PlaceShort<16>(nest, src, dst);
    case 32:
      return PlaceShort<32>(nest, src, dst);
    case 64:
      return PlaceShort<64>(nest, src, dst);
    case 128:
      return PlaceShort<128>(nest, src, dst);
    default:
      PlaceRows(nest, src, dst, MoveRow<1>(stream));
  }
}

inline void Place(const StridedCopy& copy, Bytes src, MutableBytes dst) {
  const Nest nest = Normalized(copy, 1, 1);
  if (nest.run == 0) return;
  const bool stream = CopiedBytes(copy) >= kStreamBytes;
  PlaceNest(nest, src.data(), dst.data(), stream);
  if (stream) hwy::FlushStream();
}

template <Element kFrom, Element kTo>
void PlaceConvertAs(const StridedCopy& copy, int add, Bytes src, MutableBytes dst) {
#if HWY_TARGET == HWY_SCALAR
  PlaceConvertNaive(copy, {kFrom, kTo, static_cast<int8_t>(add)}, src, dst);
#else
  const Nest nest = Normalized(copy, WidthOf(kFrom), WidthOf(kTo));
  if (nest.run == 0) return;
  const bool stream = CopiedBytes(copy) >= kStreamBytes;
  PlaceRows(nest, src.data(), dst.data(), ConvertRow<kFrom, kTo>(add, stream));
  if (stream) hwy::FlushStream();
#endif
}

template <Element kFrom>
void PlaceConvertFrom(const StridedCopy& copy, const Convert& c, Bytes src, MutableBytes dst) {
  switch (c.to) {
    case Element::kBF16:
      return PlaceConvertAs<kFrom, Element::kBF16>(copy, c.add, src, dst);
    case Element::kF16:
      return PlaceConvertAs<kFrom, Element::kF16>(copy, c.add, src, dst);
    default:
      return PlaceConvertAs<kFrom, Element::kF32>(copy, c.add, src, dst);
  }
}

inline void PlaceConvert(const StridedCopy& copy, const Convert& c, Bytes src, MutableBytes dst) {
  if (c.moves_only()) return Place(copy, src, dst);
  switch (c.from) {
    case Element::kBF16:
      return PlaceConvertFrom<Element::kBF16>(copy, c, src, dst);
    case Element::kF16:
      return PlaceConvertFrom<Element::kF16>(copy, c, src, dst);
    default:
      return PlaceConvertFrom<Element::kF32>(copy, c, src, dst);
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_PLACE_INL_H_
