// Plan::Check finds the faults that are planted: gaps, overlaps, other shapes, and tensors that
// nothing makes.
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::plan_check_test {
namespace {

using testing::Changed;
using testing::Get;
using testing::kTinyLlama;
using testing::PlanOf;
using testing::TextOf;

/// The findings for a family whose only layer parameter is `param`, with one layer.
PlanFindings CheckOf(const std::string& param, const std::string& parallel,
                     const std::vector<TensorMeta>& listed = {}) {
  const Family family = Get(ParseFamily(R"(family = "f"
[dims]
layers = 1
vocab = 8
experts = 0
mtp_layers = 0
tied = 1
[names]
layer_mcore = "l.{k}."
layer_hf = "l.{n}."
root = "r."
)" + param,
                                        "f.toml"));
  const HfConfig config = Get(HfConfig::Parse("{}"));
  const ParallelConfig p = Get(ParallelConfig::Parse(parallel));
  if (listed.empty()) return Get(Plan::Make(family, config, p)).Check();
  const Layout layout = Get(Layout::Create(listed));
  return Get(Plan::Make(family, config, p, &layout)).Check();
}

bool Says(const PlanFindings& c, const std::string& text) {
  for (const std::string& finding : c.findings) {
    if (finding.find(text) != std::string::npos) return true;
  }
  UNSCOPED_INFO(fmt::format("{}", fmt::join(c.findings, "\n")));
  return false;
}

TEST_CASE("plan check: what tiles a tensor passes") {
  const PlanFindings c = CheckOf(R"([[param]]
mcore = "m"
split = "rows"
cols = 3
groups = 2
parts = [{ hf = "a", rows = 8 }, { hf = "b", rows = 4 }]
)",
                                 "tp=3");
  CHECK(c.ok());
  CHECK(c.tensors == 2);
  CHECK(c.ToStatus().ok());
}

TEST_CASE("plan check: a gap between two parts is found with its size") {
  const PlanFindings c = CheckOf(R"([[param]]
mcore = "m"
split = "rows"
per_shard = true
cols = 4
parts = [{ hf = "a", rows = 8 }, { hf = "a", rows = 8, at = 10 }]
)",
                                 "tp=2");
  CHECK_FALSE(c.ok());
  CHECK(c.missing == 1);
  CHECK(c.doubled == 0);
  CHECK(Says(c, "l.0.a: 16 B of 144 B are written by no rank"));
  CHECK(TextOf(c.ToStatus()).find("1 of 1 HF tensors") == 0);
}

TEST_CASE("plan check: an overlap of two parts is found with its size") {
  const PlanFindings c = CheckOf(R"([[param]]
mcore = "m"
split = "columns"
cols = 4
parts = [{ hf = "a", rows = 8 }, { hf = "a", rows = 8, at = 6 }]
)",
                                 "tp=2");
  CHECK(c.doubled == 1);
  CHECK(c.missing == 0);
  CHECK(Says(c, "l.0.a: 16 B are written by more than one rank"));
}

TEST_CASE("plan check: gaps and overlaps of runs are found in a transposed tensor") {
  const char* param = R"([[param]]
mcore = "m"
transpose = true
cols = 5
parts = [{ hf = "a", rows = 6, runs = 3, pitch = 4 }, { hf = "a", rows = 6, runs = 3, pitch = 4, at = AT }]
)";
  const auto with = [&](const char* at) {
    std::string text = param;
    return CheckOf(text.replace(text.find("AT"), 2, at), "");
  };
  CHECK(with("2").ok());
  const PlanFindings c = with("1");
  CHECK(Says(c, "l.0.a: 30 B of 120 B are written by no rank"));
  CHECK(Says(c, "l.0.a: 30 B are written by more than one rank"));
}

TEST_CASE("plan check: one tensor made by two parameters is found to be written twice") {
  const PlanFindings c = CheckOf(R"([[param]]
mcore = "m"
rows = 4
hf = "a"
[[param]]
mcore = "n"
rows = 4
hf = "a"
)",
                                 "");
  CHECK(Says(c, "l.0.a: 8 B are written by more than one rank"));
}

TEST_CASE("plan check: a checkpoint has the family's tensors in their shapes and no others") {
  const char* param = "[[param]]\nmcore = \"m\"\nrows = 4\ncols = 3\nhf = \"a\"\n";
  CHECK(CheckOf(param, "", {{"l.0.a", DType::kBF16, {4, 3}}}).ok());
  // The checkpoint's dtype counts.
  CHECK(CheckOf(param, "", {{"l.0.a", DType::kF32, {4, 3}}}).ok());
  const PlanFindings shape = CheckOf(param, "", {{"l.0.a", DType::kBF16, {3, 4}}});
  CHECK(Says(shape, "l.0.a is [3, 4] in the checkpoint, and [4, 3] by the family"));
  const PlanFindings size = CheckOf(param, "", {{"l.0.a", DType::kBF16, {5, 3}}});
  CHECK_FALSE(size.ok());
  const PlanFindings more =
      CheckOf(param, "", {{"l.0.a", DType::kBF16, {4, 3}}, {"l.0.b", DType::kBF16, {2}}});
  CHECK(more.missing == 1);
  CHECK(Says(more, "l.0.b is made by no parameter"));
  const PlanFindings less = CheckOf(param, "", {{"l.1.a", DType::kBF16, {4, 3}}});
  CHECK(Says(less, "l.0.a is made by the family, but the checkpoint has no such tensor"));
  CHECK(Says(less, "l.1.a is made by no parameter"));
}

TEST_CASE("plan check: ten findings are named and all are counted") {
  const Layout layout = PlanOf(kTinyLlama, "").plan.layout();
  std::vector<TensorMeta> more;
  for (int i = 0; i < 25; ++i) more.push_back({fmt::format("extra.{}", i), DType::kBF16, {1}});
  const Layout listing = Changed(layout, {}, more);
  const PlanFindings c = PlanOf(kTinyLlama, "tp=2", &listing).plan.Check();
  CHECK(c.missing == 25);
  CHECK(c.findings.size() == PlanFindings::kMaxFindings);
}

TEST_CASE("plan check: the error says how many of each kind, without kinds that do not occur") {
  PlanFindings c;
  c.tensors = 40;
  CHECK(c.ToStatus().ok());
  c.missing = 2;
  c.unlisted = 1;
  c.findings = {"a", "b", "c"};
  CHECK(absl::IsFailedPrecondition(c.ToStatus()));
  CHECK(TextOf(c.ToStatus()) ==
        "3 of 41 HF tensors would not be written exactly once (2 missing, 1 not in the checkpoint)"
        "\n  a\n  b\n  c");
  c.doubled = 4;
  c.misshapen = 5;
  CHECK(TextOf(c.ToStatus()) ==
        "12 of 41 HF tensors would not be written exactly once (2 missing, 4 written twice, 5 of "
        "another shape, 1 not in the checkpoint)\n  a\n  b\n  c\n  ... and 9 more");
}

TEST_CASE("plan check: heads that tp does not cut are refused in the trainer's words") {
  const auto refusal = [](const std::string& config_json, const std::string& parallel) {
    const HfConfig config = Get(HfConfig::Parse(config_json));
    const Family* family = Get(testing::Families().Select(config));
    return TextOf(Plan::Make(*family, config, Get(ParallelConfig::Parse(parallel))));
  };
  CHECK(refusal(kTinyLlama, "tp=3") ==
        "4 attention heads cannot be cut into tp=3: megatron-core wants a multiple of tp");
  constexpr const char* kThreeGroups = R"({"model_type": "llama", "num_hidden_layers": 2,
    "hidden_size": 24, "num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 6,
    "intermediate_size": 16, "vocab_size": 19})";
  CHECK(refusal(kThreeGroups, "tp=2") ==
        "3 groups of keys and values cannot be cut into tp=2: megatron-core wants a multiple or a "
        "divisor of tp");
  CHECK(refusal(kTinyLlama, "tp=2,ep=2") == "ep=2, and the model has no experts");
}

TEST_CASE("plan check: what cannot be planned is refused with the reason") {
  const auto refusal = [](const std::string& param, const std::string& parallel) {
    const Family family = Get(ParseFamily(
        "family = \"f\"\n[dims]\nlayers = 1\nvocab = 8\nexperts = 6\nmtp_layers = 0\ntied = 1\n"
        "[names]\nlayer_mcore = \"l.\"\nlayer_hf = \"l.\"\nroot = \"r.\"\n[[param]]\nmcore = "
        "\"m\"\n" +
            param,
        "f.toml"));
    const StatusOr<Plan> plan =
        Plan::Make(family, Get(HfConfig::Parse("{}")), Get(ParallelConfig::Parse(parallel)));
    REQUIRE_FALSE(plan.ok());
    return TextOf(plan);
  };
  CHECK(refusal("rows = 5\nsplit = \"rows\"\nhf = \"a\"\n", "tp=2") ==
        "f.toml:12: m: 5 rows cannot be cut into 2");
  CHECK(refusal("rows = \"height\"\nhf = \"a\"\n", "")
            .find("f.toml:12: m: config.json has no field \"height\"") == 0);
  CHECK(refusal("rows = 4\nwhen = \"height\"\nhf = \"a\"\n", "")
            .find("f.toml:12: config.json has no field \"height\"") == 0);
  CHECK(refusal("scope = \"expert\"\nrows = 5\nhf = \"a{e}\"\n", "ep=4") ==
        "6 experts cannot be cut into ep=4");
  CHECK(refusal("cols = 2\nparts = [{ hf = \"a\", rows = 2 }, { hf = \"a\", rows = 2, at = 2, "
                "dtype = \"F32\" }]\n",
                "")
            .find("disagree on its columns") != std::string::npos);
  CHECK(refusal("rows = 5\nhf = \"a\"\n", "padded_vocab=7") ==
        "padded_vocab=7 is less than the vocabulary of 8");
}

}  // namespace
}  // namespace deltawire::mcore::plan_check_test
