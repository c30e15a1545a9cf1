#include "bench/harness/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/harness/machine.h"
#include "common/base/human.h"

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

StatusOr<std::unique_ptr<Report>> Report::Create(std::string suite,
                                                 const std::filesystem::path& json) {
  auto report = std::unique_ptr<Report>(new Report(std::move(suite)));
  report->json_path_ = json;
  if (!json.empty()) {
    report->json_.open(json, std::ios::trunc);
    if (!report->json_) return ErrnoError("open " + json.string());
  }
  report->Common("cpu", CpuName());
  report->Common("cores", Cores());
  return report;
}

void Report::Common(const std::string& key, const std::string& value) {
  common_[key] = nlohmann::json(value).dump();
}
void Report::Common(const std::string& key, uint64_t value) {
  common_[key] = std::to_string(value);
}

void Report::PrintHeading() {
  if (std::exchange(heading_printed_, true)) return;
  fmt::print(kColumns, "case", "metric", "median", "min .. max", "reference", "median", "ratio",
             "wanted");
}

void Report::Print(const Row& row) {
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

void Report::Write(const Row& row) {
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

void Report::Add(const Row& row) {
  PrintHeading();
  if (!row.detail) Print(row);
  if (json_.is_open()) Write(row);
  wanted_ += row.wanted.any();
  met_ += row.wanted.any() && row.Met();
}

void Report::NotMeasured(std::string_view name, std::string_view why) {
  PrintHeading();
  fmt::print("{}: not measured: {}\n", name, why);
}

Status Report::Finish() {
  if (wanted_ > 0) fmt::print("\nwanted: {} of {} met\n", met_, wanted_);
  if (!json_.is_open()) return absl::OkStatus();
  json_.close();
  if (json_.fail()) {
    return Errorf(StatusCode::kResourceExhausted, "{}: writing failed; is the disk full?",
                  json_path_.string());
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
