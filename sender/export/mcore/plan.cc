#include "sender/export/mcore/plan.h"

#include <algorithm>

namespace deltawire::mcore {
namespace {

bool IsExpert(const PlannedParam& planned) {
  return planned.param != nullptr && planned.param->scope == ParamScope::kExpert;
}

void ReplaceNumber(std::string& text, std::string_view what, uint32_t number) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what)) {
    text.replace(at, what.size(), std::to_string(number));
  }
}

}  // namespace

std::string_view StripWrappers(const Family& family, std::string_view name) {
  const auto strip = [&](std::string_view prefix) {
    if (prefix.empty() || !name.starts_with(prefix)) return false;
    name.remove_prefix(prefix.size());
    return true;
  };
  for (bool again = true; again;) {
    again = strip("module.") || strip("_orig_mod.");
    again = strip(family.names.mcore_root) || again;
    for (const std::string& prefix : family.names.strip) again = strip(prefix) || again;
  }
  return name;
}

uint32_t Plan::World(const PlannedParam& planned, Split split) const {
  if (split == Split::kNone) return 1;
  return IsExpert(planned) ? parallel_.etp : parallel_.tp;
}

std::vector<std::string> Plan::LocalNames(const PlannedParam& planned) const {
  if (planned.param == nullptr) return planned.pass;
  const Param& param = *planned.param;
  const Names& names = family_->names;
  const bool tower = param.scope == ParamScope::kTower;
  std::vector<std::string> prefixes = {""};
  if (param.scope == ParamScope::kLayer || param.scope == ParamScope::kExpert) {
    if (planned.mtp) {
      prefixes.clear();
      for (const std::string& inner : names.mtp_inner) prefixes.push_back(names.mtp_mcore + inner);
      if (parallel_.core.minor >= CoreVersion::kNewNames)
        std::reverse(prefixes.begin(), prefixes.end());
    } else {
      prefixes = {names.layer_mcore};
    }
  } else if (param.scope == ParamScope::kMtp) {
    prefixes = {names.mtp_mcore};
  }
  // Try this job's spelling first, then the others.
  std::vector<std::string> spellings = param.mcore.Own(parallel_.spec, parallel_.experts);
  if (param.mcore.forms.size() > 1) {
    const auto& other = param.mcore.Other(parallel_.spec, parallel_.experts);
    spellings.insert(spellings.end(), other.begin(), other.end());
  }
  const uint32_t local_expert =
      IsExpert(planned) ? planned.expert % (experts_ / parallel_.ep) : planned.expert;
  std::vector<std::string> out;
  for (const std::string& spelling : spellings) {
    for (const std::string& prefix : prefixes) {
      std::string name = (tower ? "" : names.mcore_root) + prefix + spelling;
      if (name.find('{') != std::string::npos) {
        // The parts of an MTP layer are numbered over the whole model; see docs/model_families.md.
        ReplaceNumber(name, "{n}", planned.layer);
        ReplaceNumber(name, "{k}", planned.local);
        ReplaceNumber(name, "{i}", planned.inner);
        ReplaceNumber(name, "{e}", local_expert);
      }
      out.push_back(std::move(name));
    }
  }
  return out;
}

std::vector<uint64_t> Plan::LocalShape(const PlannedParam& planned, Split split) const {
  const ParamCut cut = CutAs(planned, split);
  if (planned.param == nullptr) return layout_->tensor(cut.parts[0].tensor).shape;
  if (cut.flat) return {cut.local_rows()};
  // Further dimensions (a kernel's taps) are not cut: only rows are.
  if (planned.param->shape.size() > 2 && planned.param->packed.empty()) {
    std::vector<uint64_t> shape = planned.shape;
    shape.front() = cut.local_rows();
    return shape;
  }
  return {cut.local_rows(), cut.local_cols()};
}

Plan Plan::WithTrainersValues() const {
  Plan plan = *this;
  for (PlannedParam& planned : plan.planned_) planned.add = 0;
  return plan;
}

std::vector<ShardParam> Plan::Rank(uint32_t rank) const {
  const RankPlace at = PlaceOf(parallel_, rank);
  std::vector<ShardParam> out;
  for (uint32_t v = 0; v < parallel_.vpp; ++v) {
    for (const uint32_t s : by_chunk_[size_t{v} * parallel_.pp + at.pp]) {
      const PlannedParam& planned = planned_[s];
      const bool expert = IsExpert(planned);
      if (expert && planned.expert / (experts_ / parallel_.ep) != at.ep) continue;
      ShardParam shard;
      shard.planned = s;
      shard.chunk = v;
      shard.names = LocalNames(planned);
      shard.dtype = planned.dtype;
      shard.optional = !planned.exported;
      shard.made = planned.made;
      const uint32_t peer = expert ? at.etp : at.tp;
      const bool cut = planned.cut.split != Split::kNone;
      shard.shard = cut ? peer : 0;
      if (!planned.cut.parts.empty()) shard.shape = LocalShape(planned, planned.cut.split);
      if (planned.exported) {
        const bool first_copy = expert ? at.expert_dp == 0 : at.cp == 0 && at.dp == 0;
        shard.writes = first_copy && (cut || peer == 0);
      }
      out.push_back(std::move(shard));
    }
  }
  return out;
}

ParamCut Plan::CutAs(const PlannedParam& planned, Split split) const {
  ParamCut cut = planned.cut;
  cut.split = split;
  cut.world = World(planned, split);
  return cut;
}

std::vector<Box> Plan::Boxes(const ShardParam& shard, std::optional<Split> split, RowRange only,
                             bool filled) const {
  const PlannedParam& planned = planned_[shard.planned];
  if (!split || *split == planned.cut.split) {
    return ShardBoxes(planned.cut, views_, shard.shard, only, filled);
  }
  return ShardBoxes(CutAs(planned, *split), views_, shard.shard, only, filled);
}

uint32_t Plan::Writer(const PlannedParam& planned, uint32_t t) const {
  const uint32_t p = planned.chunk % parallel_.pp;
  if (!IsExpert(planned)) return parallel_.DensePrimary(t, p);
  return parallel_.ExpertPrimary(t, planned.expert / (experts_ / parallel_.ep), p);
}

std::vector<uint64_t> Plan::BytesPerRank() const {
  std::vector<uint64_t> bytes(parallel_.world(), 0);
  for (const PlannedParam& planned : planned_) {
    if (!planned.exported) continue;
    const ParamCut& cut = planned.cut;
    uint64_t total = 0;
    for (const RowPart& part : cut.parts) {
      if (part.tensor >= layout_->size()) continue;
      if (part.filled) continue;
      total += part.hf_rows() * cut.cols * DTypeBytes(layout_->tensor(part.tensor).dtype);
    }
    const uint32_t world = cut.split == Split::kNone ? 1 : cut.world;
    for (uint32_t t = 0; t < world; ++t) bytes[Writer(planned, t)] += total / world;
  }
  return bytes;
}

Status PlanFindings::ToStatus() const {
  if (ok()) return absl::OkStatus();
  std::string counts;
  for (const auto& [n, what] : {std::pair{missing, "missing"},
                                {doubled, "written twice"},
                                {misshapen, "of another shape"},
                                {unlisted, "not in the checkpoint"}}) {
    if (n > 0) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", n, what);
  }
  std::string text = fmt::format("{} of {} HF tensors would not be written exactly once ({})",
                                 wrong(), tensors + unlisted, counts);
  for (const std::string& finding : findings) text += "\n  " + finding;
  if (wrong() > findings.size()) {
    text += fmt::format("\n  ... and {} more", wrong() - findings.size());
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace deltawire::mcore
