#include "bench/harness/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/harness/machine.h"
#include "kernels/kernels.h"

namespace deltawire::bench {
namespace {

constexpr const char* kColumns = "{:<38} {:<18} {:>10} {:>21}  {:<24} {:>10} {:>6}  {}\n";

std::string Number(double value) {
  if (value != 0 && std::abs(value) < 0.095) return fmt::format("{:.2g}", value);
  return std::abs(value) < 9.95 ? fmt::format("{:.2f}", value) : fmt::format("{:.4g}", value);
}

std::string Human(double value, std::string_view unit) {
  if (unit == "s" && value < 0.95e-3) return fmt::format("{:.3g} us", value * 1e6);
  if (unit == "s" && value < 9.95e-3) return fmt::format("{:.3g} ms", value * 1e3);
  if (unit == "s") return HumanSeconds(value);
  return unit.empty() ? Number(value) : fmt::format("{} {}", Number(value), unit);
}

std::string Wish(const Row& row) {
  const Wanted& w = row.wanted;
  std::string out;
  if (w.ratio_at_least != 0) out = fmt::format("ratio >= {}", Number(w.ratio_at_least));
  if (w.value_at_least != 0) {
    out += fmt::format("{}>= {}", out.empty() ? "" : " or ", Human(w.value_at_least, row.unit));
  }
  if (w.value_at_most != 0) {
    out += fmt::format("{}<= {}", out.empty() ? "" : ", ", Human(w.value_at_most, row.unit));
  }
  return out;
}

Sample RateOrValue(const std::vector<double>& runs, double rate) {
  std::vector<double> values = runs;
  if (rate != 0) std::ranges::transform(values, values.begin(), [&](double s) { return rate / s; });
  return Summarize(std::move(values));
}

}  // namespace

Sample Summarize(std::vector<double> runs) {
  std::vector<double> sorted = runs;
  std::ranges::sort(sorted);
  const size_t half = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  return {median, sorted.front(), sorted.back(), std::move(runs)};
}

double Row::Ratio() const {
  if (!reference_value) return 0;
  const bool less_is_better = unit == "s" || unit == "s/GB" || unit == "MiB" || unit == "bits";
  return less_is_better ? reference_value->median / value.median
                        : value.median / reference_value->median;
}

bool Row::Met() const {
  if (wanted.value_at_most != 0 && value.max > wanted.value_at_most) return false;
  if (wanted.ratio_at_least == 0 && wanted.value_at_least == 0) return true;
  return (wanted.ratio_at_least != 0 && Ratio() >= wanted.ratio_at_least) ||
         (wanted.value_at_least != 0 && value.median >= wanted.value_at_least);
}

StatusOr<std::unique_ptr<Bench>> Bench::Create(std::string suite, const std::filesystem::path& json,
                                               const std::vector<std::string>& only) {
  auto bench = std::unique_ptr<Bench>(new Bench(std::move(suite)));
  for (const std::string& text : only) {
    try {
      bench->only_.emplace_back(text);
    } catch (const std::regex_error& e) {
      return Errorf(StatusCode::kInvalidArgument, "--only \"{}\" is no regular expression: {}",
                    text, e.what());
    }
  }
  bench->json_path_ = json;
  if (!json.empty()) {
    bench->json_.open(json, std::ios::trunc);
    if (!bench->json_) return ErrnoError("open " + json.string());
  }
  bench->Common("cpu", CpuName());
  bench->Common("cores", Cores());
  return bench;
}

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
  for (const Figure& f : figures) {
    Row row{f, name, threads, RateOrValue(series.Of(f.column), f.rate), {}};
    if (series.Has(f.against)) {
      if (f.reference.empty()) row.reference = f.against;
      row.reference_value =
          RateOrValue(series.Of(f.against), f.reference_rate != 0 ? f.reference_rate : f.rate);
    } else {
      row.wanted.ratio_at_least = 0;
    }
    Add(row);
  }
}

void Bench::Add(const Row& row) {
  if (!Asked(row.name)) return;
  PrintHeading();
  if (!row.detail) Print(row);
  if (json_.is_open()) Write(row);
  wanted_ += row.wanted.any();
  met_ += row.wanted.any() && row.Met();
}

void Bench::AddValue(const std::string& name, std::string metric, double value, std::string unit,
                     double at_most, std::string note, size_t threads) {
  Figure figure = Value(std::move(metric), "", std::move(unit));
  figure.AtMost(at_most).Note(std::move(note));
  Add(Row{std::move(figure), name, threads, Summarize({value}), {}});
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
  if (!bytes) return NotMeasured(name + " memory", "the kernel does not reset the peak");
  AddValue(name, "memory", static_cast<double>(*bytes) / kMiB, "MiB", at_most, std::move(note));
}

void Bench::NotMeasured(std::string_view name, std::string_view why) {
  PrintHeading();
  fmt::print("{}: not measured: {}\n", name, why);
}

void Bench::Common(const std::string& key, const std::string& value) {
  common_[key] = nlohmann::json(value).dump();
}

void Bench::PrintHeading() {
  if (std::exchange(heading_printed_, true)) return;
  fmt::print(kColumns, "case", "metric", "median", "min .. max", "reference", "median", "ratio",
             "wanted");
}

void Bench::Print(const Row& row) {
  const bool compared = row.reference_value.has_value();
  const std::string_view unit = row.unit == "s" ? "s" : "";
  fmt::print(kColumns, row.name, row.metric, Human(row.value.median, row.unit),
             fmt::format("{} .. {}", Human(row.value.min, unit), Human(row.value.max, unit)),
             compared ? row.reference : row.note,
             compared ? Human(row.reference_value->median, row.unit) : "",
             compared ? Number(row.Ratio()) : "",
             !row.wanted.any() ? "" : Wish(row) + (row.Met() ? ": ok" : ": MISSED"));
  std::fflush(stdout);
}

void Bench::Write(const Row& row) {
  nlohmann::ordered_json line = {{"suite", suite_},
                                 {"case", row.name},
                                 {"metric", row.metric},
                                 {"value", row.value.median},
                                 {"unit", row.unit}};
  if (row.reference_value) {
    line["reference"] = row.reference;
    line["reference_value"] = row.reference_value->median;
    line["ratio"] = row.Ratio();
    line["reference_runs"] = row.reference_value->runs;
  }
  if (!row.note.empty()) line["note"] = row.note;
  line["min"] = row.value.min;
  line["max"] = row.value.max;
  line["runs"] = row.value.runs;
  line["threads"] = row.threads;
  for (const auto& [key, value] : common_) line[key] = nlohmann::json::parse(value);
  json_ << line.dump() << '\n';
}

Status Bench::Finish() {
  if (wanted_ > 0) fmt::print("\nwanted: {} of {} met\n", met_, wanted_);
  if (!json_.is_open()) return absl::OkStatus();
  json_.close();
  if (json_.fail()) {
    return Errorf(StatusCode::kResourceExhausted, "{}: writing failed; is the disk full?",
                  json_path_.string());
  }
  return absl::OkStatus();
}

int RunSuite(const std::string& name, const std::string& about,
             const std::function<void(CLI::App&)>& declare,
             const std::function<Status(Bench&)>& run, int argc, char** argv) {
  Rounds rounds;
  uint64_t seed = 1;
  bool quick = false;
  std::vector<std::string> only;
  std::string json;
  CLI::App app(about, "bench_" + name);
  app.add_option("--only", only, "Only cases in whose names one of these regular expressions is")
      ->delimiter(',');
  app.add_option("--json", json, "Write JSON lines to this file");
  app.option_defaults()->always_capture_default();
  app.add_option("--runs", rounds.runs, "Runs of each case")->check(CLI::Range(1, 1000));
  app.add_option("--seed", seed, "Seed of weights and changes");
  app.add_flag("--quick", quick, "Small data and one run: does it still work?");
  declare(app);
  CLI11_PARSE(app, argc, argv);
  const Status status = [&]() -> Status {
    DW_ASSIGN_OR_RETURN(const auto bench, Bench::Create(name, json, only));
    bench->rounds = quick ? Rounds{.warmups = 0, .runs = 1} : rounds;
    bench->seed = seed;
    bench->quick = quick;
    const char* const backend = kernels::Best().name;
    fmt::print("{}: {} ({} cores), {}, seed {}, {} runs after {} warm-up\n", name, CpuName(),
               Cores(), backend, seed, bench->rounds.runs, bench->rounds.warmups);
    bench->Common("backend", backend);
    bench->Common("seed", seed);
    DW_RETURN_IF_ERROR(run(*bench));
    return bench->Finish();
  }();
  if (status.ok()) return 0;
  fmt::print(stderr, "bench_{}: {}\n", name, MessageOf(status));
  return 1;
}

}  // namespace deltawire::bench
