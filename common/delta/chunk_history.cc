#include "common/delta/chunk_history.h"

#include <algorithm>

#include "common/base/checksum.h"

namespace deltawire {

ChunkHistory::ChunkHistory(std::span<const std::shared_ptr<const Delta>> log, uint32_t chunk,
                           size_t limit) {
  limit = std::min({limit, log.size(), kernels::kMaxHistory});
  while (depth_ < limit) {
    const ChunkDelta* d = log[log.size() - 1 - depth_]->Find(chunk);
    if (d != nullptr && d->full) return;
    if (d != nullptr) {
      deltas_[depth_] = d->payload;
      hashes_[depth_] = d->payload_xxh3;
    }
    ++depth_;
  }
}

kernels::History ChunkHistory::First(size_t depth) const {
  kernels::History history;
  if (depth == 0) return history;
  history.deltas = std::span(deltas_).first(depth);
  std::array<std::byte, 8 * kernels::kMaxHistory> bytes;
  for (size_t i = 0; i < depth; ++i) StoreLe<uint64_t>(bytes.data() + 8 * i, hashes_[i]);
  history.context = static_cast<uint32_t>(Xxh3(Bytes(bytes).first(8 * depth)));
  return history;
}

std::span<const std::shared_ptr<const Delta>> CommonHistory(const LogView& log, StateId held,
                                                            std::span<const StateId> before) {
  size_t end = log.size();
  while (end > 0 && log[end - 1]->to() != held) --end;
  size_t first = end;
  for (const StateId& from : before) {
    if (first == 0 || log[first - 1]->from() != from) break;
    --first;
  }
  return std::span(log).subspan(first, end - first);
}

}  // namespace deltawire
