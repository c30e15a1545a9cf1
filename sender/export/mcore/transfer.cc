#include "sender/export/mcore/transfer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <unordered_map>

#include "kernels/place_pieces.h"

namespace deltawire::mcore {
namespace {

// Small enough that threads finish together, large enough that a piece's set-up costs little.
constexpr size_t kPieceBytes = size_t{2} << 20;
constexpr size_t kMaxFindings = 10;

/// Returns whether `to` can represent every value of `from`.
bool Widens(DType from, DType to) {
  return from == to || ((from == DType::kBF16 || from == DType::kF16) && to == DType::kF32);
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class Findings {
 public:
  /// Puts advice at the end of the error, once.
  void Hint(std::string_view text) {
    if (hints_.find(text) == std::string::npos) hints_ += text;
  }
  void Add(std::string text) {
    if (++count_ <= kMaxFindings) text_ += "\n  " + text;
  }
  Status ToStatus(uint32_t rank) const {
    if (count_ == 0) return absl::OkStatus();
    return Errorf(
        StatusCode::kInvalidArgument,
        "rank {}: {} parameters do not fit the plan (family, config.json, parallel "
        "config):{}{}{}",
        rank, count_, text_,
        count_ > kMaxFindings ? fmt::format("\n  ... and {} more", count_ - kMaxFindings) : "",
        hints_);
  }

 private:
  size_t count_ = 0;
  std::string text_, hints_;
};

std::string Key(uint32_t chunk, std::string_view name) { return fmt::format("{}/{}", chunk, name); }

bool SameElements(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  // Dimensions of size 1 do not matter: [1, H] and [H], [C, 1, K] and [C, K].
  const auto next = [](const std::vector<uint64_t>& s, size_t i) {
    while (i < s.size() && s[i] == 1) ++i;
    return i;
  };
  size_t i = next(a, 0), j = next(b, 0);
  for (; i < a.size() && j < b.size(); i = next(a, i + 1), j = next(b, j + 1)) {
    if (a[i] != b[j]) return false;
  }
  return i == a.size() && j == b.size();
}

bool PassesThrough(const Family& family, std::string_view name) {
  for (const Passthrough& pass : family.passthrough) {
    for (const std::string& prefix : pass.mcore) {
      if (name.starts_with(prefix)) return true;
    }
    if (!pass.newer.empty() && name.starts_with(pass.newer)) return true;
  }
  return false;
}

/// Returns whether a live parameter is one that the plan knows and does not export.
bool StaysOut(const Plan& plan, std::string_view name) {
  const auto& ignored = plan.family().not_exported;
  return std::any_of(ignored.begin(), ignored.end(),
                     [&](const std::string& p) { return MatchesPattern(p, name); }) ||
         (!plan.parallel().vision && PassesThrough(plan.family(), name));
}

void AddMissing(const Plan& plan, const ShardParam& wanted, Findings* findings) {
  const PlannedParam& planned = plan.planned()[wanted.planned];
  if (planned.param == nullptr || planned.param->scope == ParamScope::kTower) {
    findings->Hint("\n  (a job that does not hold the vision part: vision=false)");
  } else if (planned.mtp || planned.param->scope == ParamScope::kMtp) {
    findings->Hint("\n  (a job without MTP layers: mtp=false)");
  }
  findings->Add(fmt::format("{} (chunk {}, {}) is missing", wanted.names.front(), wanted.chunk,
                            ShapeText(wanted.shape)));
}

/// Returns the split under which a shard has `shape`.
std::optional<Split> SplitFor(const Plan& plan, const ShardParam& shard,
                              const std::vector<uint64_t>& shape) {
  const PlannedParam& planned = plan.planned()[shard.planned];
  if (SameElements(shape, shard.shape)) return planned.cut.split;
  if (planned.other_split == planned.cut.split) return std::nullopt;
  if (!CheckCut(plan.CutAs(planned, planned.other_split)).ok()) return std::nullopt;
  if (SameElements(shape, plan.LocalShape(planned, planned.other_split)))
    return planned.other_split;
  return std::nullopt;
}

}  // namespace

kernels::Element ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return kernels::Element::kBF16;
    case DType::kF16:
      return kernels::Element::kF16;
    case DType::kF32:
      return kernels::Element::kF32;
    default:
      return kernels::Element::kBytes;
  }
}

StatusOr<std::vector<Step>> StepsOf(const Plan& plan, const ShardParam& shard, DType dtype,
                                    Split split, Direction direction, RowRange only, bool exact) {
  const PlannedParam& planned = plan.planned()[shard.planned];
  std::vector<Step> steps;
  const bool filled = direction == Direction::kFromHf;
  for (const Box& box : plan.Boxes(shard, split, only, filled)) {
    const DType hf = plan.layout().tensor(box.tensor).dtype;
    if (!Widens(dtype, hf) && !(Widens(hf, dtype) && (exact || direction == Direction::kFromHf))) {
      return Errorf(StatusCode::kInvalidArgument,
                    "{} is {} and {} is {}: that would round its values; keep the parameter in {}, "
                    "or register a checkpoint that has it in {}",
                    shard.names.front(), DTypeName(dtype), plan.layout().tensor(box.tensor).name,
                    DTypeName(hf), DTypeName(hf), DTypeName(dtype));
    }
    Step step;
    step.tensor = box.tensor;
    step.copy = CopyOf(box, plan.views()[box.tensor], DTypeBytes(dtype), DTypeBytes(hf));
    const bool moves = dtype == hf && planned.add == 0;
    step.convert.from = moves ? kernels::Element::kBytes : ElementOf(dtype);
    step.convert.to = moves ? kernels::Element::kBytes : ElementOf(hf);
    step.convert.add = planned.add;
    if (direction == Direction::kFromHf) {
      step.copy = Reversed(step.copy, DTypeBytes(dtype), DTypeBytes(hf));
      std::swap(step.convert.from, step.convert.to);
      step.convert.add = static_cast<int8_t>(-planned.add);
    }
    // Join two transposed columns that alternate: separately, each would touch every cache line.
    Step* const last = steps.empty() ? nullptr : &steps.back();
    const TensorView& view = plan.views()[box.tensor];
    if (last != nullptr && last->tensor == step.tensor && view.transpose && view.pitch < 16 &&
        last->convert == step.convert && kernels::JoinCopies(last->copy, step.copy, &last->copy)) {
      continue;
    }
    steps.push_back(step);
  }
  return steps;
}

StatusOr<std::vector<Match>> MatchRank(const Plan& plan, uint32_t rank,
                                       std::span<const LiveParam> live) {
  std::vector<ShardParam> wanted = plan.Rank(rank);
  std::unordered_multimap<std::string, size_t> by_name;
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (const std::string& name : wanted[i].names) {
      by_name.emplace(Key(wanted[i].chunk, StripWrappers(plan.family(), name)), i);
    }
  }
  Findings findings;
  std::vector<Match> matches;
  std::vector<bool> met(wanted.size(), false);
  for (size_t i = 0; i < live.size(); ++i) {
    const std::string_view name = StripWrappers(plan.family(), live[i].name);
    const auto [begin, end] = by_name.equal_range(Key(live[i].chunk, name));
    if (begin == end) {
      if (!StaysOut(plan, name)) {
        findings.Add(fmt::format("{} (chunk {}) is unknown here", name, live[i].chunk));
      }
    }
    for (auto it = begin; it != end; ++it) {
      const ShardParam& shard = wanted[it->second];
      if (met[it->second]) {
        findings.Add(fmt::format("{} (chunk {}) is there twice", name, live[i].chunk));
        continue;
      }
      met[it->second] = true;
      if (shard.optional) continue;
      const std::optional<Split> split = SplitFor(plan, shard, live[i].shape);
      if (!split) {
        findings.Add(fmt::format("{} (chunk {}) is {}, wanted {}", name, live[i].chunk,
                                 ShapeText(live[i].shape), ShapeText(shard.shape)));
        continue;
      }
      matches.push_back({i, shard, *split});
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!met[i] && !wanted[i].optional) AddMissing(plan, wanted[i], &findings);
  }
  DW_RETURN_IF_ERROR(findings.ToStatus(rank));
  // If the parameter is whole on every rank, the first rank writes it.
  for (Match& match : matches) {
    const PlannedParam& planned = plan.planned()[match.shard.planned];
    if (match.split == planned.cut.split) continue;
    const RankPlace at = PlaceOf(plan.parallel(), rank);
    match.shard.shard = match.split == Split::kNone ? 0 : at.tp;
    match.shard.writes = at.cp == 0 && at.dp == 0 && (match.split != Split::kNone || at.tp == 0);
  }
  return matches;
}

void Transfer::Add(std::vector<Step> steps, MutableBytes shard) {
  for (Step& step : steps) {
    bytes_ += kernels::CopiedBytes(step.copy);
    items_.push_back({step, shard});
  }
}

void Transfer::Run(Direction direction, const TensorMemory& tensor, ThreadPool& pool,
                   const Placed& placed) const {
  std::vector<kernels::CopyPieces> pieces;
  std::vector<std::pair<uint32_t, uint32_t>> tasks;  // item, piece
  pieces.reserve(items_.size());
  for (uint32_t i = 0; i < items_.size(); ++i) {
    pieces.emplace_back(items_[i].step.copy, items_[i].step.convert, kPieceBytes);
    for (uint32_t k = 0; k < pieces.back().count(); ++k) tasks.emplace_back(i, k);
  }
  const auto left = std::make_unique<std::atomic<size_t>[]>(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) left[i] = pieces[i].count();
  const kernels::Backend& backend = kernels::Best();
  pool.ParallelFor(tasks.size(), [&](size_t t) {
    const auto [i, k] = tasks[t];
    const Item& item = items_[i];
    const MutableBytes hf = tensor(item.step.tensor);
    const bool forth = direction == Direction::kToHf;
    const MutableBytes src = forth ? item.shard : hf, dst = forth ? hf : item.shard;
    backend.place_convert(pieces[i][k], item.step.convert, src, dst);
    // The last thread to finish sees the others' writes, and reports the step.
    if (left[i].fetch_sub(1) == 1 && placed) placed(item.step);
  });
}

}  // namespace deltawire::mcore
