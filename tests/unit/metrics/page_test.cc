// The status page's parts: whatever text comes, it stays text, and charts have what they are given.
#include "common/metrics/page.h"

#include <catch2/catch.hpp>
#include <random>

namespace deltawire::metrics {
namespace {

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST_CASE("page: text stays text") {
  CHECK(EscapeHtml("a<b>&\"'c") == "a&lt;b&gt;&amp;&quot;&#39;c");
  CHECK(EscapeHtml("&amp;") == "&amp;amp;");
  CHECK(EscapeHtml("größe €😀") == "größe €😀");
  const std::string replaced = "\xEF\xBF\xBD";
  for (const std::string bad : {"\x01", "\x7f", "\n", "\xff", "\xc0", "\x80", "\xed"}) {
    CHECK(EscapeHtml(bad) == replaced);
  }
  // Overlong, a surrogate, beyond Unicode: none is a character, and no byte of one is '<'.
  CHECK(EscapeHtml("\xe0\x80\xbc") == replaced + replaced + replaced);
  CHECK(EscapeHtml("\xed\xa0\x80") == replaced + replaced + replaced);
  CHECK(EscapeHtml("\xf4\x90\x80\x80") == replaced + replaced + replaced + replaced);
  CHECK(EscapeHtml("\xe2\x82<") == replaced + replaced + "&lt;");
  CHECK(EscapeHtml(std::string("a\0b", 3)) == "a" + replaced + "b");
}

TEST_CASE("page: no bytes can end the text that they are in") {
  const uint32_t seed = 1;
  std::mt19937 random(seed);
  CAPTURE(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint32_t n = random() % 8; n-- > 0;) text += static_cast<char>(random() % 256);
    const std::string escaped = EscapeHtml(text);
    CHECK(escaped.find_first_of("<>\"'") == std::string::npos);
    CHECK(EscapeHtml(escaped).size() >= escaped.size());  // it is UTF-8: nothing becomes shorter
  }
}

TEST_CASE("page: names are escaped wherever they go") {
  const std::string evil = "<script>alert(1)</script>";
  Page page(evil);
  page.Heading(evil);
  page.Note(evil);
  page.Table(evil, {evil}, {{Page::Text(evil)}, {{evil, evil, false}}});
  page.Bars(evil, {evil}, {{evil, {1.0}}, {evil, {2.0}}}, Page::Unit::kSeconds);
  page.HeatMap(evil, {evil}, {evil, evil}, {0.5, -1});
  const std::string html = page.Finish();
  CHECK(html.find("<script") == std::string::npos);
  CHECK(Count(html, "&lt;script&gt;") > 12);
}

TEST_CASE("page: a bar is as high as its parts, the highest as high as the chart") {
  Page page("t");
  page.Bars("b", {"x", "y"}, {{"one", {1, 1}}, {"two", {1, 3}}}, Page::Unit::kSeconds);
  const std::string html = page.Finish();
  CHECK(Count(html, "height=\"25.00\"") == 3);
  CHECK(Count(html, "height=\"75.00\"") == 1);
  CHECK(html.find("<title>two: x 1.00 s, y 3.00 s</title>") != std::string::npos);
}

TEST_CASE("page: a chart of nothing is left out, and a cell has its exact value") {
  Page page("t");
  page.Bars("b", {"x"}, {}, Page::Unit::kBytes);
  page.Bars("b", {"x"}, {{"one", {0}}}, Page::Unit::kBytes);
  page.HeatMap("h", {}, {}, {});
  page.Table("t", {"n"}, {{Page::Bytes(8580000)}});
  const std::string html = page.Finish();
  CHECK(Count(html, "<svg") == 0);
  CHECK(html.find("<data value=\"8580000\">8.58 MB</data>") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::metrics
