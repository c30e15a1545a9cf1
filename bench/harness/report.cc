#include "bench/harness/report.h"

#include <nlohmann/json.hpp>

#include "bench/harness/machine.h"
#include "common/base/human.h"

namespace deltawire::bench {
namespace {

constexpr const char* kColumns = "{:<{}} {:<20} {:>10} {:>21}  {:<26} {:>10} {:>8}\n";

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

bool LessIsBetter(std::string_view unit) {
  return unit == "s" || unit == "s/GB" || unit == "MiB" || unit == "bits";
}

double Row::Ratio() const {
  if (!reference_value) return 0;
  const double value_of = value.median, reference_of = reference_value->median;
  return LessIsBetter(unit) ? reference_of / value_of : value_of / reference_of;
}

bool Row::Met() const {
  if (wanted.value_at_most != 0 && value.max > wanted.value_at_most) return false;
  if (wanted.ratio_at_least == 0 && wanted.value_at_least == 0) return true;
  return (wanted.ratio_at_least != 0 && Ratio() >= wanted.ratio_at_least) ||
         (wanted.value_at_least != 0 && value.median >= wanted.value_at_least);
}

struct Report::Fields {
  nlohmann::ordered_json fields;
};

Report::Report() : common_(std::make_unique<Fields>()) {}
Report::~Report() = default;

StatusOr<std::unique_ptr<Report>> Report::Create(std::string suite,
                                                 const std::filesystem::path& json,
                                                 size_t case_width) {
  auto report = std::unique_ptr<Report>(new Report);
  report->case_width_ = case_width;
  report->suite_ = std::move(suite);
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
  common_->fields[key] = value;
}
void Report::Common(const std::string& key, uint64_t value) { common_->fields[key] = value; }

void Report::PrintHeading() {
  if (heading_printed_) return;
  heading_printed_ = true;
  fmt::print(kColumns, "case", case_width_, "metric", "median", "min .. max", "reference", "median",
             "ratio");
}

void Report::Add(Row row) {
  PrintHeading();
  const bool compared = row.reference_value.has_value();
  fmt::print(kColumns, row.name, case_width_, row.metric, Human(row.value.median, row.unit),
             fmt::format("{} .. {}", Human(row.value.min, row.unit == "s" ? "s" : ""),
                         Human(row.value.max, row.unit == "s" ? "s" : "")),
             compared ? row.reference : row.note,
             compared ? Human(row.reference_value->median, row.unit) : "",
             compared ? Number(row.Ratio()) : "");
  std::fflush(stdout);
  if (json_.is_open()) {
    nlohmann::ordered_json line = {{"suite", suite_},
                                   {"case", row.name},
                                   {"metric", row.metric},
                                   {"value", row.value.median},
                                   {"unit", row.unit}};
    if (compared) {
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
    line.update(common_->fields);
    json_ << line.dump() << '\n';
  }
  if (row.wanted.any()) wanted_.push_back(std::move(row));
}

void Report::NotMeasured(std::string_view name, std::string_view why) {
  PrintHeading();
  fmt::print("{:<{}} not measured: {}\n", name, case_width_, why);
}

Status Report::Finish() {
  if (!wanted_.empty()) fmt::print("\nwanted\n");
  size_t width = 38;
  for (const Row& row : wanted_) {
    width = std::max(width, row.name.size() + 1 + row.metric.size());
  }
  for (const Row& row : wanted_) {
    const std::string what = row.name + " " + row.metric;
    const bool by_ratio = row.wanted.ratio_at_least != 0;
    const std::string against = row.reference.empty() || !by_ratio ? "" : " of " + row.reference;
    const std::string is =
        by_ratio
            ? Number(row.Ratio())
            : Human(row.wanted.value_at_most != 0 ? row.value.max : row.value.median, row.unit);
    fmt::print("  {:<{}} wanted {:<14} {:>9}{}  {}\n", what, width, Wish(row) + ":", is, against,
               row.Met() ? "ok" : "MISSED");
  }
  if (!json_.is_open()) return absl::OkStatus();
  json_.close();
  if (json_.fail()) {
    return Errorf(StatusCode::kResourceExhausted, "{}: writing failed; is the disk full?",
                  json_path_.string());
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
