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

std::string_view NameOf(Plant plant) {
  for (const PlantedBug& bug : kPlantedBugs) {
    if (bug.plant == plant) return bug.name;
  }
  return "none";
}

std::string Directory() { return fmt::format("/dev/shm/deltawire-simulation-{}", ::getpid()); }

HistoryOptions OptionsOf(const Arguments& arguments, uint64_t seed) {
  return {.seed = seed,
          .plant = arguments.plant,
          .trace = arguments.trace,
          .readers = arguments.readers,
          .zombies = arguments.zombies,
          .groups = arguments.groups,
          .relays = arguments.relays,
          .agents = arguments.agents,
          .directory = Directory()};
}

/// The command that runs one history again. Each of these arguments makes another history.
std::string Replay(const Arguments& arguments, uint64_t seed) {
  std::string command = fmt::format("simulation_test --seed {} --trace", seed);
  if (arguments.groups) command += " --groups";
  if (arguments.relays) command += " --relays";
  if (arguments.agents) command += " --agents";
  if (!arguments.readers) command += " --no-readers";
  if (!arguments.zombies) command += " --no-zombies";
  if (arguments.plant != Plant::kNone)
    command += fmt::format(" --plant {}", NameOf(arguments.plant));
  return command;
}

/// Runs in a child: writes each seed's result as one line to `out`.
void RunBatch(const Arguments& arguments, uint64_t first, uint64_t count, int out) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const itimerval computed{.it_interval = {},
                             .it_value = {.tv_sec = kLongestComputed, .tv_usec = 0}};
    ::setitimer(ITIMER_PROF, &computed, nullptr);
    ::alarm(kLongestWaited);
    ::dprintf(out, "begin %llu\n", static_cast<unsigned long long>(seed));
    const HistoryResult r = RunHistory(OptionsOf(arguments, seed));
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
      totals.early, totals.passes, NameOf(arguments.plant), totals.failed);
  if (totals.failed > 0) {
    fmt::print("replay: {}\n", Replay(arguments, totals.first_failed));
  }
  // With a planted bug, a failure is a success.
  return (totals.failed > 0) == (arguments.plant == Plant::kNone) ? 1 : 0;
}

int RunOne(const Arguments& arguments) {
  if (arguments.trace) spdlog::set_level(spdlog::level::debug);
  const HistoryResult r = RunHistory(OptionsOf(arguments, arguments.first));
  fmt::print(
      "seed {}: hash {:016x}, {} steps, {:.3f} virtual seconds, {} publishes, {} commits, "
      "{} passes\n{}\n",
      arguments.first, r.hash, r.steps, r.virtual_seconds, r.publishes, r.commits, r.passes,
      r.failure.empty() ? "all well" : r.failure);
  return r.failure.empty() ? 0 : 1;
}

// In the help, the column in which descriptions stand, and where those of planted bugs do.
constexpr size_t kHelpColumn = 24;
constexpr size_t kBugColumn = 18;

CLI::Option* Number(CLI::App& app, const std::string& name, auto* target, const char* type,
                    const std::string& what) {
  return app.add_option(name, *target, what)->option_text(type);
}

CLI::Option* Switch(CLI::App& app, const std::string& name, bool* target, bool to,
                    const std::string& what) {
  // The text that CLI11 would make of needs and excludes stands in `what`.
  return app
      .add_flag_callback(
          name, [target, to] { *target = to; }, what)
      ->option_text(" ");
}

void DeclareHistories(CLI::App& app, Arguments& out) {
  auto* one = Number(app, "--seed", &out.first, "N", "one history");
  Switch(app, "--trace", &out.trace, true, "with --seed: each step, on standard error")->needs(one);
  app.add_option_function<std::vector<uint64_t>>(
         "--seeds",
         [&out](const std::vector<uint64_t>& range) {
           out.first = range[0];
           out.count = range[1];
         },
         "COUNT histories, from that of the seed FIRST")
      ->delimiter(':')
      ->expected(2)
      ->excludes(one)
      ->option_text("FIRST:COUNT");
  Number(app, "--seconds", &out.seconds, "S", "as many as that time allows [60]")->excludes(one);
  for (CLI::Option* option : app.get_options()) {
    if (option->get_name() != "--help") option->group("Which histories");
  }
}

void DeclareWorlds(CLI::App& app, Arguments& out) {
  constexpr const char* kGroup = "In every world";
  auto* groups = Switch(app, "--groups", &out.groups, true,
                        "one sender, whose receivers are a group (without the next two)");
  groups->group(kGroup);
  Switch(app, "--relays", &out.relays, true, "receivers behind others")
      ->excludes(groups)
      ->group(kGroup);
  Switch(app, "--agents", &out.agents, true, "two senders, each with a part of the model")
      ->excludes(groups)
      ->group(kGroup);
  Switch(app, "--no-readers", &out.readers, false, "no plain readers")->group(kGroup);
  Switch(app, "--no-zombies", &out.zombies, false, "no ranks that stop and write on later")
      ->group(kGroup);
}

void DeclarePlant(CLI::App& app, Arguments& out) {
  std::string what = "a planted bug, which must be found:";
  for (const PlantedBug& bug : kPlantedBugs) {
    what += fmt::format("\n{:{}}{}", bug.name, kBugColumn, bug.what);
  }
  app.add_option_function<std::string>(
         "--plant",
         [&out](const std::string& name) {
           for (const PlantedBug& bug : kPlantedBugs) {
             if (bug.name == name) out.plant = bug.plant;
           }
           if (out.plant == Plant::kNone) {
             throw CLI::ValidationError("--plant", fmt::format("there is no bug \"{}\"", name));
           }
         },
         what)
      ->option_text("BUG")
      ->group("Planted");
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
  CLI::App app(
      "Histories of the real sender and receiver on virtual time, each drawn from a seed.");
  app.get_formatter()->column_width(kHelpColumn);
  DeclareHistories(app, arguments);
  DeclareWorlds(app, arguments);
  DeclarePlant(app, arguments);
  CLI11_PARSE(app, argc, argv);
  arguments.one = app.count("--seed") > 0;
  if (!arguments.one && arguments.count == 0 && arguments.seconds == 0) arguments.seconds = 60;
  return arguments.one ? RunOne(arguments) : RunAll(arguments);
}
