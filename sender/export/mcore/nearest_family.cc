#include "sender/export/mcore/nearest_family.h"

#include <algorithm>
#include <charconv>

#include "common/base/similar_word.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {
namespace {

constexpr std::string_view kLayers = "layers.";
constexpr const char* kBase = "llama";       // what every family extends
constexpr const char* kExpertsBase = "moe";  // and those with experts

/// The entry where no tensor of the checkpoint is left over.
constexpr const char* kExample =
    "# [[param]]  # a parameter that it has, too\n"
    "# mcore = \"...\"  # the trainer's name within a layer\n"
    "# split = \"none\"  # or rows, columns: how tp cuts it\n"
    "# rows = \"hidden\"\n"
    "# cols = \"hidden\"\n"
    "# hf = \"self_attn.g_proj.weight\"\n";

struct Candidate {
  Family family;  ///< with the root of the checkpoint's names
  bool other_root = false;
  PlanFindings findings;
  size_t distance = 0;  ///< of its name from the model's
};

/// Orders by differing tensors. Without a checkpoint all plans fit, so names decide.
bool Nearer(const Candidate& a, const Candidate& b) {
  if (a.findings.wrong() != b.findings.wrong()) return a.findings.wrong() < b.findings.wrong();
  return a.distance < b.distance;
}

size_t Distance(const Family& family, const std::string& type) {
  size_t least = TypingErrors(family.name, type);
  for (const std::string& own : family.model_types)
    least = std::min(least, TypingErrors(own, type));
  return least;
}

/// Returns the text before "layers." under which the checkpoint has most bytes, if it has layers.
std::optional<std::string> RootOf(const Layout& listing) {
  std::map<std::string, uint64_t> bytes;
  for (size_t i = 0; i < listing.size(); ++i) {
    const std::string& name = listing.tensor(i).name;
    const size_t at = name.find(kLayers);
    if (at != std::string::npos) bytes[name.substr(0, at)] += listing.bytes(i);
  }
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == bytes.end()) return std::nullopt;
  return most->first;
}

/// Returns the first tensor of the checkpoint that `plan` does not cover, or null.
const TensorMeta* LeftOver(const Plan& plan) {
  std::vector<bool> made(plan.layout().size(), false);
  for (const PlannedParam& planned : plan.planned()) {
    for (const RowPart& part : planned.cut.parts) {
      if (planned.exported && part.tensor < made.size()) made[part.tensor] = true;
    }
  }
  for (size_t i = 0; i < made.size(); ++i) {
    const TensorMeta& meta = plan.layout().tensor(i);
    const auto& apart = plan.not_trained();
    if (!made[i] && std::find(apart.begin(), apart.end(), meta.name) == apart.end()) return &meta;
  }
  return nullptr;
}

/// Returns a tensor's name without the prefix of its layer, and the layer, if it has one.
std::pair<std::string, std::optional<uint32_t>> WithinLayer(const std::string& name) {
  const size_t at = name.find(kLayers);
  if (at == std::string::npos) return {name, std::nullopt};
  uint32_t layer = 0;
  const char* const end = name.data() + name.size();
  const auto [dot, error] = std::from_chars(name.data() + at + kLayers.size(), end, layer);
  if (error != std::errc() || dot == end || *dot != '.') return {name, std::nullopt};
  return {std::string(dot + 1, end), layer};
}

/// Returns the parameter that `left` may be under another name: the only one of its layer and shape
/// whose tensor the checkpoint lacks. Null if there is none.
const PlannedParam* Renamed(const Plan& plan, const TensorMeta& left) {
  const std::optional<uint32_t> layer = WithinLayer(left.name).second;
  const PlannedParam* found = nullptr;
  for (const PlannedParam& planned : plan.planned()) {
    const Param* const param = planned.param;
    const bool plain = param != nullptr && param->scope == ParamScope::kLayer && !planned.mtp &&
                       planned.exported && param->parts.size() == 1 && param->shape.empty() &&
                       !param->per_shard && param->packed.empty();
    if (!plain || planned.layer != layer || planned.cut.parts.empty()) continue;
    const bool listed = planned.cut.parts[0].tensor < plan.layout().size();
    if (listed || plan.LocalShape(planned, Split::kNone) != left.shape) continue;
    if (found != nullptr) return nullptr;
    found = &planned;
  }
  return found;
}

/// Returns the text in a family's file for `spelling`.
std::string Spelled(const Spelling& spelling) {
  const auto quoted = [](const std::vector<std::string>& form) {
    return form.size() == 1 ? fmt::format("\"{}\"", form[0])
                            : fmt::format("[\"{}\"]", fmt::join(form, "\", \""));
  };
  if (spelling.by == Spelling::By::kNothing) return quoted(spelling.forms.front());
  const bool spec = spelling.by == Spelling::By::kSpec;
  return fmt::format("{{ {} = {}, {} = {} }}", spec ? "te" : "grouped",
                     quoted(spelling.forms.front()), spec ? "local" : "sequential",
                     quoted(spelling.forms.back()));
}

/// Returns the entry for `left`, which is `as` under another name if that is not null.
std::string Entry(const TensorMeta& left, const PlannedParam* as) {
  const auto [hf, layer] = WithinLayer(left.name);
  const std::string shape = fmt::format("[{}] in the checkpoint", fmt::join(left.shape, ", "));
  if (as != nullptr) {
    const Param& param = *as->param;
    return fmt::format(
        "[[param]]  # {}, as {}\nmcore = {}\nwhen = \"{}\"\nsplit = {}\nrows = \"{}\"\n{}hf = "
        "\"{}\"\n",
        shape, param.parts[0].hf, Spelled(param.mcore), param.when, Spelled(param.split),
        param.parts[0].rows, param.cols.empty() ? "" : fmt::format("cols = \"{}\"\n", param.cols),
        hf);
  }
  return fmt::format(
      "[[param]]  # {}\n"
      "mcore = \"...\"  # the trainer's name{}\n"
      "scope = \"{}\"\n"
      "split = \"none\"  # or rows, columns: how tp cuts it\n"
      "rows = {}\n{}"
      "hf = \"{}\"\n",
      shape, layer ? " within a layer" : "", layer ? "layer" : "embedding",
      left.shape.empty() ? 1 : left.shape[0],
      left.shape.size() == 2 ? fmt::format("cols = {}\n", left.shape[1]) : "", hf);
}

std::string FirstFile(const std::string& type, const Candidate& nearest, const std::string& entry) {
  return fmt::format(
      "\nbegin with this file, in a directory that --families names, and see what `deltawire plan` "
      "says:\n\n"
      "# {0}.toml: as {1}, but for what follows. Grammar: docs/model_families.md.\n"
      "family = \"{0}\"\n"
      "extends = \"{1}\"\n"
      "match = {{ model_type = [\"{0}\"] }}\n{2}"
      "[dims]\n"
      "# ffn = \"intermediate_size\"  # a field that has another name here\n{3}",
      type, nearest.family.name,
      nearest.other_root
          ? fmt::format("names = {{ root = \"{}\" }}\n", nearest.family.names.root.front())
          : "",
      entry);
}

/// Returns the family to begin with if nothing says which one is near.
const Family& Base(const FamilySet& families, const HfConfig& config) {
  for (const char* field : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.Field(field, 0)) return families.families().at(kExpertsBase);
  }
  return families.families().at(kBase);
}

}  // namespace

std::string DescribeNearest(const FamilySet& families, const HfConfig& config,
                            const Layout* listing) {
  const std::string type = config.model_types().empty() ? "mine" : config.model_types().front();
  ParallelConfig alone;
  if (!alone.Complete().ok()) return "";
  const std::optional<std::string> root = listing != nullptr ? RootOf(*listing) : std::nullopt;
  std::optional<Candidate> best;
  for (const auto& [name, family] : families.families()) {
    Candidate found{family, false, {}, Distance(family, type)};
    std::vector<std::string>& roots = found.family.names.root;
    if (root && std::find(roots.begin(), roots.end(), *root) == roots.end()) {
      roots = {*root};
      found.other_root = true;
    }
    const StatusOr<Plan> plan = Plan::Make(found.family, config, alone, listing);
    if (!plan.ok()) continue;
    if (listing != nullptr) found.findings = plan->Check();
    if (!best || Nearer(found, *best)) best = std::move(found);
  }
  const bool alike = best && best->distance * 2 <= type.size();
  if (!best || (listing == nullptr && !alike)) {
    const Candidate base{Base(families, config), false, {}, 0};
    const StatusOr<Plan> plan = Plan::Make(base.family, config, alone, listing);
    return fmt::format("\nno family is near: {}",
                       best ? "give a directory with the checkpoint to compare tensors"
                            : MessageOf(plan.status())) +
           FirstFile(type, base, kExample);
  }
  const StatusOr<Plan> plan = Plan::Make(best->family, config, alone, listing);
  const PlanFindings& f = best->findings;
  std::string text = fmt::format("\nthe nearest family is \"{}\"", best->family.name);
  if (listing == nullptr) {
    text += ", by its name; give a directory with the checkpoint to compare tensors";
  } else if (f.ok() && !best->other_root) {
    text += fmt::format(", which makes all {} tensors: --family {}", f.tensors, best->family.name);
  } else {
    if (best->other_root) text += fmt::format(", with names that begin with \"{}\"", *root);
    if (!f.ok()) text += fmt::format(": {}", MessageOf(f.ToStatus()));
  }
  const TensorMeta* const left = listing == nullptr ? nullptr : LeftOver(*plan);
  return text +
         FirstFile(type, *best, left == nullptr ? kExample : Entry(*left, Renamed(*plan, *left)));
}

}  // namespace deltawire::mcore
