// The proof of Plan::Check: the boxes of all shards tile every HF tensor's view.
#include <algorithm>

#include "common/base/human.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {
namespace {

// No Megatron job cuts a tensor into more cells. The proof would need too much memory, so it fails.
constexpr uint64_t kMaxCells = uint64_t{1} << 26;

uint64_t Volume(const View& n) { return n[0] * n[1] * n[2] * n[3]; }

struct Finding {
  uint64_t missing = 0, doubled = 0;  // elements
};

/// Counts how often each cell between the boxes' edges is covered.
Finding CountCells(const View& view, std::span<const Box* const> boxes) {
  std::array<std::vector<uint64_t>, 4> edges;
  for (size_t d = 0; d < 4; ++d) {
    edges[d] = {0, view[d]};
    for (const Box* box : boxes) {
      edges[d].push_back(box->lo[d]);
      edges[d].push_back(box->lo[d] + box->n[d]);
    }
    std::sort(edges[d].begin(), edges[d].end());
    edges[d].erase(std::unique(edges[d].begin(), edges[d].end()), edges[d].end());
  }
  const auto index = [&](size_t d, uint64_t at) {
    return static_cast<size_t>(std::lower_bound(edges[d].begin(), edges[d].end(), at) -
                               edges[d].begin());
  };
  std::array<size_t, 4> n;
  uint64_t cells = 1;
  for (size_t d = 0; d < 4; ++d) {
    n[d] = edges[d].size() - 1;
    cells *= n[d];
    if (cells > kMaxCells) return {Volume(view), 0};
  }
  std::vector<uint8_t> covered(cells, 0);
  const auto each = [&](const std::array<size_t, 4>& lo, const std::array<size_t, 4>& hi,
                        const auto& fn) {
    for (size_t a = lo[0]; a < hi[0]; ++a) {
      for (size_t b = lo[1]; b < hi[1]; ++b) {
        for (size_t c = lo[2]; c < hi[2]; ++c) {
          for (size_t d = lo[3]; d < hi[3]; ++d) {
            fn(a, b, c, d, covered[((a * n[1] + b) * n[2] + c) * n[3] + d]);
          }
        }
      }
    }
  };
  for (const Box* box : boxes) {
    std::array<size_t, 4> lo, hi;
    for (size_t d = 0; d < 4; ++d) {
      lo[d] = index(d, box->lo[d]);
      hi[d] = index(d, box->lo[d] + box->n[d]);
    }
    each(lo, hi, [](auto, auto, auto, auto, uint8_t& times) {
      if (times < 2) ++times;
    });
  }
  Finding found;
  each({}, n, [&](size_t a, size_t b, size_t c, size_t d, const uint8_t& times) {
    if (times == 1) return;
    const auto side = [&](size_t dim, size_t i) { return edges[dim][i + 1] - edges[dim][i]; };
    const uint64_t elements = side(0, a) * side(1, b) * side(2, c) * side(3, d);
    (times == 0 ? found.missing : found.doubled) += elements;
  });
  return found;
}

bool Inside(const View& view, const Box& box) {
  for (size_t d = 0; d < 4; ++d) {
    if (box.lo[d] + box.n[d] > view[d]) return false;
  }
  return true;
}

Finding Tile(const View& view, std::span<const Box* const> boxes) {
  uint64_t sum = 0;
  for (const Box* box : boxes) sum += Volume(box->n);
  const uint64_t all = Volume(view);
  if (boxes.size() == 1 && sum == all) return {};
  return CountCells(view, boxes);
}

}  // namespace

PlanFindings Plan::Check() const {
  PlanFindings result;
  result.tensors = layout_->size();
  const auto say = [&](std::string text) {
    if (result.findings.size() < PlanFindings::kMaxFindings) {
      result.findings.push_back(std::move(text));
    }
  };
  for (const std::string& text : misshapen_) {
    ++result.misshapen;
    say(text);
  }
  for (const std::string& text : unlisted_) {
    ++result.unlisted;
    say(text);
  }
  std::vector<std::vector<Box>> shards;
  std::vector<std::vector<const Box*>> of_tensor(layout_->size());
  for (const PlannedParam& planned : planned_) {
    if (!planned.exported) continue;
    const uint32_t world = planned.cut.split == Split::kNone ? 1 : planned.cut.world;
    for (uint32_t t = 0; t < world; ++t) shards.push_back(ShardBoxes(planned.cut, views_, t));
  }
  for (const std::vector<Box>& boxes : shards) {
    for (const Box& box : boxes) {
      if (box.tensor < of_tensor.size()) of_tensor[box.tensor].push_back(&box);
    }
  }
  for (size_t i = 0; i < layout_->size(); ++i) {
    const TensorMeta& meta = layout_->tensor(i);
    const bool apart =
        std::find(not_trained_.begin(), not_trained_.end(), meta.name) != not_trained_.end();
    if (apart || layout_->bytes(i) == 0) continue;
    if (of_tensor[i].empty()) {
      ++result.missing;
      say(fmt::format("{} is made by no parameter", meta.name));
      continue;
    }
    const View view = views_[i].view();
    const unsigned width = DTypeBytes(meta.dtype);
    const bool outside = std::any_of(of_tensor[i].begin(), of_tensor[i].end(),
                                     [&](const Box* box) { return !Inside(view, *box); });
    if (outside || Volume(view) * width != layout_->bytes(i)) {
      ++result.misshapen;
      say(fmt::format("{} has another size in the checkpoint", meta.name));
      continue;
    }
    const Finding found = Tile(view, of_tensor[i]);
    if (found.missing > 0) {
      ++result.missing;
      say(fmt::format("{}: {} of {} are written by no rank", meta.name,
                      HumanBytes(found.missing * width), HumanBytes(layout_->bytes(i))));
    }
    if (found.doubled > 0) {
      ++result.doubled;
      say(fmt::format("{}: {} are written by more than one rank", meta.name,
                      HumanBytes(found.doubled * width)));
    }
  }
  return result;
}

}  // namespace deltawire::mcore
