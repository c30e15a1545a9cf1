#include "sender/export/client/written_bytes.h"

#include <algorithm>
#include <ranges>

namespace deltawire {
namespace {

// The extent of dimensions [d, ..) and the run: the distance from the first byte to the end of the
// last one, and the number of written bytes in between.
struct Extent {
  uint64_t span = 0, bytes = 0;
};

Extent ExtentFrom(const Destination& to, size_t d) {
  Extent extent{to.run_bytes, to.run_bytes};
  for (; d < to.dims.size(); ++d) {
    extent.span += (to.dims[d].count - 1) * to.dims[d].stride;
    extent.bytes *= to.dims[d].count;
  }
  return extent;
}

// Returns how many bytes dimensions [d, ..) and the run write below offset `limit`, if they begin
// at 0.
uint64_t Below(const Destination& to, size_t d, uint64_t limit) {
  if (d == to.dims.size()) return std::min(limit, to.run_bytes);
  const auto [count, stride] = to.dims[d];
  const Extent inner = ExtentFrom(to, d + 1);
  // Count the steps that lie wholly below the limit, then those that it cuts. It usually cuts one,
  // or several if steps interleave.
  uint64_t step = limit < inner.span ? 0 : std::min(count, (limit - inner.span) / stride + 1);
  uint64_t bytes = step * inner.bytes;
  for (; step < count && step * stride < limit; ++step) {
    bytes += Below(to, d + 1, limit - step * stride);
  }
  return bytes;
}

}  // namespace

Destination Destination::Of(const kernels::StridedCopy& copy) {
  Destination to{static_cast<uint64_t>(copy.dst_offset), copy.run_bytes, {}};
  for (size_t d = 0; d < copy.dims; ++d) {
    to.dims.push_back({copy.counts[d], static_cast<uint64_t>(copy.dst_strides[d])});
  }
  to.Tidy();
  return to;
}

Destination Destination::OfBlock(std::span<const uint64_t> tensor, unsigned element_bytes,
                                 std::span<const uint64_t> start, std::span<const uint64_t> shape) {
  Destination to{0, element_bytes, {}};
  uint64_t stride = element_bytes;
  for (size_t d = tensor.size(); d-- > 0; stride *= tensor[d]) {
    if (!start.empty()) to.offset += start[d] * stride;
    to.dims.push_back({shape[d], stride});
  }
  to.Tidy();
  return to;
}

// Sorts the outer dimensions first, and merges adjacent runs into one.
void Destination::Tidy() {
  if (std::any_of(dims.begin(), dims.end(), [](const auto& d) { return d.count == 0; })) {
    run_bytes = 0;
  }
  if (run_bytes == 0) {
    dims.clear();
    return;
  }
  std::erase_if(dims, [](const DestinationDim& d) { return d.count == 1; });
  std::sort(dims.begin(), dims.end(),
            [](const auto& a, const auto& b) { return a.stride > b.stride; });
  while (!dims.empty() && dims.back().stride == run_bytes) {
    run_bytes *= dims.back().count;
    dims.pop_back();
  }
}

uint64_t Destination::bytes() const { return ExtentFrom(*this, 0).bytes; }

uint64_t Destination::BytesBelow(uint64_t limit) const {
  return limit <= offset ? 0 : Below(*this, 0, limit - offset);
}

std::vector<WrittenBytes> CountWrittenBytes(const ChunkTable& chunks, uint32_t t,
                                            const Destination& to) {
  std::vector<WrittenBytes> counted;
  const uint64_t all = to.bytes();
  const uint32_t first = chunks.first_of_tensor(t), end = chunks.end_of_tensor(t);
  // A layout program has many small boxes in a large tensor, so skip to the first chunk that the
  // box meets.
  const auto table = std::views::iota(first, end);
  const auto met = std::ranges::partition_point(table, [&](uint32_t c) {
    return chunks[c].offset - chunks[first].offset + chunks[c].bytes <= to.offset;
  });
  uint64_t before = 0;
  for (auto at = met; at != table.end() && before < all; ++at) {
    const uint32_t c = *at;
    const uint64_t limit = chunks[c].offset - chunks[first].offset + chunks[c].bytes;
    const uint64_t below = to.BytesBelow(limit);
    if (below > before) counted.push_back({c, static_cast<uint32_t>(below - before)});
    before = below;
  }
  return counted;
}

}  // namespace deltawire
