// The convert command: between HF directories and Megatron shards, and between parallel layouts.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/new_directory.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "sender/export/mcore/hf_model.h"
#include "sender/export/shards/hf_dir.h"
#include "sender/export/shards/shard_dir.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxFileBytes = uint64_t{50} * 1000 * 1000 * 1000;

struct ConvertOptions : Common, JobArguments {
  std::string from, to, core_version;
  std::optional<uint64_t> max_file_bytes;
  size_t threads = 0;
  bool replace = false, unmarked = false, round = false;
};

/// Copies from --hf's checkpoint the tensors that no parameter produces.
Status CarryOver(const mcore::Plan& plan, const std::optional<ModelDir>& checkpoint, HfDir& to) {
  for (const std::string& name : plan.not_trained()) {
    const size_t i = *plan.layout().Find(name);
    const auto from = checkpoint ? checkpoint->layout().Find(name) : std::nullopt;
    if (!from) {
      return Errorf(StatusCode::kNotFound,
                    "{} is not trained, so the shards do not hold it; name the checkpoint that has "
                    "it with --hf",
                    name);
    }
    const Bytes bytes = checkpoint->data(*from);
    std::copy(bytes.begin(), bytes.end(), to.tensor(i).begin());
  }
  return absl::OkStatus();
}

/// Returns text such as "2 tensors, model.layers.0... first".
std::string Some(const std::vector<std::string>& names) {
  return fmt::format("{} tensor{}, {}{}", names.size(), names.size() == 1 ? "" : "s", names.front(),
                     names.size() == 1 ? "" : " first");
}

void Say(const mcore::Plan& plan) {
  for (const std::string& note : plan.notes()) std::printf("%s\n", note.c_str());
}

/// The convention of an HF directory's values. Some norms in a trainer are HF's minus one.
enum class Values { kHf, kTrainer };

StatusOr<mcore::Plan> ProvenPlan(const mcore::HfModel& model, const mcore::ParallelConfig& parallel,
                                 const Layout* listing, Values values) {
  DW_ASSIGN_OR_RETURN(mcore::Plan plan, model.ProvenPlan(parallel, listing));
  Say(plan);
  return values == Values::kHf ? std::move(plan) : plan.WithTrainersValues();
}

/// Exports shards into the HF directory `to`, which exists.
Status ExportShards(const ConvertOptions& o, const mcore::HfModel& model, const fs::path& to,
                    Values values, ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(const ShardDir shards, ShardDir::Open(o.from, o.unmarked));
  const Layout* listing = shards.layout() ? &*shards.layout() : nullptr;
  DW_ASSIGN_OR_RETURN(const std::vector<SideFile> side_files,
                      SideFilesOf(o.hf.empty() ? o.from : o.hf));
  DW_ASSIGN_OR_RETURN(const mcore::Plan plan,
                      ProvenPlan(model, shards.parallel(), listing, values));
  DW_ASSIGN_OR_RETURN(HfDir hf,
                      HfDir::Create(to, plan.layout(), o.max_file_bytes.value_or(kMaxFileBytes)));
  DW_ASSIGN_OR_RETURN(const std::vector<std::string> shifted,
                      shards.ExportTo(
                          plan, [&](uint32_t t) { return hf.tensor(t); }, pool));
  DW_RETURN_IF_ERROR(CarryOver(plan, model.checkpoint(), hf));
  DW_RETURN_IF_ERROR(hf.Finish(pool));
  for (const SideFile& file : side_files) {
    if (file.name == kParallelFile || file.name == kTensorsMetaFile) continue;
    DW_RETURN_IF_ERROR(WriteSealed(to / file.name, file.content));
  }
  if (!shifted.empty()) {
    std::printf(
        "written as the trainer's value plus one, rounded, so shards made from them differ: %s\n",
        Some(shifted).c_str());
  }
  return absl::OkStatus();
}

Status ShardModel(const ConvertOptions& o, const mcore::HfModel& model, const fs::path& from,
                  const fs::path& to, Values values, ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(mcore::ParallelConfig parallel, mcore::ParallelConfig::Open(o.parallel));
  if (!o.core_version.empty()) {
    DW_ASSIGN_OR_RETURN(parallel.core, mcore::CoreVersion::Parse(o.core_version));
  }
  DW_ASSIGN_OR_RETURN(const ModelDir hf, ModelDir::Open(from));
  DW_ASSIGN_OR_RETURN(const mcore::Plan plan, ProvenPlan(model, parallel, &hf.layout(), values));
  DW_ASSIGN_OR_RETURN(const Rounding rounding, RoundingOf(plan, hf, pool));
  if (!rounding.narrowed.empty() && !o.round) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "the trainer would hold {} in fewer bits than {} does: say --round to have the "
                  "values rounded, or set dtype in config.json",
                  Some(rounding.narrowed), o.from);
  }
  DW_RETURN_IF_ERROR(ShardDir::Write(to, plan, hf, pool));
  if (!rounding.narrowed.empty()) {
    std::printf("rounded to fewer bits: %s\n", Some(rounding.narrowed).c_str());
  }
  if (!rounding.shifted.empty()) {
    std::printf(
        "held as the value less one, rounded, so the way back differs in the last bit: %s\n",
        Some(rounding.shifted).c_str());
  }
  return absl::OkStatus();
}

/// Rejects options that would have no effect.
Status CheckOptions(const ConvertOptions& o, bool from_shards, bool to_shards) {
  if (!to_shards && !o.core_version.empty()) {
    return UsageError("--core-version is for shards: it goes with --parallel only");
  }
  if (!to_shards && o.round) {
    return UsageError(
        "--round is for shards: it goes with --parallel only, and values are never rounded to "
        "fewer bits on the way to an HF directory");
  }
  if (to_shards && o.max_file_bytes) {
    return UsageError(
        "--max-shard-size is for the files of an HF directory: it does not go with --parallel");
  }
  if (!from_shards && o.unmarked) {
    return UsageError(
        fmt::format("--unmarked is for rank files, and {} has no {}", o.from, kParallelFile));
  }
  return absl::OkStatus();
}

StatusOr<Exit> Convert(const ConvertOptions& o) {
  const auto start = std::chrono::steady_clock::now();
  const bool from_shards = ShardDir::Is(o.from), to_shards = !o.parallel.empty();
  if (!from_shards && !to_shards) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{} has no {}, so it is taken for an HF directory: say with --parallel how to "
                  "shard it",
                  o.from, kParallelFile);
  }
  DW_RETURN_IF_ERROR(CheckOptions(o, from_shards, to_shards));
  const std::vector<fs::path> families(o.families.begin(), o.families.end());
  const fs::path described = o.hf.empty() ? o.from : o.hf;
  DW_ASSIGN_OR_RETURN(
      const mcore::HfModel model,
      mcore::HfModel::Open(described, o.family, families, !ShardDir::Is(described)));
  ThreadPool pool(o.threads);
  std::vector<fs::path> sources = families;
  for (const fs::path& source : {fs::path(o.from), described}) sources.push_back(source);
  DW_ASSIGN_OR_RETURN(NewDirectory made, NewDirectory::Create(o.to, o.replace, sources));
  if (!from_shards) {
    DW_RETURN_IF_ERROR(ShardModel(o, model, o.from, made.path(), Values::kHf, pool));
  } else if (!to_shards) {
    DW_RETURN_IF_ERROR(ExportShards(o, model, made.path(), Values::kHf, pool));
  } else {
    // Convert between parallel layouts through a temporary HF directory. Its tensors keep the
    // trainer's values, so that none is rounded.
    DW_ASSIGN_OR_RETURN(const NewDirectory hf,
                        NewDirectory::Create(fs::path(made.path()).concat("-hf"), false, {}));
    DW_RETURN_IF_ERROR(ExportShards(o, model, hf.path(), Values::kTrainer, pool));
    DW_RETURN_IF_ERROR(ShardModel(o, model, hf.path(), made.path(), Values::kTrainer, pool));
  }
  DW_RETURN_IF_ERROR(made.Commit());
  std::printf("%s: %s, in %s\n", o.to.c_str(), to_shards ? "Megatron shards" : "HF model directory",
              HumanSeconds(SecondsSince(start)).c_str());
  return Exit::kOk;
}

}  // namespace

void DeclareConvert(CLI::App& app, Run* run) {
  auto o = std::make_shared<ConvertOptions>();
  CLI::App* sub = app.add_subcommand(
      "convert", "HF model directory to Megatron shards, back, or from one layout to another");
  NeedDirectory(*sub, "FROM", o->from, "HF model directory, or one of shards");
  sub->add_option("TO", o->to, "Directory to make; new or empty")->type_name("")->required();
  sub->add_flag("--replace", o->replace,
                "Put the new directory, when it is complete, in the place of TO and all that is in "
                "it: at one stroke where the filesystem can exchange two names");
  sub->add_option("--parallel", o->parallel,
                  "Make shards for this layout, e.g. tp=4,pp=2; default: make an HF directory")
      ->type_name("KEY=N,...|FILE");
  sub->add_option("--core-version", o->core_version,
                  "With --parallel: give parameters the names that this version of megatron-core "
                  "uses; default: 0.16, or core_version in --parallel")
      ->type_name("0.N");
  TakeSize(
      sub->add_option("--max-shard-size", o->max_file_bytes, "Of an HF directory: bytes per file"),
      /*kb_is_1000=*/true)
      ->default_str("50GB");
  sub->add_flag("--unmarked", o->unmarked,
                "Accept rank files without marks, and use the rank in their names");
  sub->add_flag("--round", o->round,
                "With --parallel: round values that the trainer holds in fewer bits than the "
                "checkpoint");
  AddDirectory(
      *sub, "--hf", o->hf,
      "HF directory whose config.json, and tensors where it has them, count; default: FROM");
  o->AddFamilies(*sub);
  AddWhole(*sub, "--threads", o->threads, "Copying threads; 0: one per core", 0, 1024)
      ->capture_default_str();
  sub->callback([o, run] { *run = [o] { return Convert(*o); }; });
}

}  // namespace deltawire::cli
