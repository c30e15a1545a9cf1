// offload/python: runs the script, which says its rows as JSON lines, and reports them.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/export/cases.h"

namespace deltawire::bench {
namespace {

using nlohmann::json;

constexpr const char* kName = "offload/python";
constexpr std::string_view kSkipped = "SKIPPED: ";

std::string Quoted(std::string_view text) {
  std::string out(1, '\'');
  for (const char c : text) {
    if (c == '\'') out.append("'\\'");  // end, an escaped one, begin again
    out.push_back(c);
  }
  out.push_back('\'');
  return out;
}

std::string Command(const ExportOptions& options, const Bench& bench) {
  const char* named = std::getenv("DELTAWIRE_TRAINER_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  std::string threads;
  for (const size_t n : options.threads) threads += fmt::format(" --threads {}", n);
  return fmt::format("PYTHONPATH={} {} -B {} --bin {} --warmups {} --runs {}{}{}",
                     Quoted(DELTAWIRE_BENCH_PYTHONPATH), Quoted(python),
                     Quoted(DELTAWIRE_BENCH_OFFLOAD), Quoted(DELTAWIRE_BENCH_BIN),
                     bench.rounds.warmups, bench.rounds.runs, threads,
                     bench.quick ? " --tiny" : "");
}

Row RowOf(const json& line) {
  Row row;
  row.name = kName;
  row.metric = line.at("metric");
  row.unit = line.at("unit");
  row.threads = line.value("threads", size_t{1});
  row.value = Summarize(line.at("runs").get<std::vector<double>>());
  row.note = line.value("note", "");
  if (line.contains("reference")) {
    row.reference = line.at("reference");
    row.reference_value = Summarize(line.at("reference_runs").get<std::vector<double>>());
  }
  return row;
}

}  // namespace

Status PythonCases(const ExportOptions& options, Bench& bench) {
  if (!bench.Asked(kName)) return absl::OkStatus();
  const std::string command = Command(options, bench);
  std::fflush(stdout);
  FILE* const out = popen(command.c_str(), "r");
  if (out == nullptr) return ErrnoError("popen");
  size_t rows = 0;
  char* text = nullptr;
  size_t room = 0;
  while (getline(&text, &room, out) > 0) {
    const std::string_view said(text, std::strcspn(text, "\n"));
    const json line = json::parse(said, nullptr, /*allow_exceptions=*/false);
    if (said.starts_with(kSkipped)) {
      bench.report().NotMeasured(kName, said.substr(kSkipped.size()));
    } else if (line.is_object()) {
      bench.report().Add(RowOf(line));
    } else {
      continue;
    }
    ++rows;
  }
  std::free(text);
  const int status = pclose(out);
  if (status == 0 && rows > 0) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: status {} after {} rows of\n{}", kName, status, rows,
                command);
}

}  // namespace deltawire::bench
