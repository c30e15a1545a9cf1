// Both daemons, a trainer and the references on one machine over loopback TCP.
// See bench/README.md for what each case is.
#include <CLI/CLI.hpp>

#include "bench/harness/buffers.h"
#include "bench/loopback/cases.h"

namespace deltawire::bench {
namespace {

struct Options {
  std::string size = "0.6b";
  std::string model;
  size_t streams = 4;
  size_t threads = 0;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--size", options.size, "Synthetic model: tiny, 0.6b or 1.7b");
  app.add_option("--model", options.model, "A model directory of your own instead");
  app.add_option("--streams", options.streams, "TCP streams")->check(CLI::Range(1, 64));
  app.add_option("--threads", options.threads,
                 "The trainer's and the references' threads; 0: cores")
      ->check(CLI::Range(0, 1024));
}

Status RunModelCases(const Options& options, Bench& bench) {
  const std::vector<Group> groups = ModelCases();
  const auto asked = [&](const Group& group) { return group.Asked(bench); };
  if (std::ranges::none_of(groups, asked)) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const ModelSource source,
                      options.model.empty()
                          ? ModelSource::Synthetic(bench.quick ? "tiny" : options.size)
                          : ModelSource::Directory(options.model));
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  const uint64_t bytes = source.layout.total_bytes();
  DW_ASSIGN_OR_RETURN(const auto peer,
                      TcpPeer::Start(scratch->path() / "peer", bytes, options.streams));
  std::unique_ptr<TcpPeer> tls_peer;
  if (std::ranges::any_of(groups, [&](const Group& g) { return g.daemons.tls && asked(g); })) {
    const testing::TestAuthority authority(scratch->path() / "keys");
    DW_ASSIGN_OR_RETURN(tls_peer, TcpPeer::Start(scratch->path() / "tls-peer", bytes,
                                                 options.streams, authority.Node("peer")));
  }
  ThreadPool pool(options.threads);  // no process forks without exec from here on
  fmt::print("          {} ({}), {} streams, {} threads\n\n", source.name, HumanBytes(bytes),
             options.streams, pool.size());
  bench.Common("model", source.name);
  bench.Common("model_bytes", bytes);
  bench.Common("streams", options.streams);
  const size_t adam_steps = bench.Asked(kAdam) ? bench.rounds.total() : 0;
  DW_ASSIGN_OR_RETURN(const auto weights, Weights::Create(source, scratch->path() / "trainer",
                                                          bench.seed, adam_steps, pool));
  const Rig rig{bench, source, *weights, *peer, tls_peer.get(), pool, options.streams};
  for (const Group& group : groups) {
    DW_RETURN_IF_ERROR(RunGroup(group, rig, scratch->path() / "daemons"));
  }
  return absl::OkStatus();
}

Status Run(const Options& options, Bench& bench) {
  DW_RETURN_IF_ERROR(RunModelCases(options, bench));
  return ScaleCases(bench);
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain("loopback", "Both daemons over loopback, against bare TCP, memcpy and memcmp.",
                   Declare, Run, argc, argv);
}
