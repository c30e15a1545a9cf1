#include "common/metrics/page.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <ctime>

#include "common/base/human.h"
#include "common/base/trace.h"

namespace deltawire::metrics {
namespace {

/// The interval at which a browser reloads the page.
constexpr int kReloadSeconds = 30;

// The colors k0 to k5 are distinguishable with color blindness too (after Okabe and Ito).
// page_test.cc compares the style's digest with the one in kPagePolicy.
constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#59636e;--line:#d8dde3;--row:#f5f7f9;
--k0:#0072b2;--k1:#e69f00;--k2:#009e73;--k3:#cc79a7;--k4:#56b4e9;--k5:#d55e00}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#9aa4b0;--line:#343b44;
--row:#1b2026;--k0:#4aa3dc;--k1:#f0b429;--k2:#2bc496;--k3:#e29cc3;--k4:#9fdcf9;--k5:#f2803a}}
.k0{--k:var(--k0)}.k1{--k:var(--k1)}.k2{--k:var(--k2)}
.k3{--k:var(--k3)}.k4{--k:var(--k4)}.k5{--k:var(--k5)}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1280px;padding:16px;background:var(--bg);color:var(--fg);
font:14px/1.45 system-ui,sans-serif}
h1{font-size:20px;margin:0}h2{font-size:17px;margin:32px 0 8px}
h1,h2,p,dd{overflow-wrap:anywhere}
p,dt,figcaption span{color:var(--dim)}p{margin:4px 0}a{color:inherit}
.verdict{color:var(--fg);font-size:16px;margin:8px 0;padding:2px 10px;border-left:4px solid}
.good{border-color:var(--k2)}.wait{border-color:var(--k1)}.bad{border-color:var(--k5)}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(128px,1fr));gap:8px;margin:8px 0}
dl div{background:var(--row);border:1px solid var(--line);border-radius:6px;padding:6px 10px}
dt{font-size:12px}dd{margin:0;font-size:16px}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;margin:8px 0 16px}
table{border-collapse:collapse;width:100%}
table,dd{font-variant-numeric:tabular-nums}
th,td{padding:4px 10px;text-align:left;vertical-align:top;white-space:nowrap}
th{color:var(--dim);font-weight:600;border-bottom:1px solid var(--line)}
tbody tr:nth-child(even){background:var(--row)}
td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:124px;max-width:280px}
th.n,td.n{text-align:right}td.s{white-space:normal;overflow-wrap:anywhere;min-width:200px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));
gap:8px 24px}
figure{margin:12px 0;min-width:0}figcaption{font-weight:600}figcaption span{font-weight:400}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:0 14px;margin:2px 0 0;padding:0;font-size:12px}
.key li::before{content:"";display:inline-block;width:10px;height:10px;margin-right:5px;
background:var(--k)}
.plot{display:block;width:calc(100% - 92px);margin:24px 28px 40px 64px;overflow:visible}
.heat{width:calc(100% - 184px);margin-left:168px;margin-right:16px}
.plot text{font-size:11px;fill:var(--dim)}.plot .x{text-anchor:middle}.plot .y{text-anchor:end}
.plot line{stroke:var(--line)}.plot [class^=k]{fill:var(--k);stroke:none}
.plot line[class^=k]{stroke:var(--k);stroke-width:2}.hit{fill:transparent}
.ramp{vertical-align:-1px;margin:0 4px}.ramp rect,.plot .cell{fill:var(--k0)}
@media(max-width:600px){.heat{width:calc(100% - 148px);margin-left:132px}.heat .y{font-size:9px}}
)";

/// Returns the length of the UTF-8 sequence at the start of `text`; 0: none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80                   ? 1
                        : lead >= 0xc2 && lead < 0xe0 ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool beyond = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

/// Returns the entity for `c`; "": `c` needs none.
std::string_view EntityOf(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return "";
  }
}

std::string_view ClassOf(Cell::Look look) {
  switch (look) {
    case Cell::Look::kNumber:
      return " class=\"n\"";
    case Cell::Look::kSentence:
      return " class=\"s\"";
    default:
      return "";
  }
}

std::string Inner(const Cell& cell) {
  const std::string text = EscapeHtml(cell.text);
  if (cell.value.empty()) return text;
  return fmt::format("<data value=\"{}\">{}</data>", EscapeHtml(cell.value), text);
}

}  // namespace

const char* const kPagePolicy =
    "default-src 'none'; style-src 'sha256-RgUhYM8zZH2Gs4CrWV2dG9ngphMbBKIM3xbc/2wWXDs='; img-src "
    "data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

std::string EscapeHtml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      out += "\xEF\xBF\xBD";
    } else if (const std::string_view entity = EntityOf(text[0]); !entity.empty()) {
      out += entity;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return out;
}

Cell Cell::Count(uint64_t count) { return {std::to_string(count), {}, Look::kNumber}; }

Cell Cell::Bytes(uint64_t bytes) {
  return {HumanBytes(bytes), std::to_string(bytes), Look::kNumber};
}

Cell Cell::Rate(double bytes_per_s) {
  return {HumanRate(bytes_per_s), fmt::format("{}", bytes_per_s), Look::kNumber};
}

Cell Cell::Seconds(double seconds) {
  return {HumanSeconds(seconds), fmt::format("{}", seconds), Look::kNumber};
}

Cell Cell::Share(double part, double all) {
  if (all <= 0) return None();
  return {fmt::format("{:.2f} %", 100 * part / all), fmt::format("{}", part / all), Look::kNumber};
}

Cell Cell::Version(const Identity& id) { return Word(id.empty() ? "-" : ToString(id)); }

Cell Cell::Trace(const Identity& id) {
  return Word(id.empty() ? "-" : fmt::format("{:016x}", TraceOf(id).value));
}

std::string_view Verdict::look() const {
  return !failures_.empty() ? "bad" : !waits_.empty() ? "wait" : "good";
}

std::string Verdict::Text() const {
  constexpr size_t kMost = 5;
  const bool bad = !failures_.empty();
  const std::string_view opening = bad               ? "Needs attention"
                                   : !waits_.empty() ? "Waiting"
                                                     : "All is well";
  std::vector<std::string> all = bad || !waits_.empty() ? failures_ : good_;
  if (bad || !waits_.empty()) all.insert(all.end(), waits_.begin(), waits_.end());
  if (all.empty()) return fmt::format("{}.", opening);
  const size_t more = all.size() - std::min(all.size(), kMost);
  all.resize(all.size() - more);
  if (more > 0) all.push_back(fmt::format("and {} more", more));
  return fmt::format("{}: {}", opening, fmt::join(all, "; "));
}

Page::Page(std::string_view title, double uptime_seconds, const Verdict& verdict) {
  const std::string escaped = EscapeHtml(title);
  html_ = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=\"refresh\" content=\"{}\"><link rel=\"icon\" href=\"data:,\">"
      "<title>{}</title><style>{}</style></head>\n<body><h1>{}</h1>\n",
      kReloadSeconds, escaped, kStyle, escaped);
  const time_t now = time(nullptr);
  tm utc{};
  char instant[32];
  std::strftime(instant, sizeof instant, "%F %T UTC", gmtime_r(&now, &utc));
  html_ += fmt::format("<p class=\"verdict {}\" id=\"verdict\">{}</p>\n", verdict.look(),
                       EscapeHtml(verdict.Text()));
  html_ += fmt::format(
      "<p>deltawire {}, up {}, at {}; reloads every {} s; <a href=\"/metrics\">metrics</a></p>\n",
      DELTAWIRE_VERSION, HumanSeconds(uptime_seconds), instant, kReloadSeconds);
}

void Page::Heading(std::string_view text) {
  html_ += fmt::format("<h2>{}</h2>\n", EscapeHtml(text));
}

void Page::Note(std::string_view text) { html_ += fmt::format("<p>{}</p>\n", EscapeHtml(text)); }

void Page::Facts(std::string_view id, const std::vector<std::pair<std::string, Cell>>& facts) {
  html_ += fmt::format("<dl id=\"{}\">", EscapeHtml(id));
  for (const auto& [name, cell] : facts) {
    html_ += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", EscapeHtml(name), Inner(cell));
  }
  html_ += "</dl>\n";
}

void Page::Table(std::string_view id, const std::vector<std::string>& titles,
                 const std::vector<Row>& rows) {
  // A keyboard can scroll only an element that has the focus.
  html_ += fmt::format("<div class=\"scroll\" tabindex=\"0\"><table id=\"{}\"><thead><tr>",
                       EscapeHtml(id));
  for (size_t i = 0; i < titles.size(); ++i) {
    const auto look = rows.empty() ? Cell::Look::kWord : rows.front()[i].look;
    html_ += fmt::format("<th scope=\"col\"{}>{}</th>", ClassOf(look), EscapeHtml(titles[i]));
  }
  html_ += "</tr></thead><tbody>\n";
  for (const Row& row : rows) {
    html_ += "<tr>";
    for (const Cell& cell : row) {
      html_ += fmt::format("<td{}>{}</td>", ClassOf(cell.look), Inner(cell));
    }
    html_ += "</tr>\n";
  }
  html_ += "</tbody></table></div>\n";
}

void Page::Charts(const std::vector<std::string>& figures) {
  html_ += "<div class=\"charts\">";
  for (const std::string& figure : figures) html_ += figure;
  html_ += "</div>\n";
}

std::string Page::Finish() {
  html_ += "</body></html>\n";
  return std::move(html_);
}

}  // namespace deltawire::metrics
