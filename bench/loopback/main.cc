// Both daemons, a trainer and the references on one machine over loopback TCP.
// See bench/README.md for what each case is.
#include <CLI/CLI.hpp>

#include "bench/harness/buffers.h"
#include "bench/loopback/cases.h"
#include "bench/loopback/references.h"

namespace deltawire::bench {
namespace {

constexpr const char* kAdam = "delta_sync/adam";
constexpr const char* kOffloadEager = "offload/eager";
constexpr const char* kOffloadLazy = "offload/no_eager";

struct Options {
  std::string size = "0.6b";
  std::string model;
  size_t streams = 4;
  size_t threads = 0;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--size", options.size, "Synthetic model: tiny, 0.6b or 1.7b")
      ->capture_default_str();
  app.add_option("--model", options.model, "A model directory of your own instead");
  app.add_option("--streams", options.streams, "TCP streams")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--threads", options.threads,
                 "The trainer's and the references' threads; 0: cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

std::string BuffersCase(int buffers) { return fmt::format("delta_sync/1%/buffers={}", buffers); }

/// Whether any case was asked for that needs the model: all but scale/N, which makes its own.
bool AnyOfTheModel(const Bench& bench) {
  return bench.AnyAsked({"full_pull/first", "full_pull/again", "full_pull_tls/first",
                         "full_pull_tls/again", "delta_sync/1%", "delta_sync/3%", BuffersCase(1),
                         BuffersCase(2), kAdam, kOffloadEager, kOffloadLazy, "trainer_wait",
                         "memory"});
}

/// Starts daemons and publishes a first version, which the receiver, if there is one, commits.
StatusOr<std::unique_ptr<Cluster>> StartCommitted(const Rig& rig, const std::filesystem::path& root,
                                                  ClusterOptions daemons) {
  daemons.streams = rig.streams;
  DW_ASSIGN_OR_RETURN(auto cluster, Cluster::Start(root, rig.source, daemons, rig.pool));
  DW_RETURN_IF_ERROR(cluster->Publish(rig.weights).status());
  if (daemons.receiver) DW_RETURN_IF_ERROR(cluster->WaitCommitted().status());
  CopyTensors(rig.source.layout, rig.weights.content(), rig.peer.landed(), rig.pool);
  return cluster;
}

// Runs all cases of daemons with default options.
Status DefaultDaemons(const Rig& rig, const std::filesystem::path& root) {
  const Bench& bench = rig.bench;
  DW_ASSIGN_OR_RETURN(const auto cluster, StartCommitted(rig, root, {}));
  if (bench.AnyAsked({"full_pull/first", "full_pull/again"})) {
    DW_RETURN_IF_ERROR(FullPull(rig, *cluster, rig.peer, "full_pull", 0.8));
  }
  for (const auto& [name, density] : {std::pair("delta_sync/1%", 0.01), {"delta_sync/3%", 0.03}}) {
    if (bench.Asked(name)) DW_RETURN_IF_ERROR(DeltaSync(rig, *cluster, name, density));
  }
  if (bench.Asked(kAdam)) {
    if (rig.weights.adam_steps_left() >= bench.rounds.total()) {
      DW_RETURN_IF_ERROR(DeltaSync(rig, *cluster, kAdam, 0));
    } else {
      rig.bench.report().NotMeasured(kAdam, rig.weights.why_no_adam());
    }
  }
  DW_RETURN_IF_ERROR(cluster->Follow(false));
  if (bench.Asked(kOffloadEager)) DW_RETURN_IF_ERROR(Offload(rig, *cluster, kOffloadEager));
  if (bench.Asked("trainer_wait")) DW_RETURN_IF_ERROR(TrainerWait(rig, *cluster));
  DW_RETURN_IF_ERROR(cluster->Sync(false).status());
  Memory(rig, *cluster);
  const std::string wrong = cluster->Compare(rig.weights);
  if (wrong.empty()) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "the receiver does not hold the trainer's bytes: {}", wrong);
}

Status ModelCases(const Rig& rig, const std::filesystem::path& root) {
  DW_RETURN_IF_ERROR(DefaultDaemons(rig, root / "default"));
  // A receiver with one buffer changes the named file, one with two swaps it for another.
  for (const int buffers : {1, 2}) {
    const std::string name = BuffersCase(buffers);
    if (!rig.bench.Asked(name)) continue;
    DW_ASSIGN_OR_RETURN(const auto cluster,
                        StartCommitted(rig, root / "buffers", {.buffers = buffers}));
    DW_RETURN_IF_ERROR(DeltaSync(rig, *cluster, name, 0.01));
  }
  if (rig.tls_peer != nullptr) {
    DW_ASSIGN_OR_RETURN(const auto cluster, StartCommitted(rig, root / "tls", {.tls = true}));
    DW_RETURN_IF_ERROR(FullPull(rig, *cluster, *rig.tls_peer, "full_pull_tls", 0.88));
  }
  if (!rig.bench.Asked(kOffloadLazy)) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto cluster,
                      StartCommitted(rig, root / "lazy", {.receiver = false, .eager_diff = false}));
  return Offload(rig, *cluster, kOffloadLazy);
}

Status Run(const Options& options, Bench& bench) {
  if (AnyOfTheModel(bench)) {
    const std::string size = bench.quick ? "tiny" : options.size;
    DW_ASSIGN_OR_RETURN(const ModelSource source, options.model.empty()
                                                      ? ModelSource::Synthetic(size)
                                                      : ModelSource::Directory(options.model));
    DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
    const uint64_t bytes = source.layout.total_bytes();
    DW_ASSIGN_OR_RETURN(const auto peer,
                        TcpPeer::Start(scratch->path() / "peer", bytes, options.streams));
    std::unique_ptr<TcpPeer> tls_peer;
    if (bench.AnyAsked({"full_pull_tls/first", "full_pull_tls/again"})) {
      DW_ASSIGN_OR_RETURN(tls_peer, TcpPeer::Start(scratch->path() / "tls-peer", bytes,
                                                   options.streams, TcpPeer::Way::kTls));
    }
    ThreadPool pool(options.threads);  // no process forks without exec from here on
    fmt::print("          {} ({}), {} streams, {} threads\n\n", source.name, HumanBytes(bytes),
               options.streams, pool.size());
    bench.report().Common("model", source.name);
    bench.report().Common("model_bytes", bytes);
    bench.report().Common("streams", options.streams);
    const size_t adam_steps = bench.Asked(kAdam) ? bench.rounds.total() : 0;
    DW_ASSIGN_OR_RETURN(const auto weights, Weights::Create(source, scratch->path() / "trainer",
                                                            bench.seed, adam_steps, pool));
    const Rig rig{bench, source, *weights, *peer, pool, options.streams, tls_peer.get()};
    DW_RETURN_IF_ERROR(ModelCases(rig, scratch->path()));
  }
  return ScaleCases(bench);
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain({"loopback", "Both daemons over loopback, against bare TCP, memcpy and memcmp."},
                   Declare, Run, argc, argv);
}
