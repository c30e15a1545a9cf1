// Runs the whole suite `export` on small buffers and checks that it reports every figure that it
// should. The suite itself checks the bytes that it moves.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/export/cases.h"
#include "bench/export/job.h"
#include "bench/harness/buffers.h"
#include "bench/harness/machine.h"
#include "tests/support/temp_dir.h"

namespace deltawire::bench::export_suite_test {
namespace {

using nlohmann::json;

int RunSuite(const std::string& arguments, const std::filesystem::path& log) {
  const std::string command =
      fmt::format("'{}' {} >'{}' 2>&1", DELTAWIRE_BENCH_EXPORT, arguments, log.string());
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The suite's lines by "case metric". A case that was run with several numbers of threads has the
/// line of the fewest.
std::map<std::string, json> Lines(const std::filesystem::path& path) {
  std::map<std::string, json> out;
  std::ifstream in(path);
  for (std::string text; std::getline(in, text);) {
    json line = json::parse(text, nullptr, false);
    REQUIRE(line.is_object());
    const auto key =
        line.at("case").get<std::string>() + " " + line.at("metric").get<std::string>();
    out.emplace(key, std::move(line));
  }
  return out;
}

TEST_CASE("export suite: a quick run measures every case") {
  const TempDir dir;
  const auto jsonl = dir.path() / "export.jsonl", log = dir.path() / "log";
  const int rc = RunSuite(fmt::format("--quick --json '{}'", jsonl.string()), log);
  INFO(ReadAll(log));
  REQUIRE(rc == 0);
  const auto lines = Lines(jsonl);
  for (const CopyCase& c : CopyCases(1 << 20)) {
    CAPTURE(c.name);
    CHECK(lines.count(c.name + " throughput") == 1);
  }
  for (const char* key : {"plan/tiny/tp2 ep2 plan and proof", "plan/tiny/tp2 ep2 one rank",
                          "place/tiny/tp2 ep2 throughput", "gather/tiny/tp2 ep2 throughput",
                          "gather/tiny/tp2 ep2 whole model", "gather/tiny/tp2 ep2 buckets"}) {
    CAPTURE(key);
    REQUIRE(lines.count(key) == 1);
    CHECK(lines.at(key).at("value").get<double>() > 0);
    CHECK(lines.at(key).at("suite") == "export");
  }
  // Memory is the one figure that depends neither on the machine's speed nor on its load, so it
  // alone has a bound here.
  const json& memory = lines.at("place/tiny/tp2 ep2 memory");
  CHECK(memory.at("value").get<double>() <= 64);
  CHECK_THAT(memory.at("note").get<std::string>(), Catch::Contains("half in "));
  const bool python = lines.count("offload/python throughput") == 1;
  const bool skipped = ReadAll(log).find("offload/python: not measured: ") != std::string::npos;
  CHECK(python != skipped);
}

TEST_CASE("export suite: without torch the Python case says so") {
  const TempDir dir;
  const auto log = dir.path() / "log", fake = dir.path() / "python";
  std::ofstream(fake) << "#!/bin/sh\necho \"SKIPPED: No module named 'torch'\"\n";
  std::filesystem::permissions(fake, std::filesystem::perms::owner_all);
  const int rc = RunSuite("--quick --only offload/python", log);
  REQUIRE(rc == 0);
  const std::string command = fmt::format(
      "DELTAWIRE_TRAINER_PYTHON='{}' '{}' --quick --only "
      "offload/python >'{}' 2>&1",
      fake.string(), DELTAWIRE_BENCH_EXPORT, log.string());
  CHECK(std::system(command.c_str()) == 0);
  CHECK(ReadAll(log).find("not measured: No module named 'torch'") != std::string::npos);
  std::ofstream(fake) << "#!/bin/sh\nexit 3\n";
  CHECK(std::system(command.c_str()) != 0);
  CHECK(ReadAll(log).find("offload/python: status") != std::string::npos);
}

TEST_CASE("export suite: every job of its tables can be planned") {
  for (const bool tiny : {false, true}) {
    for (const auto& jobs : {PlacedJobs(tiny), GatheredJobs(tiny)}) {
      for (const MegatronJob& job : jobs) {
        CAPTURE(job.name);
        const auto planned = Planned::Make(job);
        INFO(MessageOf(planned.status()));
        REQUIRE(planned.ok());
        const uint64_t bytes = (*planned)->plan().layout().total_bytes();
        // A small machine must have room for two buffers of this size.
        CHECK(bytes < uint64_t{3} << 30);
        if (!tiny) CHECK(bytes > uint64_t{700} << 20);
      }
    }
  }
}

TEST_CASE("export suite: the peak of memory that is gone by now is seen") {
  constexpr size_t kBytes = size_t{32} << 20;
  const PeakMemory memory;
  {
    auto buffer = HugeBuffer::Create(kBytes);
    REQUIRE(buffer.ok());
    CHECK(buffer->data()[kBytes - 1] == std::byte{0});
  }
  if (!memory.Beyond()) {
    WARN("SKIPPED: the kernel does not let the peak be reset");
    return;
  }
  CHECK(*memory.Beyond() >= kBytes - (1 << 20));  // the kernel counts resident pages in batches
  CHECK(*PeakMemory().Beyond() < kBytes);
}

TEST_CASE("export suite: filled by place is noticed where it is not") {
  std::vector<std::byte> half(4096);
  FillByPlace(half);
  CHECK(FilledByPlace(half));
  half[1003] ^= std::byte{1};
  CHECK_FALSE(FilledByPlace(half));
}

}  // namespace
}  // namespace deltawire::bench::export_suite_test
