#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/harness/bench.h"
#include "tests/support/temp_dir.h"

namespace deltawire::bench::report_test {
namespace {

Row MakeRow(std::vector<double> values, const char* unit, double reference = 0) {
  Row row;
  row.name = "case";
  row.metric = "metric";
  row.value = Summarize(std::move(values));
  row.unit = unit;
  if (reference > 0) {
    row.reference = "other";
    row.reference_value = Summarize({reference});
  }
  return row;
}

TEST_CASE("report: a ratio says how many times as good") {
  CHECK(MakeRow({8}, "GB/s", 4).Ratio() == 2);
  CHECK(MakeRow({8}, "bits", 4).Ratio() == 0.5);
  CHECK(MakeRow({8}, "GB/s").Ratio() == 0);
}

TEST_CASE("report: a wish is met by its ratio or its value") {
  Row row = MakeRow({1, 3, 5}, "GB/s", 4);  // the median is 3, the ratio 0.75
  CHECK_FALSE(row.wanted.any());
  CHECK(row.Met());
  row.wanted = {.ratio_at_least = 0.75};
  CHECK(row.Met());
  row.wanted = {.ratio_at_least = 0.76};
  CHECK_FALSE(row.Met());
  row.wanted = {.ratio_at_least = 0.76, .value_at_least = 3};
  CHECK(row.Met());
  row.wanted = {.ratio_at_least = 0.75, .value_at_least = 4};
  CHECK(row.Met());
  row.wanted = {.value_at_least = 3.1};
  CHECK_FALSE(row.Met());
  row.wanted = {.value_at_most = 5};  // a bound from above holds for every run
  CHECK(row.Met());
  row.wanted = {.value_at_most = 4};
  CHECK_FALSE(row.Met());
  row.wanted = {.value_at_least = 3, .value_at_most = 4};
  CHECK_FALSE(row.Met());
}

TEST_CASE("report: a JSON line holds the row, whether the table shows it or not") {
  const TempDir dir;
  const auto path = dir.path() / "r.jsonl";
  const auto bench = Bench::Create("suite", path);
  REQUIRE(bench.ok());
  Row row = MakeRow({2, 1, 4}, "GB/s", 4);
  row.detail = true;
  row.threads = 2;
  (*bench)->Add(row);
  row = MakeRow({7}, "");
  row.note = "a note";
  (*bench)->Add(row);
  REQUIRE((*bench)->Finish().ok());
  std::ifstream in(path);
  std::string first, second, third;
  REQUIRE((std::getline(in, first) && std::getline(in, second)));
  CHECK_FALSE(std::getline(in, third));
  const auto a = nlohmann::json::parse(first), b = nlohmann::json::parse(second);
  CHECK(a.at("suite") == "suite");
  CHECK(a.at("value") == 2);
  CHECK(a.at("min") == 1);
  CHECK(a.at("max") == 4);
  CHECK(a.at("ratio") == 0.5);
  CHECK(a.at("threads") == 2);
  CHECK_FALSE(a.contains("note"));
  CHECK(b.at("note") == "a note");
  CHECK_FALSE(b.contains("ratio"));
}

}  // namespace
}  // namespace deltawire::bench::report_test
