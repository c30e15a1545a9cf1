#include "sender/export/client/strided_copy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/element_width.h"

namespace deltawire {
namespace {

// The bytes of one thread's piece: enough to pay for the hand-over, few enough to share evenly.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint64_t kTile = 64;  // elements; a tile of both sides stays in the first-level cache

// Shorter copies go through the cache, because they may well be read again soon.
constexpr uint64_t kStreamBytes = uint64_t{256} << 10;

// Copies bytes that are not read again soon: large pieces bypass the cache, which saves reading the
// lines that they overwrite. Any alignment.
void CopyLarge(std::byte* to, const std::byte* from, uint64_t bytes) {
#if defined(__SSE2__)
  constexpr uint64_t kLine = 64;
  if (bytes >= kStreamBytes) {
    const uint64_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
    std::memcpy(to, from, head);
    uint64_t at = head;
    for (; at + kLine <= bytes; at += kLine) {
      for (uint64_t i = 0; i < kLine; i += sizeof(__m128i)) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i));
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i), v);
      }
    }
    _mm_sfence();  // only this orders streamed stores
    to += at, from += at, bytes -= at;
  }
#endif
  std::memcpy(to, from, bytes);
}

struct Dim {
  uint64_t size = 1;
  int64_t to = 0, from = 0;  // strides in bytes
};

// Removes dimensions of one element, and merges adjacent dimensions that are contiguous in both
// memories.
std::vector<Dim> Simplify(std::span<const int64_t> to, std::span<const int64_t> from,
                          std::span<const uint64_t> shape) {
  std::vector<Dim> dims;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    const auto size = static_cast<int64_t>(shape[i]);
    if (!dims.empty() && dims.back().to == size * to[i] && dims.back().from == size * from[i]) {
      dims.back() = {dims.back().size * shape[i], to[i], from[i]};
    } else {
      dims.push_back({shape[i], to[i], from[i]});
    }
  }
  return dims;
}

// Moves `to` and `from` to step `index` of the loops over `dims`.
void Locate(std::span<const Dim> dims, uint64_t index, std::byte*& to, const std::byte*& from) {
  for (size_t i = dims.size(); i-- > 0;) {
    const auto at = static_cast<int64_t>(index % dims[i].size);
    index /= dims[i].size;
    to += at * dims[i].to;
    from += at * dims[i].from;
  }
}

uint64_t Steps(std::span<const Dim> dims) {
  uint64_t steps = 1;
  for (const Dim& d : dims) steps *= d.size;
  return steps;
}

void ForEach(uint64_t n, uint64_t bytes, ThreadPool* pool, const std::function<void(size_t)>& fn) {
  if (pool != nullptr && n > 1 && bytes > kPieceBytes) return pool->ParallelFor(n, fn);
  for (uint64_t i = 0; i < n; ++i) fn(i);
}

// Copies if `run` bytes are contiguous in both memories, once for each step of `outer`.
void CopyRuns(std::byte* to, const std::byte* from, std::span<const Dim> outer, uint64_t run,
              ThreadPool* pool) {
  const uint64_t runs = Steps(outer);
  const uint64_t cuts = (run + kPieceBytes - 1) / kPieceBytes;      // pieces of a long run
  const uint64_t group = std::max<uint64_t>(1, kPieceBytes / run);  // short runs in a piece
  if (cuts > 1) {
    ForEach(runs * cuts, runs * run, pool, [&](size_t i) {
      std::byte* t = to;
      const std::byte* f = from;
      Locate(outer, i / cuts, t, f);
      const uint64_t at = i % cuts * kPieceBytes;
      CopyLarge(t + at, f + at, std::min(kPieceBytes, run - at));
    });
    return;
  }
  ForEach((runs + group - 1) / group, runs * run, pool, [&](size_t g) {
    const uint64_t end = std::min<uint64_t>(runs, (g + 1) * group);
    for (uint64_t i = g * group; i < end; ++i) {
      std::byte* t = to;
      const std::byte* f = from;
      Locate(outer, i, t, f);
      CopyLarge(t, f, run);
    }
  });
}

struct Wide {
  uint64_t halves[2];
};

// Copies a tile of rows x columns elements. In the source, elements along `row` are closer
// together.
template <typename T>
void CopyTile(std::byte* to, const std::byte* from, const Dim& row, const Dim& column,
              uint64_t rows, uint64_t columns) {
  for (uint64_t c = 0; c < columns; ++c) {
    std::byte* t = to + static_cast<int64_t>(c) * column.to;
    const std::byte* f = from + static_cast<int64_t>(c) * column.from;
    for (uint64_t r = 0; r < rows; ++r) {
      std::memcpy(t, f, sizeof(T));
      t += row.to;
      f += row.from;
    }
  }
}

// Copies if the source's elements are not contiguous along the last dimension.
template <typename T>
void CopyTiles(std::byte* to, const std::byte* from, std::vector<Dim> dims, ThreadPool* pool) {
  const Dim column = dims.back();
  dims.pop_back();
  Dim row;  // the dimension along which the source's elements are closest
  if (!dims.empty()) {
    const auto nearest = std::min_element(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) {
      return std::abs(a.from) < std::abs(b.from);
    });
    row = *nearest;
    dims.erase(nearest);
  }
  const uint64_t bands = (row.size + kTile - 1) / kTile;
  const uint64_t steps = Steps(dims);
  ForEach(bands * steps, steps * row.size * column.size * sizeof(T), pool, [&](size_t i) {
    std::byte* t = to;
    const std::byte* f = from;
    Locate(dims, i / bands, t, f);
    const uint64_t r = i % bands * kTile;
    t += static_cast<int64_t>(r) * row.to;
    f += static_cast<int64_t>(r) * row.from;
    const uint64_t rows = std::min(kTile, row.size - r);
    for (uint64_t c = 0; c < column.size; c += kTile) {
      CopyTile<T>(t + static_cast<int64_t>(c) * column.to,
                  f + static_cast<int64_t>(c) * column.from, row, column, rows,
                  std::min(kTile, column.size - c));
    }
  });
}

}  // namespace

void CopyStrided(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                 std::span<const int64_t> from_strides, std::span<const uint64_t> shape,
                 unsigned element, ThreadPool* pool) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  std::vector<Dim> dims = Simplify(to_strides, from_strides, shape);
  if (dims.empty()) return CopyRuns(to, from, {}, element, nullptr);
  if (dims.back().to == element && dims.back().from == element) {
    const uint64_t run = dims.back().size * element;
    dims.pop_back();
    return CopyRuns(to, from, dims, run, pool);
  }
  if (!kernels::IsElementWidth(element)) return CopyTiles<Wide>(to, from, std::move(dims), pool);
  kernels::WithWidth(
      element, [&](auto zero) { CopyTiles<decltype(zero)>(to, from, std::move(dims), pool); });
}

StatusOr<BlockCopy> BlockCopyOf(std::span<const int64_t> to_strides, const std::byte* from,
                                std::span<const int64_t> from_strides,
                                std::span<const uint64_t> shape, unsigned element) {
  std::vector<Dim> dims = Simplify(to_strides, from_strides, shape);
  BlockCopy out;
  out.copy.run_bytes = element;
  if (!dims.empty() && dims.back().to == element && dims.back().from == element) {
    out.copy.run_bytes *= dims.back().size;
    dims.pop_back();
  }
  if (dims.size() > kernels::StridedCopy::kMaxDims) {
    return Errorf(StatusCode::kUnimplemented,
                  "a block of {} dimensions that do not lie together; at most {} are copied from a "
                  "device: make it contiguous",
                  dims.size(), kernels::StridedCopy::kMaxDims);
  }
  out.copy.dims = dims.size();
  uint64_t bytes = out.copy.run_bytes;
  for (size_t i = 0; i < dims.size(); ++i) {
    out.copy.counts[i] = dims[i].size;
    out.copy.src_strides[i] = dims[i].from;
    out.copy.dst_strides[i] = dims[i].to;
    const auto last = static_cast<int64_t>(dims[i].size - 1) * dims[i].from;
    if (last < 0) out.copy.src_offset -= last;
    bytes += static_cast<uint64_t>(std::abs(last));
  }
  out.from = {from - out.copy.src_offset, bytes};
  return out;
}

}  // namespace deltawire
