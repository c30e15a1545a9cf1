// Charts: each mark is where its value belongs on the axes, and every axis has texts with units.
#include "common/metrics/chart.h"

#include <catch2/catch.hpp>

#include "tests/unit/metrics/count.h"

namespace deltawire::metrics::chart_test {
namespace {

bool Has(const std::string& text, const std::string& what) { return Count(text, what) > 0; }

// A plot is 160 pixels high, and a column at least an eighth of the width away from the next.
TEST_CASE("chart: a stack is as high as its parts, on an axis of seconds") {
  const std::string svg =
      SecondsChart({"b", {"x", "y"}, {{"1", "one", {1, 1}}, {"2", "two", {1, 3}}}});
  CHECK(Count(svg, "height=\"40.00\"") == 3);
  CHECK(Count(svg, "height=\"120.00\"") == 1);
  CHECK(Has(svg, "class=\"k1\" x=\"13.75%\" y=\"0.00\" width=\"10.00%\" height=\"120.00\""));
  CHECK(Has(svg, "<title>two: x 1.00 s, y 3.00 s</title>"));
  for (const char* tick :
       {">0 s<", ">1 s<", ">2 s<", ">3 s<", ">4 s<", ">version<", ">1<", ">2<"}) {
    CAPTURE(tick);
    CHECK(Has(svg, tick));
  }
  const std::string fast = SecondsChart({"b", {"x"}, {{"1", "one", {0.019}}}});
  for (const char* tick : {">0 ms<", ">5 ms<", ">20 ms<"}) {
    CAPTURE(tick);
    CHECK(Has(fast, tick));
  }
}

TEST_CASE("chart: bytes are on a logarithmic axis of powers of ten") {
  const std::string svg =
      BytesChart({"b", {"delta", "whole"}, {{"1", "one", {0, 1e9}}, {"2", "two", {1e3, 1e6}}}});
  CHECK(Has(svg, ">1 kB<"));
  CHECK(Has(svg, ">100 kB<"));
  CHECK(Has(svg, ">1 GB<"));
  CHECK(Count(svg, "height=\"3\"") == 3);  // no line for 0 bytes
  CHECK(Has(svg, "class=\"k0\" x=\"12.50%\" y=\"158.50\""));
  CHECK(Has(svg, "class=\"k1\" x=\"12.50%\" y=\"78.50\""));
  CHECK(Has(svg, "class=\"k1\" x=\"0.00%\" y=\"-1.50\""));
  CHECK(Has(svg, "<title>one: delta 0 B, whole 1.00 GB</title>"));
}

TEST_CASE("chart: columns have no more labels than a narrow window has room for") {
  Columns many{"b", {"x"}, {}};
  for (int i = 1; i <= 64; ++i) many.columns.push_back({std::to_string(i), "v", {1.0 * i}});
  const std::string svg = SecondsChart(many);
  CHECK(Count(svg, "<g>") == 64);
  CHECK(Count(svg, "class=\"x\"") == 5 + 1);  // and the axis' name
  CHECK(Has(svg, ">1</text>"));
  CHECK(Has(svg, ">53</text>"));
}

TEST_CASE("chart: versions are steps on an axis of times of day") {
  const int64_t noon = 1767268800'000'000'000;  // 2026-01-01 12:00:00 UTC
  const int64_t second = 1'000'000'000;
  const std::string svg = StepsChart(
      {"v",
       "version",
       {"published", "committed"},
       {{{noon, 7, "7"}, {noon + 40 * second, 8, "8"}}, {{noon + 20 * second, 7, "7"}}}});
  CHECK(Has(svg, ">12:00:00<"));
  CHECK(Has(svg, ">12:00:20<"));
  CHECK(Has(svg, ">12:00:40<"));
  CHECK(Has(svg, ">time of day, UTC<"));
  CHECK(Has(svg, ">7<"));
  CHECK(Has(svg, ">8<"));
  CHECK(Has(svg, "<circle class=\"k0\" cx=\"0.00%\" cy=\"160.0\""));
  CHECK(Has(svg, "<circle class=\"k0\" cx=\"100.00%\" cy=\"0.0\""));
  CHECK(Has(svg, "<circle class=\"k1\" cx=\"50.00%\" cy=\"160.0\""));
  // One step is in the middle of its second, and its version on an axis of whole numbers.
  const std::string one = StepsChart({"v", "version", {"p"}, {{{noon, 7, "7"}}}});
  CHECK(Has(one, "cx=\"50.00%\" cy=\"160.0\""));
  CHECK(Has(one, ">12:00:00<"));
  // Days get dates; large numbers stay whole.
  const std::string days = StepsChart(
      {"v", "version", {"p"}, {{{noon, 1, "1"}, {noon + 400000 * second, 123456, "x"}}}});
  CHECK(Has(days, ">Jan 02<"));
  CHECK(Has(days, ">150000<"));
}

TEST_CASE("chart: a heat map has a cell for each ratio, and a scale") {
  const std::string svg = HeatChart({"h",
                                     "layer",
                                     {"mlp", "a.part.with.a.name.of.forty.letters.xxx"},
                                     {"0", "1"},
                                     {0.5, 0.25, -1, 0}});
  CHECK(Count(svg, "class=\"cell\"") == 3);
  CHECK(Has(svg, "fill-opacity=\"1.00\"><title>0, mlp: 50.000 %</title>"));
  CHECK(Has(svg, "<title>1, mlp: 25.000 %</title>"));
  CHECK(Has(svg, ">0 %<"));
  CHECK(Has(svg, "</svg>50.00 %<"));
  CHECK(Has(svg,
            "….name.of.forty.letters.xxx<title>a.part.with.a.name.of.forty.letters.xxx</title>"));
}

TEST_CASE("chart: a chart of nothing is none") {
  CHECK(SecondsChart({"b", {"x"}, {}}).empty());
  CHECK(SecondsChart({"b", {"x"}, {{"1", "one", {0}}}}).empty());
  CHECK(BytesChart({"b", {"x"}, {{"1", "one", {0}}}}).empty());
  CHECK(StepsChart({"v", "version", {"p", "c"}, {{}, {}}}).empty());
  CHECK(HeatChart({"h", "layer", {}, {}, {}}).empty());
  CHECK(HeatChart({"h", "layer", {"a"}, {"0"}, {-1}}).empty());
}

}  // namespace
}  // namespace deltawire::metrics::chart_test
