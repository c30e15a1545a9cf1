// Both daemons, a trainer and the references on one machine over loopback TCP.
// See bench/README.md for what each case is.

#include <CLI/CLI.hpp>
#include <algorithm>

#include "bench/harness/scratch_dir.h"
#include "bench/loopback/cases.h"
#include "bench/loopback/references.h"
#include "common/base/human.h"

namespace deltawire::bench {
namespace {

constexpr const char* kAdam = "delta_sync/adam";
constexpr const char* kOffloadEager = "offload/eager";
constexpr const char* kOffloadLazy = "offload/no_eager";

struct Options {
  std::string size = "0.6b";
  std::string model;
  std::string json;
  Rounds rounds;
  size_t streams = 4;
  size_t threads = 0;
  uint64_t seed = 1;
  std::vector<std::string> only;

  /// Whether a case of this name was asked for.
  bool Asked(std::string_view name) const {
    return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& prefix) {
             return name.starts_with(prefix);
           });
  }
};

void Describe(const Options& options, const ModelSource& source, size_t threads, Report& report) {
  fmt::print(
      "loopback: {} ({}), {} streams, {} threads, seed {}, {} runs after {} warm-up\n"
      "          {} with {} cores\n\n",
      source.name, HumanBytes(source.layout.total_bytes()), options.streams, threads, options.seed,
      options.rounds.runs, options.rounds.warmups, CpuName(), Cores());
  report.Common("model", source.name);
  report.Common("model_bytes", source.layout.total_bytes());
  report.Common("streams", options.streams);
  report.Common("seed", options.seed);
}

Status DeltaCases(const Options& options, const Bench& bench, Cluster& cluster) {
  for (const auto& [name, density] : {std::pair("delta_sync/1%", 0.01), {"delta_sync/3%", 0.03}}) {
    if (options.Asked(name)) DW_RETURN_IF_ERROR(DeltaSync(bench, cluster, name, density));
  }
  if (!options.Asked(kAdam)) return absl::OkStatus();
  if (bench.workload->adam_steps_left() >= bench.rounds.total()) {
    return DeltaSync(bench, cluster, kAdam, 0);
  }
  bench.report->NotMeasured(kAdam, bench.workload->why_no_adam());
  return absl::OkStatus();
}

// All cases with the daemons as they are by default.
Status DefaultDaemons(const Options& options, const Bench& bench,
                      const std::filesystem::path& root) {
  ClusterOptions daemons;
  daemons.streams = bench.streams;
  DW_ASSIGN_OR_RETURN(auto cluster,
                      Cluster::Start(root / "default", *bench.source, daemons, *bench.pool));
  DW_ASSIGN_OR_RETURN(const Publication first, cluster->Publish(*bench.workload));
  DW_RETURN_IF_ERROR(cluster->WaitCommitted(first.info.identity.id.version).status());

  if (options.Asked("full_pull")) DW_RETURN_IF_ERROR(FullPull(bench, *cluster));
  DW_RETURN_IF_ERROR(DeltaCases(options, bench, *cluster));
  DW_RETURN_IF_ERROR(cluster->Follow(false));
  if (options.Asked(kOffloadEager)) DW_RETURN_IF_ERROR(Offload(bench, *cluster, kOffloadEager));
  if (options.Asked("trainer_wait")) DW_RETURN_IF_ERROR(TrainerWait(bench, *cluster));
  DW_RETURN_IF_ERROR(cluster->Sync(false).status());
  Memory(bench, *cluster);
  const std::string wrong = cluster->Compare(*bench.workload);
  if (wrong.empty()) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "the receiver does not hold the trainer's bytes: {}", wrong);
}

// Ready to committed of receivers that change the file that readers have, and of those that swap
// it.
Status BufferCases(const Options& options, const Bench& bench, const std::filesystem::path& root) {
  for (const int buffers : {1, 2}) {
    const std::string name = fmt::format("delta_sync/1%/buffers={}", buffers);
    if (!options.Asked(name)) continue;
    ClusterOptions daemons;
    daemons.streams = bench.streams;
    daemons.buffers = buffers;
    DW_ASSIGN_OR_RETURN(auto cluster, Cluster::Start(root / fmt::format("buffers-{}", buffers),
                                                     *bench.source, daemons, *bench.pool));
    DW_ASSIGN_OR_RETURN(const Publication first, cluster->Publish(*bench.workload));
    DW_RETURN_IF_ERROR(cluster->WaitCommitted(first.info.identity.id.version).status());
    CopyTensors(bench.source->layout, bench.workload->content(), bench.peer->landed(), *bench.pool);
    DW_RETURN_IF_ERROR(DeltaSync(bench, *cluster, name, 0.01));
  }
  return absl::OkStatus();
}

Status LazyDaemons(const Bench& bench, const std::filesystem::path& root) {
  ClusterOptions options;
  options.receiver = false;
  options.eager_diff = false;
  DW_ASSIGN_OR_RETURN(auto cluster,
                      Cluster::Start(root / "lazy", *bench.source, options, *bench.pool));
  DW_RETURN_IF_ERROR(cluster->Publish(*bench.workload).status());
  return Offload(bench, *cluster, kOffloadLazy);
}

Status ScaleCases(const Options& options, Report& report) {
  for (const size_t tensors : {10'000, 50'000, 200'000}) {
    if (!options.Asked(fmt::format("scale/{}", tensors))) continue;
    DW_RETURN_IF_ERROR(Scale(tensors, options.rounds, report));
  }
  return absl::OkStatus();
}

Status Run(const Options& options) {
  // These have a model of their own.
  const bool scale_alone = !options.only.empty() &&
                           std::all_of(options.only.begin(), options.only.end(),
                                       [](const std::string& o) { return o.starts_with("scale"); });
  if (scale_alone) {
    DW_ASSIGN_OR_RETURN(const auto report, Report::Create("loopback", options.json));
    DW_RETURN_IF_ERROR(ScaleCases(options, *report));
    return report->Finish();
  }
  DW_ASSIGN_OR_RETURN(const ModelSource source, options.model.empty()
                                                    ? ModelSource::Synthetic(options.size)
                                                    : ModelSource::Directory(options.model));
  DW_ASSIGN_OR_RETURN(const auto report, Report::Create("loopback", options.json));
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  const uint64_t bytes = source.layout.total_bytes();
  DW_ASSIGN_OR_RETURN(const auto peer,
                      TcpPeer::Start(scratch->path() / "peer", bytes, options.streams));
  ThreadPool pool(options.threads);  // no process forks without exec from here on
  Describe(options, source, pool.size(), *report);
  DW_ASSIGN_OR_RETURN(const auto workload,
                      Workload::Create(source, scratch->path() / "trainer", options.seed,
                                       options.Asked(kAdam) ? options.rounds.total() : 0, pool));
  std::memcpy(peer->landed().data(), workload->content().data(), bytes);

  Bench bench;
  bench.source = &source;
  bench.workload = workload.get();
  bench.peer = peer.get();
  bench.pool = &pool;
  bench.report = report.get();
  bench.rounds = options.rounds;
  bench.streams = options.streams;
  DW_RETURN_IF_ERROR(DefaultDaemons(options, bench, scratch->path()));
  DW_RETURN_IF_ERROR(BufferCases(options, bench, scratch->path()));
  if (options.Asked(kOffloadLazy)) DW_RETURN_IF_ERROR(LazyDaemons(bench, scratch->path()));
  DW_RETURN_IF_ERROR(ScaleCases(options, *report));
  return report->Finish();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Both daemons over loopback, against bare TCP, memcpy and memcmp.",
               "bench_loopback");
  app.add_option("--size", options.size, "Synthetic model: tiny, 0.6b or 1.7b")
      ->capture_default_str();
  app.add_option("--model", options.model, "A model directory of your own instead");
  app.add_option("--runs", options.rounds.runs, "Runs of each case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--streams", options.streams, "TCP streams")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--threads", options.threads,
                 "The trainer's and the references' threads; 0: cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights and changes")->capture_default_str();
  app.add_option("--json", options.json, "Write JSON lines to this file");
  app.add_option("--only", options.only, "Only cases whose names begin so, e.g. delta_sync")
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "bench_loopback: {}\n", MessageOf(status));
  return 1;
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) { return deltawire::bench::Main(argc, argv); }
