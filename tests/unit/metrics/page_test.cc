// The status page's parts: whatever text comes, it stays text; the style is the one that the policy
// allows; and the fleet's table begins with those who are behind.
#include "common/metrics/page.h"

#include <openssl/evp.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <catch2/catch.hpp>
#include <random>

#include "common/metrics/chart.h"
#include "common/metrics/fleet.h"
#include "tests/unit/metrics/count.h"

namespace deltawire::metrics::page_test {
namespace {

Identity Version(uint64_t number) {
  Identity id;
  id.id = {1, number};
  return id;
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
    CHECK(escaped.find_first_of(std::string("\0\n\r", 3)) == std::string::npos);
    // What is escaped already is UTF-8, so that only its entities grow.
    CHECK(Count(EscapeHtml(escaped), "\xEF\xBF\xBD") == Count(escaped, "\xEF\xBF\xBD"));
  }
}

TEST_CASE("page: names are escaped wherever they go") {
  const std::string evil = "<script>alert(1)</script>\"'";
  Verdict verdict;
  verdict.AddFailure(evil);
  Page page(evil, 1, verdict);
  page.Heading(evil);
  page.Note(evil);
  page.Facts(evil, {{evil, Cell::Word(evil)}});
  page.Table(evil, {evil}, {Row{Cell::Sentence(evil)}, Row{Cell{evil, evil}}});
  const Columns columns{evil, {evil}, {{evil, evil, {1.0}}, {evil, evil, {2.0}}}};
  page.Charts({SecondsChart(columns), BytesChart(columns),
               StepsChart({evil, evil, {evil}, {{{0, 1, evil}, {1, 2, evil}}}}),
               HeatChart({evil, evil, {evil}, {evil, evil}, {0.5, -1}})});
  FleetMember member;
  member.id = member.peer = member.message = evil;
  ShowFleet(page, evil, {}, {member});
  const std::string html = page.Finish();
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("\"'") == std::string::npos);
  CHECK(Count(html, "&lt;script&gt;") > 30);
}

TEST_CASE("page: the line at the top says the worst first, and links to the metrics") {
  const auto html = [](const Verdict& verdict) { return Page("t", 1, verdict).Finish(); };
  const auto says = [&](const Verdict& verdict, const std::string& look, const std::string& text) {
    const std::string line =
        fmt::format("<p class=\"verdict {}\" id=\"verdict\">{}</p>", look, text);
    return html(verdict).find("<h1>t</h1>\n" + line) != std::string::npos;
  };
  Verdict verdict;
  CHECK(says(verdict, "good", "All is well."));
  verdict.AddGood("a is at version 7");
  verdict.AddGood("b is at version 8");
  CHECK(says(verdict, "good", "All is well: a is at version 7; b is at version 8"));
  verdict.AddWait("c waits");
  CHECK(says(verdict, "wait", "Waiting: c waits"));
  verdict.AddFailure("d <failed>");
  CHECK(says(verdict, "bad", "Needs attention: d &lt;failed&gt;; c waits"));
  for (int i = 0; i < 9; ++i) verdict.AddFailure("e");
  CHECK(says(verdict, "bad", "Needs attention: d &lt;failed&gt;; e; e; e; e; and 6 more"));
  CHECK(Count(html({}), "<a href=\"/metrics\">metrics</a>") == 1);
}

TEST_CASE("page: the policy allows this style, and no other") {
  const std::string html = Page("t", 1, {}).Finish();
  const std::string open = "<style>";
  const size_t at = html.find(open) + open.size();
  const std::string style = html.substr(at, html.find("</style>") - at);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  REQUIRE(EVP_Digest(style.data(), style.size(), digest.data(), nullptr, EVP_sha256(), nullptr) ==
          1);
  std::array<unsigned char, 64> base64{};
  EVP_EncodeBlock(base64.data(), digest.data(), 32);
  const std::string want = reinterpret_cast<const char*>(base64.data());
  INFO("write 'sha256-" << want << "' into kPagePolicy");
  CHECK(std::string(kPagePolicy).find("style-src 'sha256-" + want + "';") != std::string::npos);
  CHECK(std::string(kPagePolicy).find("default-src 'none'; ") == 0);
}

TEST_CASE("page: a cell has what a reader wants, and its exact value") {
  Page page("t", 5400, {});
  page.Table("t", {"n"}, {Row{Cell::Bytes(8580000)}});
  page.Facts("f", {{"changed", Cell::Share(1, 8)}, {"none", Cell::Share(0, 0)}});
  const std::string html = page.Finish();
  CHECK(html.find("<td class=\"n\"><data value=\"8580000\">8.58 MB</data></td>") !=
        std::string::npos);
  CHECK(html.find("<data value=\"0.125\">12.50 %</data>") != std::string::npos);
  CHECK(html.find("<dt>none</dt><dd>-</dd>") != std::string::npos);
  CHECK(html.find("up 90.0 min") != std::string::npos);
  CHECK(Cell::Version({}).text == "-");
  CHECK(Cell::Version(Version(7)).text == "version 7");
  CHECK(Cell::Trace({}).text == "-");
  CHECK(Cell::Trace(Version(7)).text.size() == 16);
}

TEST_CASE("page: a fleet begins with who is furthest behind, and ends after a thousand") {
  std::vector<FleetMember> members(1005);
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].id = fmt::format("r{:04}", i);
    members[i].committed = Version(i == 900 ? 3 : i == 901 ? 8 : 9);
  }
  members[901].peer = "ipv4:10.0.0.7:1";
  members[901].phase = ReceiverPhase::kPulling;
  members[901].bytes_done = 30;
  members[901].bytes_total = 40;
  members[0].seconds = 2;
  members[0].transfer_seconds = 0.5;
  members[0].payload_bytes = 1000;
  Page page("t", 1, {});
  ShowFleet(page, "receivers", Version(9), members);
  const std::string html = page.Finish();
  const size_t first = html.find("r0900"), second = html.find("r0901"), third = html.find("r0000");
  CHECK(first < second);
  CHECK(second < third);
  CHECK(Count(html, "<tr>") == 1001);
  CHECK(html.find("<p>5 more are not further behind") != std::string::npos);
  CHECK(html.find("<td class=\"n\">6</td>") != std::string::npos);
  CHECK(html.find("pulling, 75 %") != std::string::npos);
  CHECK(html.find("<data value=\"ipv4:10.0.0.7:1\">10.0.0.7:1</data>") != std::string::npos);
  CHECK(html.find("<data value=\"2000\">2.00 kB/s</data>") != std::string::npos);
  Page empty("t", 1, {});
  ShowFleet(empty, "receivers", Version(9), {});
  CHECK(empty.Finish().find("No receiver is attached.") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::metrics::page_test
