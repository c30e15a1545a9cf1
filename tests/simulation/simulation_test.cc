// Runs histories: a range of seeds, as many as fit into a time, or one again with its trace.
// Batches run in child processes, since memory of killed processes is never freed. Exit 1: a
// history failed.
#include <fmt/format.h>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/history.h"

namespace deltawire::simulation {
namespace {

constexpr uint64_t kBatch = 50;
/// A history that computes for so long, or that waits for so long in all, is one that hangs. The
/// second is longer, since other programs may have the processor.
constexpr time_t kLongestComputed = 60;
constexpr unsigned kLongestWaited = 600;

struct Arguments {
  uint64_t first = 1;
  uint64_t count = 0;  ///< 0: as many as the time allows
  double seconds = 0;
  bool one = false;
  bool trace = false;
  bool readers = true;
  bool zombies = true;
  bool groups = false;
  bool relays = false;
  bool agents = false;
  Plant plant = Plant::kNone;
};

struct Totals {
  uint64_t histories = 0, failed = 0, steps = 0, publishes = 0, commits = 0, passes = 0;
  uint64_t rounds = 0, ahead = 0, early = 0;
  double virtual_seconds = 0;
  uint64_t first_failed = 0;
};

std::string Directory() { return fmt::format("/dev/shm/deltawire-simulation-{}", ::getpid()); }

/// Runs in a child: writes each seed's result as one line to `out`.
void RunBatch(const Arguments& arguments, uint64_t first, uint64_t count, int out) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const itimerval computed{.it_interval = {},
                             .it_value = {.tv_sec = kLongestComputed, .tv_usec = 0}};
    ::setitimer(ITIMER_PROF, &computed, nullptr);
    ::alarm(kLongestWaited);
    ::dprintf(out, "begin %llu\n", static_cast<unsigned long long>(seed));
    const HistoryResult r = RunHistory({.seed = seed,
                                        .plant = arguments.plant,
                                        .trace = arguments.trace,
                                        .readers = arguments.readers,
                                        .zombies = arguments.zombies,
                                        .groups = arguments.groups,
                                        .relays = arguments.relays,
                                        .agents = arguments.agents,
                                        .directory = Directory()});
    if (!r.failure.empty()) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed),
                   r.failure.c_str());
    }
    const std::string line = fmt::format("end {} {} {} {} {} {} {} {} {} {}\n", seed,
                                         r.failure.empty() ? 0 : 1, r.steps, r.publishes, r.commits,
                                         r.passes, r.rounds, r.ahead, r.early, r.virtual_seconds);
    ::dprintf(out, "%s", line.c_str());
    if (!r.failure.empty()) break;
  }
}

/// Returns how many seeds of the batch were run. A child's death counts as a failure of its last
/// seed.
uint64_t RunChild(const Arguments& arguments, uint64_t first, uint64_t count, Totals& totals) {
  int ends[2];
  if (::pipe(ends) != 0) return 0;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    RunBatch(arguments, first, count, ends[1]);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char piece[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  uint64_t begun = 0, ended = 0;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    unsigned long long seed = 0, failed = 0, steps = 0, publishes = 0, commits = 0, passes = 0;
    unsigned long long rounds = 0, ahead = 0, early = 0;
    double seconds = 0;
    if (std::sscanf(&text[at], "begin %llu", &seed) == 1) ++begun;
    if (std::sscanf(&text[at], "end %llu %llu %llu %llu %llu %llu %llu %llu %llu %lf", &seed,
                    &failed, &steps, &publishes, &commits, &passes, &rounds, &ahead, &early,
                    &seconds) != 10) {
      continue;
    }
    ++ended;
    totals.steps += steps;
    totals.publishes += publishes;
    totals.commits += commits;
    totals.passes += passes;
    totals.rounds += rounds;
    totals.ahead += ahead;
    totals.early += early;
    totals.virtual_seconds += seconds;
    if (failed == 0) continue;
    ++totals.failed;
    if (totals.first_failed == 0) totals.first_failed = seed;
  }
  if (begun > ended) {
    ++totals.failed;
    const uint64_t seed = first + begun - 1;
    std::fprintf(stderr, "seed %llu: the program died (status %d)\n",
                 static_cast<unsigned long long>(seed), status);
    if (totals.first_failed == 0) totals.first_failed = seed;
  }
  totals.histories += begun;
  return begun;
}

int RunAll(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  Totals totals;
  uint64_t next = arguments.first;
  const uint64_t last = arguments.count == 0 ? ~uint64_t{0} : arguments.first + arguments.count - 1;
  while (next <= last) {
    if (arguments.seconds > 0 && seconds() > arguments.seconds) break;
    const uint64_t count = std::min(kBatch, last - next + 1);
    const uint64_t run = RunChild(arguments, next, count, totals);
    next += run == 0 ? count : run;
    if (totals.failed > 0) break;
  }
  fmt::print(
      "{} histories from seed {} in {:.1f} s: {:.0f} a minute; {} steps, {:.0f} virtual seconds, "
      "{} publishes, {} commits, {} groups' rounds, {} bytes passed on by relays before their "
      "commit, {} sent before their publish, {} readers' passes; plant: {}; failed: {}\n",
      totals.histories, arguments.first, seconds(),
      60.0 * static_cast<double>(totals.histories) / seconds(), totals.steps,
      totals.virtual_seconds, totals.publishes, totals.commits, totals.rounds, totals.ahead,
      totals.early, totals.passes, ToString(arguments.plant), totals.failed);
  if (totals.failed > 0) {
    fmt::print("replay: simulation_test --seed {}{}{} --trace\n", totals.first_failed,
               arguments.plant == Plant::kNone ? "" : " --plant ",
               arguments.plant == Plant::kNone ? "" : ToString(arguments.plant));
  }
  // With a planted bug, a failure is a success.
  return (totals.failed > 0) == (arguments.plant == Plant::kNone) ? 1 : 0;
}

int RunOne(const Arguments& arguments) {
  if (arguments.trace) spdlog::set_level(spdlog::level::debug);
  const HistoryResult r = RunHistory({.seed = arguments.first,
                                      .plant = arguments.plant,
                                      .trace = arguments.trace,
                                      .readers = arguments.readers,
                                      .zombies = arguments.zombies,
                                      .groups = arguments.groups,
                                      .relays = arguments.relays,
                                      .agents = arguments.agents,
                                      .directory = Directory()});
  fmt::print(
      "seed {}: hash {:016x}, {} steps, {:.3f} virtual seconds, {} publishes, {} commits, "
      "{} passes\n{}\n",
      arguments.first, r.hash, r.steps, r.virtual_seconds, r.publishes, r.commits, r.passes,
      r.failure.empty() ? "all well" : r.failure);
  return r.failure.empty() ? 0 : 1;
}

void Declare(CLI::App& app, Arguments& out) {
  std::map<std::string, Plant> plants;
  for (const Plant p : kPlants) plants[std::string(ToString(p))] = p;
  auto* one = app.add_option("--seed", out.first, "One history");
  app.add_flag("--trace", out.trace, "... step by step, on standard error")->needs(one);
  auto* seeds = app.add_option_function<std::vector<uint64_t>>(
      "--seeds",
      [&out](const std::vector<uint64_t>& range) {
        out.first = range[0];
        out.count = range[1];
      },
      "FIRST:COUNT, all of these");
  seeds->delimiter(':')->expected(2)->type_name("FIRST:COUNT")->excludes(one);
  app.add_option("--seconds", out.seconds, "As many as that time allows; default: 60")
      ->excludes(one);
  app.add_option("--plant", out.plant, "Put a bug in, which is to be found")
      ->transform(CLI::CheckedTransformer(plants, CLI::ignore_case));
  app.add_flag("!--no-readers", out.readers, "No plain readers");
  app.add_flag("!--no-zombies", out.zombies, "No ranks that stop and write on later");
  auto* groups =
      app.add_flag("--groups", out.groups, "One sender in each world, whose receivers are a group");
  app.add_flag("--relays", out.relays, "Receivers behind others in each world")->excludes(groups);
  app.add_flag("--agents", out.agents, "Two senders in each world, each with a part of the model")
      ->excludes(groups);
}

}  // namespace
}  // namespace deltawire::simulation

int main(int argc, char** argv) {
  using namespace deltawire::simulation;
  spdlog::set_level(spdlog::level::off);
  // Each fiber has scratch memory. Returning it to the kernel each time, and faulting it in again,
  // took a sixth of a history's time.
  ::mallopt(M_MMAP_THRESHOLD, 64 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 512 << 20);
  Arguments arguments;
  CLI::App app("Histories of the real sender and receiver on virtual time.");
  Declare(app, arguments);
  CLI11_PARSE(app, argc, argv);
  arguments.one = app.count("--seed") > 0;
  if (!arguments.one && arguments.count == 0 && arguments.seconds == 0) arguments.seconds = 60;
  return arguments.one ? RunOne(arguments) : RunAll(arguments);
}
