#include "common/layout/chunks.h"

#include <algorithm>
#include <limits>

namespace deltawire {

// Widths are 1, 2, 4 or 8, so no chunk boundary splits an element.
static_assert(kChunkBytes % 8 == 0 && kChunkBytes <= std::numeric_limits<uint32_t>::max());

StatusOr<ChunkTable> ChunkTable::Create(const Layout& layout) {
  // Count before allocating. A layout has less than 2^63 bytes, so `total` cannot wrap.
  uint64_t total = 0;
  for (size_t t = 0; t < layout.size(); ++t) {
    total += layout.bytes(t) / kChunkBytes + (layout.bytes(t) % kChunkBytes != 0);
  }
  constexpr uint64_t kMaxChunks = std::numeric_limits<uint32_t>::max();
  if (total > kMaxChunks) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "the layout needs {} chunks of {} bytes, more than the {} that a chunk number can "
        "name: split the model",
        total, kChunkBytes, kMaxChunks);
  }

  ChunkTable table;
  table.chunks_.reserve(total);
  table.first_.reserve(layout.size() + 1);
  for (size_t t = 0; t < layout.size(); ++t) {
    table.first_.push_back(table.size());
    const auto width = static_cast<uint8_t>(DTypeBytes(layout.tensor(t).dtype));
    for (uint64_t done = 0; done < layout.bytes(t); done += kChunkBytes) {
      const uint64_t bytes = std::min(kChunkBytes, layout.bytes(t) - done);
      table.chunks_.push_back(
          {layout.offset(t) + done, static_cast<uint32_t>(bytes), static_cast<uint32_t>(t), width});
    }
  }
  table.first_.push_back(table.size());
  return table;
}

}  // namespace deltawire
