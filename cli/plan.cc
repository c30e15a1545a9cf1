// The plan command: shows the result of a Megatron job's export, and proves it from metadata.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "sender/export/mcore/hf_model.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

struct PlanOptions : Common, JobArguments {
  uint64_t bucket = uint64_t{512} << 20;
  bool tensors = false;
};

struct Result {
  explicit Result(mcore::Plan made) : plan(std::move(made)) {}
  mcore::Plan plan;
  mcore::PlanFindings findings;
  bool listed = false;
  double seconds = 0;
};

uint64_t Parameters(const Layout& layout) {
  uint64_t n = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    n += layout.bytes(i) / DTypeBytes(layout.tensor(i).dtype);
  }
  return n;
}

/// The cost of gathering to one rank with a given bucket size. The last bucket may be smaller.
struct Gathering {
  uint64_t buckets = 0;
  uint64_t peak_bytes = 0;
};
Gathering GatheringOf(uint64_t bytes, uint64_t bucket) {
  const uint64_t buckets = (bytes + bucket - 1) / bucket;
  return {buckets, std::min<uint64_t>(buckets, 2) * std::min(bucket, bytes)};
}

void Show(const Result& r, const PlanOptions& o) {
  const mcore::Plan& plan = r.plan;
  const mcore::ParallelConfig& p = plan.parallel();
  const Layout& layout = plan.layout();
  const std::vector<uint64_t> bytes = plan.BytesPerRank();
  const auto writers = std::count_if(bytes.begin(), bytes.end(), [](uint64_t n) { return n > 0; });
  const uint64_t most = *std::max_element(bytes.begin(), bytes.end());
  const Gathering gather = GatheringOf(layout.total_bytes(), o.bucket);
  uint64_t shards = 0, steps = 0;
  for (const mcore::PlannedParam& planned : plan.planned()) {
    if (!planned.exported) continue;
    const uint32_t world = planned.cut.split == mcore::Split::kNone ? 1 : planned.cut.world;
    shards += world;
    for (uint32_t t = 0; t < world; ++t) {
      steps += mcore::ShardBoxes(planned.cut, plan.views(), t).size();
    }
  }
  std::printf("Model         family %s, %s tensors, %s parameters, %s%s\n",
              r.plan.family().name.c_str(), Grouped(layout.size()).c_str(),
              Grouped(Parameters(layout)).c_str(), HumanBytes(layout.total_bytes()).c_str(),
              r.listed ? "" : " (names and shapes by the family)");
  std::printf("Parallel      tp %u, pp %u, vpp %u, ep %u, etp %u, cp %u, dp %u: %s ranks\n", p.tp,
              p.pp, p.vpp, p.ep, p.etp, p.cp, p.dp, Grouped(p.world()).c_str());
  std::printf("Programs      %s shards, %s strided copies; planned and checked in %s\n",
              Grouped(shards).c_str(), Grouped(steps).c_str(), HumanSeconds(r.seconds).c_str());
  std::printf("Place         %s of %s ranks write, %s at most each; no buffers\n",
              Grouped(static_cast<uint64_t>(writers)).c_str(), Grouped(p.world()).c_str(),
              HumanBytes(most).c_str());
  std::printf("Gather        %s buckets of %s; %s at most on the gathering rank\n",
              Grouped(gather.buckets).c_str(), HumanBytes(o.bucket).c_str(),
              HumanBytes(gather.peak_bytes).c_str());
  if (!plan.not_trained().empty()) {
    std::printf("Not trained   %zu tensors stay as in the checkpoint, e.g. %s\n",
                plan.not_trained().size(), plan.not_trained().front().c_str());
  }
  for (const std::string& note : plan.notes()) std::printf("Note          %s\n", note.c_str());
  std::printf("Proof         %s\n", r.findings.ok()
                                        ? "every byte of every tensor is written exactly once"
                                        : std::string(MessageOf(r.findings.ToStatus())).c_str());
}

void ShowJson(const Result& r, const PlanOptions& o) {
  const mcore::Plan& plan = r.plan;
  const Layout& layout = plan.layout();
  const Gathering gather = GatheringOf(layout.total_bytes(), o.bucket);
  Json tensors = Json::array();
  if (o.tensors) {
    for (const TensorMeta& t : layout.tensors()) {
      tensors.push_back({{"name", t.name}, {"dtype", DTypeName(t.dtype)}, {"shape", t.shape}});
    }
  }
  Json json = {{"family", r.plan.family().name},
               {"tensors", layout.size()},
               {"parameters", Parameters(layout)},
               {"model_bytes", layout.total_bytes()},
               {"fingerprint", layout.fingerprint().Hex()},
               {"parallel", Json::parse(plan.parallel().ToJson())},
               {"ranks", plan.parallel().world()},
               {"bytes_per_rank", plan.BytesPerRank()},
               {"gather_buckets", gather.buckets},
               {"gather_peak_bytes", gather.peak_bytes},
               {"not_trained", plan.not_trained()},
               {"missing", r.findings.missing},
               {"doubled", r.findings.doubled},
               {"misshapen", r.findings.misshapen},
               {"unlisted", r.findings.unlisted},
               {"notes", plan.notes()},
               {"findings", r.findings.findings},
               {"plan_seconds", r.seconds}};
  if (o.tensors) json["tensors_meta"] = tensors;
  PrintJson(json);
}

StatusOr<Exit> RunPlan(const PlanOptions& o) {
  const std::vector<fs::path> dirs(o.families.begin(), o.families.end());
  DW_ASSIGN_OR_RETURN(const mcore::HfModel model, mcore::HfModel::Open(o.hf, o.family, dirs));
  DW_ASSIGN_OR_RETURN(const mcore::ParallelConfig parallel,
                      mcore::ParallelConfig::Open(o.parallel));
  const auto start = std::chrono::steady_clock::now();
  StatusOr<mcore::Plan> plan = model.PlanFor(parallel);
  if (!plan.ok()) return plan.status();
  Result result(std::move(*plan));
  result.findings = result.plan.Check();
  result.listed = model.checkpoint().has_value();
  result.seconds = SecondsSince(start);
  if (o.json) {
    ShowJson(result, o);
  } else {
    Show(result, o);
  }
  return result.findings.ok() ? Exit::kOk : Exit::kDiffers;
}

}  // namespace

void DeclarePlan(CLI::App& app, Run* run) {
  auto o = std::make_shared<PlanOptions>();
  CLI::App* sub = app.add_subcommand(
      "plan", "Prove that a Megatron job's shards make up an HF model; writes nothing");
  AddDirectory(*sub, "--hf", o->hf, "HF model directory; config.json is enough")->required();
  sub->add_option("--parallel", o->parallel, "e.g. tp=4,pp=2,ep=8,world=64; docs/model_families.md")
      ->type_name("KEY=N,...|FILE");
  o->AddFamilies(*sub);
  TakeSize(
      sub->add_option("--bucket", o->bucket, "Gathering without shared memory: bytes per bucket"),
      /*kb_is_1000=*/false)
      ->capture_default_str();
  CLI::Option* const tensors =
      sub->add_flag("--tensors", o->tensors, "With --json: also tensors_meta");
  o->AddJson(*sub);
  tensors->needs(sub->get_option("--json"));
  sub->callback([o, run] { *run = [o] { return RunPlan(*o); }; });
}

}  // namespace deltawire::cli
