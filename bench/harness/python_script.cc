#include "bench/harness/python_script.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/child_process.h"
#include "tests/support/temp_dir.h"

namespace deltawire::bench {
namespace {

using nlohmann::json;

constexpr std::string_view kSkipped = "SKIPPED: ";

Row RowOf(const std::string& name, const json& line) {
  Row row;
  row.name = line.contains("case") ? fmt::format("{}/{}", name, std::string(line["case"])) : name;
  row.metric = line.at("metric");
  row.unit = line.at("unit");
  row.threads = line.value("threads", size_t{1});
  row.value = Summarize(line.at("runs").get<std::vector<double>>());
  row.note = line.value("note", "");
  row.wanted.value_at_most = line.value("at_most", 0.0);
  row.wanted.ratio_at_least = line.value("ratio_at_least", 0.0);
  if (line.contains("reference")) {
    row.reference = line.at("reference");
    row.reference_value = Summarize(line.at("reference_runs").get<std::vector<double>>());
  }
  return row;
}

}  // namespace

Status RunPythonScript(const std::string& name, const std::string& script,
                       const std::vector<std::string>& options, Bench& bench,
                       const char* variable) {
  if (!bench.Asked(name)) return absl::OkStatus();
  const char* const named = std::getenv(variable);
  setenv("PYTHONPATH", DELTAWIRE_PYTHON_DIR ":" DELTAWIRE_BENCH_DIR "/harness", 1);
  std::vector<std::string> command = {named != nullptr && *named != '\0' ? named : "python3", "-B",
                                      DELTAWIRE_BENCH_DIR "/" + script};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"--bin", cli::ProgramDirectory(), "--warmups",
                                 std::to_string(bench.rounds.warmups), "--runs",
                                 std::to_string(bench.rounds.runs)});
  if (bench.quick) command.push_back("--tiny");
  const TempDir scratch;
  const std::filesystem::path said = scratch.path() / "said";
  DW_ASSIGN_OR_RETURN(const auto child, cli::ChildProcess::Spawn(name, std::move(command), said));
  const int status = child->Wait(std::chrono::hours(6));
  size_t rows = 0;
  std::ifstream in(said);
  for (std::string text; std::getline(in, text);) {
    const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (text.starts_with(kSkipped)) {
      bench.NotMeasured(name, text.substr(kSkipped.size()));
    } else if (line.is_object()) {
      bench.Add(RowOf(name, line));
    } else {
      continue;
    }
    ++rows;
  }
  if (status == 0 && rows > 0) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: status {} after {} rows\n{}", name, status, rows,
                child->LogTail(20));
}

}  // namespace deltawire::bench
