#include "sender/export/mcore/node_part.h"

#include <algorithm>

namespace deltawire::mcore {
namespace {

constexpr size_t kMaxNamed = 5;

/// Adds `box`'s bytes to `owned`, which counts the bytes of each of the tensor's chunks.
void CountBytes(const Box& box, const TensorView& tensor, unsigned width, uint64_t chunk_bytes,
                std::vector<uint64_t>& owned) {
  const View view = tensor.view();
  // Innermost dimensions that the box spans wholly join into one run.
  size_t inner = 4;
  uint64_t run = width;
  while (inner > 0 && box.n[inner - 1] == view[inner - 1]) run *= view[--inner];
  if (inner > 0) run *= box.n[--inner];
  View stride{};
  uint64_t step = width;
  for (size_t d = 4; d-- > 0;) {
    stride[d] = step;
    step *= view[d];
  }
  uint64_t first = 0, runs = 1;
  for (size_t d = 0; d < 4; ++d) first += box.lo[d] * stride[d];
  for (size_t d = 0; d < inner; ++d) runs *= box.n[d];
  for (uint64_t i = 0; i < runs; ++i) {
    uint64_t at = first, rest = i;
    for (size_t d = inner; d-- > 0;) {
      at += rest % box.n[d] * stride[d];
      rest /= box.n[d];
    }
    for (uint64_t end = at + run; at < end;) {
      const uint64_t chunk = at / chunk_bytes;
      const uint64_t here = std::min(end, (chunk + 1) * chunk_bytes) - at;
      owned[chunk] += here;
      at += here;
    }
  }
}

/// The boxes of one tensor that the node writes, and whether other nodes write any.
struct Writers {
  std::vector<Box> mine;
  bool others = false;
};

std::vector<Writers> Sort(const Plan& plan, const std::vector<bool>& on_node) {
  std::vector<Writers> of_tensor(plan.layout().size());
  for (const PlannedParam& planned : plan.planned()) {
    if (!planned.exported) continue;
    const uint32_t world = planned.cut.split == Split::kNone ? 1 : planned.cut.world;
    for (uint32_t t = 0; t < world; ++t) {
      const bool mine = on_node[plan.Writer(planned, t)];
      for (const Box& box : ShardBoxes(planned.cut, plan.views(), t)) {
        Writers& writers = of_tensor[box.tensor];
        if (mine) {
          writers.mine.push_back(box);
        } else {
          writers.others = true;
        }
      }
    }
  }
  return of_tensor;
}

}  // namespace

StatusOr<std::vector<ChunkRange>> NodePart(const Plan& plan, const ChunkTable& chunks,
                                           std::span<const uint32_t> ranks) {
  std::vector<bool> on_node(plan.parallel().world(), false);
  for (const uint32_t rank : ranks) {
    if (rank >= on_node.size()) {
      return Errorf(StatusCode::kInvalidArgument, "rank {}: the parallel config makes {} ranks",
                    rank, on_node.size());
    }
    on_node[rank] = true;
  }
  const std::vector<Writers> of_tensor = Sort(plan, on_node);
  std::vector<std::string> shared;
  std::vector<ChunkRange> part;
  const auto add = [&](uint32_t first, uint32_t last) {
    if (first == last) return;
    if (!part.empty() && part.back().last == first) {
      part.back().last = last;
    } else {
      part.push_back({first, last});
    }
  };
  for (size_t i = 0; i < plan.layout().size(); ++i) {
    const uint32_t first = chunks.first_of_tensor(i), end = chunks.end_of_tensor(i);
    const std::string& name = plan.layout().tensor(i).name;
    const Writers& writers = of_tensor[i];
    const bool made = !writers.mine.empty() || writers.others;
    if (!writers.others && (made ? !writers.mine.empty() : on_node[0])) {
      add(first, end);
    } else if (writers.others && !writers.mine.empty()) {
      std::vector<uint64_t> owned(end - first, 0);
      for (const Box& box : writers.mine) {
        CountBytes(box, plan.views()[i], DTypeBytes(plan.layout().tensor(i).dtype), kChunkBytes,
                   owned);
      }
      bool split = false;
      for (uint32_t c = first; c < end; ++c) {
        const uint64_t bytes = owned[c - first];
        if (bytes == chunks[c].bytes) add(c, c + 1);
        split = split || (bytes > 0 && bytes < chunks[c].bytes);
      }
      if (split) shared.push_back(name);
    }
  }
  if (shared.empty()) return part;
  const size_t named = std::min(shared.size(), kMaxNamed);
  return Errorf(
      StatusCode::kFailedPrecondition,
      "chunks of {} tensors are written by ranks of several nodes, e.g. {}; keep the ranks "
      "that share a tensor on one node, or gather to one rank",
      shared.size(), fmt::join(shared.begin(), shared.begin() + named, ", "));
}

}  // namespace deltawire::mcore
