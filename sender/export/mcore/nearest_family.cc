#include "sender/export/mcore/nearest_family.h"

#include <algorithm>

#include "common/base/similar_word.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {
namespace {

struct Nearness {
  const Family* family = nullptr;
  PlanFindings findings;
  size_t otherwise_called = 0;  ///< the distance of its name from the model's
};

/// Orders by differing tensors. Without a checkpoint all plans fit, so names decide.
bool Nearer(const Nearness& a, const Nearness& b) {
  if (a.findings.wrong() != b.findings.wrong()) return a.findings.wrong() < b.findings.wrong();
  return a.otherwise_called < b.otherwise_called;
}

size_t CalledOtherwise(const Family& family, const std::string& type) {
  size_t least = TypingErrors(family.name, type);
  for (const std::string& own : family.model_types)
    least = std::min(least, TypingErrors(own, type));
  return least;
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

/// Returns a tensor's name without the prefix of its layer, and whether it had one.
std::pair<std::string, bool> WithinLayer(const std::string& name) {
  const size_t at = name.find("layers.");
  const size_t dot = at == std::string::npos ? at : name.find('.', at + 7);
  if (dot == std::string::npos) return {name, false};
  return {name.substr(dot + 1), true};
}

std::string FirstFile(const std::string& type, const Family& family, const TensorMeta* left) {
  const TensorMeta example{"self_attn.g_proj.weight", DType::kBF16, {1, 1}};
  const auto [hf, in_layer] = WithinLayer((left != nullptr ? *left : example).name);
  const std::vector<uint64_t>& shape = (left != nullptr ? *left : example).shape;
  const bool matrix = shape.size() == 2;
  return fmt::format(
      "# {0}.toml: as {1}, but for what follows. Grammar: docs/model_families.md.\n"
      "family = \"{0}\"\n"
      "extends = \"{1}\"\n"
      "match = {{ model_type = [\"{0}\"] }}\n"
      "[dims]\n"
      "# ffn = \"intermediate_size\"  # a field that has another name here\n"
      "{2}[[param]]  # {3}\n"
      "{2}mcore = \"...\"  # the trainer's name{4}\n"
      "{2}scope = \"{5}\"\n"
      "{2}split = \"none\"  # or rows, columns: how tp cuts it\n"
      "{2}{6}\n"
      "{2}hf = \"{7}\"\n",
      type, family.name, left == nullptr ? "# " : "",
      left == nullptr ? "a parameter that it has, too"
                      : fmt::format("[{}] in the checkpoint", fmt::join(shape, ", ")),
      in_layer ? " within a layer" : "", in_layer ? "layer" : "embedding",
      matrix
          ? fmt::format("rows = {}\n{}cols = {}", shape[0], left == nullptr ? "# " : "", shape[1])
          : fmt::format("rows = {}", shape.empty() ? 1 : shape[0]),
      hf);
}

}  // namespace

std::string DescribeNearest(const FamilySet& families, const HfConfig& config,
                            const Layout* listing) {
  const std::string type = config.model_types().empty() ? "mine" : config.model_types().front();
  ParallelConfig alone;
  if (!alone.Complete().ok()) return "";
  Nearness best;
  for (const auto& [name, family] : families.families()) {
    const StatusOr<Plan> plan = Plan::Make(family, config, alone, listing);
    if (!plan.ok()) continue;
    Nearness found{&family, listing == nullptr ? PlanFindings{} : plan->Check(),
                   CalledOtherwise(family, type)};
    if (best.family == nullptr || Nearer(found, best)) best = std::move(found);
  }
  if (best.family == nullptr) return "";
  const StatusOr<Plan> plan = Plan::Make(*best.family, config, alone, listing);
  const PlanFindings& f = best.findings;
  std::string text = fmt::format("\nthe nearest family is \"{}\"", best.family->name);
  if (listing == nullptr) {
    text += ", by its name; give a directory with the checkpoint to compare tensors";
  } else if (f.ok()) {
    text += fmt::format(", which makes all {} tensors: --family {}", f.tensors, best.family->name);
  } else {
    text += fmt::format(": {}", MessageOf(f.ToStatus()));
  }
  return fmt::format(
      "{}\nbegin with this file, in a directory that --families names, and see what `deltawire "
      "plan` "
      "says:\n\n{}",
      text, FirstFile(type, *best.family, listing == nullptr ? nullptr : LeftOver(*plan)));
}

}  // namespace deltawire::mcore
