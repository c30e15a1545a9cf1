// Runs the whole suite `delta` on a few MiB and checks that it reports every figure that it should.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "bench/delta/cases.h"
#include "common/base/bytes.h"
#include "common/layout/safetensors.h"
#include "kernels/kernels.h"
#include "tests/support/temp_dir.h"

namespace deltawire::bench::delta_suite_test {
namespace {

using nlohmann::json;

// Runs the program with these arguments, writes its output to `log`, and returns its exit code.
int RunSuite(const std::string& arguments, const std::filesystem::path& log) {
  const std::string command =
      fmt::format("'{}' {} >'{}' 2>&1", DELTAWIRE_BENCH_DELTA, arguments, log.string());
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<json> ReadLines(const std::filesystem::path& path) {
  std::vector<json> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    out.push_back(json::parse(line, nullptr, false));
    REQUIRE(!out.back().is_discarded());
  }
  return out;
}

std::set<std::string> Names(const std::vector<json>& lines) {
  std::set<std::string> out;
  for (const json& line : lines) out.insert(line.at("case").get<std::string>());
  return out;
}

bool HasTight() { return kernels::Best().tight_encode != nullptr; }

bool LooksDense(const std::string& name) {
  for (const char* density : {"_8%", "_50%", "_100%"}) {
    if (name.find(density) != std::string::npos) return true;
  }
  return false;
}

// True if the case of this name cannot be measured here: `past_deltas` says whether the workload
// has past deltas.
bool CannotBe(const std::string& name, bool past_deltas) {
  if (!HasTight() && name.find("tight") != std::string::npos) return true;
  // The dense codec is measured only on workloads where much changes.
  if (name.find("dense") != std::string::npos && !LooksDense(name)) return true;
  const bool needs_past = name.find("history") != std::string::npos || name.find("fold") == 0;
  return needs_past && !past_deltas;
}

TEST_CASE("delta suite: every case of every workload has a line") {
  const TempDir dir;
  const auto jsonl = dir.path() / "delta.jsonl", log = dir.path() / "log";
  const int rc = RunSuite(fmt::format("--quick --json '{}'", jsonl.string()), log);
  INFO(ReadAll(log));
  REQUIRE(rc == 0);
  const std::vector<json> lines = ReadLines(jsonl);
  const std::set<std::string> names = Names(lines);
  size_t workloads = 0;
  for (const Source& source : SyntheticSources({})) {
    ++workloads;
    const bool adam = source.name.starts_with("adam");
    for (const std::string& name : AllCaseNames(source.name, {1, 2})) {
      CAPTURE(name);
      CHECK((names.count(name) != 0 || CannotBe(name, adam)));
    }
  }
  CHECK(workloads == 11);
  for (const json& line : lines) {
    CAPTURE(line.dump());
    CHECK(line.at("suite") == "delta");
    CHECK(line.at("metric").is_string());
    CHECK(line.at("unit").is_string());
    CHECK(line.at("value").get<double>() >= 0);
    CHECK(line.at("min").get<double>() <= line.at("max").get<double>());
    CHECK(line.at("threads").get<int>() >= 1);
    CHECK(line.at("cpu").is_string());
    CHECK(line.contains("reference") == line.contains("ratio"));
  }
  // No codec may make a payload noticeably larger than the raw bytes.
  for (const json& line : lines) {
    if (line.at("metric") == "of_raw") CHECK(line.at("value").get<double>() <= 1.001);
  }
}

TEST_CASE("delta suite: only what was asked for is measured") {
  const TempDir dir;
  const auto jsonl = dir.path() / "delta.jsonl", log = dir.path() / "log";
  const int rc = RunSuite(
      fmt::format("--quick --only '^encode_fast/random_(1|3)%/1t$' --json '{}'", jsonl.string()),
      log);
  INFO(ReadAll(log));
  REQUIRE(rc == 0);
  CHECK(Names(ReadLines(jsonl)) ==
        std::set<std::string>{"encode_fast/random_1%/1t", "encode_fast/random_3%/1t"});
  CHECK(RunSuite("--quick --only '('", log) == 1);
  CHECK(ReadAll(log).find("no regular expression") != std::string::npos);
}

TEST_CASE("delta suite: two files of the user's own are measured") {
  const uint64_t seed = 5;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::vector<uint32_t> before(200'000), after;
  for (uint32_t& v : before) v = static_cast<uint32_t>(random());
  after = before;
  for (size_t i = 0; i < after.size(); i += 100) after[i] += 3;
  const TempDir dir;
  const auto write = [&](const char* name, const std::vector<uint32_t>& v) {
    std::ofstream out(dir.path() / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(v.data()), static_cast<std::streamsize>(v.size() * 4));
    return (dir.path() / name).string();
  };
  const std::string old_file = write("old", before), new_file = write("new", after);
  const auto jsonl = dir.path() / "delta.jsonl", log = dir.path() / "log";
  const int rc = RunSuite(fmt::format("--quick --pair '{}' '{}' --dtype F32 --json '{}'", old_file,
                                      new_file, jsonl.string()),
                          log);
  INFO(ReadAll(log));
  REQUIRE(rc == 0);
  const std::vector<json> lines = ReadLines(jsonl);
  const std::set<std::string> names = Names(lines);
  for (const std::string& name : AllCaseNames("pair", {1, 2})) {
    CAPTURE(name);
    CHECK((names.count(name) != 0 || CannotBe(name, false)));
  }
  for (const json& line : lines) {
    if (line.at("metric") == "density") CHECK(line.at("value").get<double>() == 0.01);
  }
  CHECK(RunSuite(fmt::format("--pair '{}' '{}' --dtype F31", old_file, new_file), log) == 1);
  CHECK(RunSuite(fmt::format("--pair '{}' '{}/nothing'", old_file, dir.path().string()), log) == 1);
}

TEST_CASE("delta suite: safetensors files and model directories of the user's own are measured") {
  const auto layout =
      Layout::Create({{"a.weight", DType::kBF16, {64, 100}}, {"b.scale", DType::kF32, {30}}});
  REQUIRE(layout.ok());
  const TempDir dir;
  for (const std::string version : {"old", "new"}) {
    std::string content = BuildSafetensorsHeader(*layout);
    const size_t data = content.size();
    content.append(layout->total_bytes(), 'x');
    if (version == "new") {
      content[data + 2] = 'y';
      content.back() = 'z';
    }
    std::filesystem::create_directory(dir.path() / version);
    std::ofstream(dir.path() / version / "model.safetensors", std::ios::binary) << content;
  }
  const auto jsonl = dir.path() / "delta.jsonl", log = dir.path() / "log";
  for (const std::string file : {"", "/model.safetensors"}) {
    const std::string root = dir.path().string();
    const int rc = RunSuite(fmt::format("--quick --only bits/ --pair '{0}/old{1}' '{0}/new{1}' "
                                        "--json '{2}'",
                                        root, file, jsonl.string()),
                            log);
    INFO(ReadAll(log));
    REQUIRE(rc == 0);
    bool found = false;
    for (const json& line : ReadLines(jsonl)) {
      if (line.at("metric") != "density") continue;
      found = true;
      CHECK(line.at("value").get<double>() == Approx(2.0 / 6430));
    }
    CHECK(found);
  }
}

}  // namespace
}  // namespace deltawire::bench::delta_suite_test
