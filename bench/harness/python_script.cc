#include "bench/harness/python_script.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

namespace deltawire::bench {
namespace {

using nlohmann::json;

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

std::string Command(const PythonScript& script, const Bench& bench) {
  const char* named = std::getenv("DELTAWIRE_TRAINER_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  const std::string path = script.package + ":" DELTAWIRE_BENCH_SCRIPTS;
  return fmt::format("PYTHONPATH={} {} -B {} --bin {} --warmups {} --runs {}{}{}", Quoted(path),
                     Quoted(python), Quoted(script.path), Quoted(script.bin), bench.rounds.warmups,
                     bench.rounds.runs, script.options, bench.quick ? " --tiny" : "");
}

Row RowOf(const std::string& name, const json& line) {
  Row row;
  row.name = line.contains("case") ? fmt::format("{}/{}", name, std::string(line["case"])) : name;
  row.metric = line.at("metric");
  row.unit = line.at("unit");
  row.threads = line.value("threads", size_t{1});
  row.value = Summarize(line.at("runs").get<std::vector<double>>());
  row.note = line.value("note", "");
  row.wanted.value_at_most = line.value("at_most", 0.0);
  if (line.contains("reference")) {
    row.reference = line.at("reference");
    row.reference_value = Summarize(line.at("reference_runs").get<std::vector<double>>());
  }
  return row;
}

}  // namespace

Status RunPythonScript(const PythonScript& script, Bench& bench) {
  const std::string command = Command(script, bench);
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
      bench.report().NotMeasured(script.name, said.substr(kSkipped.size()));
    } else if (line.is_object()) {
      bench.report().Add(RowOf(script.name, line));
    } else {
      continue;
    }
    ++rows;
  }
  std::free(text);
  const int status = pclose(out);
  if (status == 0 && rows > 0) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: status {} after {} rows of\n{}", script.name, status,
                rows, command);
}

}  // namespace deltawire::bench
