#include "bench/harness/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "bench/harness/machine.h"
#include "kernels/kernels.h"

namespace deltawire::bench {
namespace {

Sample RateOrValue(const std::vector<double>& runs, double rate) {
  std::vector<double> values = runs;
  if (rate != 0) std::ranges::transform(values, values.begin(), [&](double s) { return rate / s; });
  return Summarize(std::move(values));
}

StatusOr<std::vector<std::regex>> Patterns(const std::vector<std::string>& texts) {
  std::vector<std::regex> out;
  for (const std::string& text : texts) {
    try {
      out.emplace_back(text);
    } catch (const std::regex_error& e) {
      return Errorf(StatusCode::kInvalidArgument, "--only \"{}\" is no regular expression: {}",
                    text, e.what());
    }
  }
  return out;
}

void Describe(const std::string& name, Bench& bench) {
  const char* const backend = kernels::Best().name;
  fmt::print("{}: {} ({} cores), {}, seed {}, {} runs after {} warm-up\n", name, CpuName(), Cores(),
             backend, bench.seed, bench.rounds.runs, bench.rounds.warmups);
  bench.report().Common("backend", backend);
  bench.report().Common("seed", bench.seed);
}

}  // namespace

bool Bench::Asked(const std::string& name) const {
  return only_.empty() || std::ranges::any_of(only_, [&](const std::regex& pattern) {
           return std::regex_search(name, pattern);
         });
}

bool Bench::AnyAsked(const std::vector<std::string>& names) const {
  return std::ranges::any_of(names, [this](const std::string& name) { return Asked(name); });
}

StatusOr<Series> Bench::Measure(const Round& round) const {
  Series kept;
  for (size_t i = 0; i < rounds.total(); ++i) {
    Series dropped;
    DW_RETURN_IF_ERROR(round(i < rounds.warmups ? dropped : kept));
  }
  return kept;
}

Status Bench::Run(const std::string& name, size_t threads, const std::vector<Figure>& figures,
                  const Round& round) {
  DW_ASSIGN_OR_RETURN(const Series series, Measure(round));
  Add(name, threads, series, figures);
  return absl::OkStatus();
}

Status Bench::Run(const std::vector<Case>& cases) {
  std::set<std::string> needed;
  for (const Case& c : cases) {
    if (!Asked(c.name) || c.figures.empty()) continue;
    needed.insert({c.name, c.beside});
    for (const Figure& f : c.figures) needed.insert(f.against);
  }
  std::vector<const Case*> steps;
  for (const Case& c : cases) {
    if (!needed.contains(c.name)) continue;
    const auto beside = std::ranges::find(cases, c.beside, &Case::name);
    if (beside != cases.end()) steps.push_back(&*beside);
    steps.push_back(&c);
  }
  if (steps.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const Series series, Measure([&](Series& s) -> Status {
                        for (const Case* step : steps) {
                          DW_ASSIGN_OR_RETURN(const double number, step->work());
                          s.Add(step->name, number);
                        }
                        return absl::OkStatus();
                      }));
  for (const Case& c : cases) {
    if (series.Has(c.name)) Add(c.name, c.threads, series, c.figures);
  }
  return absl::OkStatus();
}

void Bench::Add(const std::string& name, size_t threads, const Series& series,
                const std::vector<Figure>& figures) {
  if (!Asked(name)) return;
  for (const Figure& f : figures) {
    Row row{.name = name, .metric = f.metric, .unit = f.unit, .threads = threads};
    row.value = RateOrValue(series.Of(f.column), f.rate);
    row.wanted = f.wanted;
    row.note = f.note;
    row.detail = f.detail;
    if (series.Has(f.against)) {
      row.reference = f.reference.empty() ? f.against : f.reference;
      row.reference_value =
          RateOrValue(series.Of(f.against), f.reference_rate != 0 ? f.reference_rate : f.rate);
    } else {
      row.wanted.ratio_at_least = 0;
    }
    report_->Add(std::move(row));
  }
}

void Bench::AddValue(const std::string& name, std::string metric, double value, std::string unit,
                     double at_most, std::string note, size_t threads) {
  Add(Row{.name = name,
          .metric = std::move(metric),
          .value = Summarize({value}),
          .unit = std::move(unit),
          .threads = threads,
          .wanted = {.value_at_most = at_most},
          .note = std::move(note)});
}

void Bench::AddRatio(const std::string& name, std::string metric, const Series& series,
                     std::string_view column, double& one, double at_most) {
  const double median = Summarize(series.Of(column)).median;
  if (one == 0) {
    one = median;
  } else {
    AddValue(name, std::move(metric), median / one, "x", at_most);
  }
}

void Bench::AddMemory(const std::string& name, std::optional<uint64_t> bytes, double at_most,
                      std::string note) {
  if (!bytes) return report_->NotMeasured(name + " memory", "the kernel does not reset the peak");
  AddValue(name, "memory", static_cast<double>(*bytes) / kMiB, "MiB", at_most, std::move(note));
}

int RunSuite(const std::string& name, const std::string& about,
             const std::function<void(CLI::App&)>& declare,
             const std::function<Status(Bench&)>& run, int argc, char** argv) {
  Bench bench;
  std::vector<std::string> only;
  std::string json;
  CLI::App app(about, "bench_" + name);
  app.add_option("--only", only, "Only cases in whose names one of these regular expressions is")
      ->delimiter(',');
  app.add_option("--json", json, "Write JSON lines to this file");
  app.option_defaults()->always_capture_default();
  app.add_option("--runs", bench.rounds.runs, "Runs of each case")->check(CLI::Range(1, 1000));
  app.add_option("--seed", bench.seed, "Seed of weights and changes");
  app.add_flag("--quick", bench.quick, "Small data and one run: does it still work?");
  declare(app);
  CLI11_PARSE(app, argc, argv);
  if (bench.quick) bench.rounds = {.warmups = 0, .runs = 1};
  const Status status = [&]() -> Status {
    DW_ASSIGN_OR_RETURN(bench.only_, Patterns(only));
    DW_ASSIGN_OR_RETURN(bench.report_, Report::Create(name, json));
    Describe(name, bench);
    DW_RETURN_IF_ERROR(run(bench));
    return bench.report_->Finish();
  }();
  if (status.ok()) return 0;
  fmt::print(stderr, "bench_{}: {}\n", name, MessageOf(status));
  return 1;
}

}  // namespace deltawire::bench
