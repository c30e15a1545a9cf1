// The suite `loopback`: both daemons, a trainer and the references on one machine over loopback
// TCP. bench/README.md describes the cases.
#include <CLI/CLI.hpp>

#include "bench/loopback/cases.h"

namespace deltawire::bench {
namespace {

void Declare(CLI::App& app, LoopbackOptions& options) {
  app.add_option("--size", options.size, "Synthetic model: tiny, 0.6b or 1.7b");
  app.add_option("--model", options.model, "A model directory of your own instead");
  app.add_option("--streams", options.streams, "TCP streams")->check(CLI::Range(1, 64));
  app.add_option("--threads", options.threads,
                 "The trainer's and the references' threads; 0: cores")
      ->check(CLI::Range(0, 1024));
}

Status Run(const LoopbackOptions& options, Bench& bench) {
  DW_RETURN_IF_ERROR(ModelCases(options, bench));
  return ScaleCases(bench);
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain("loopback", "Both daemons over loopback, against bare TCP, memcpy and memcmp.",
                   Declare, Run, argc, argv);
}
