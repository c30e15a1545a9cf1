#include "common/metrics/page.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "common/base/human.h"

namespace deltawire::metrics {
namespace {

// Colours of a stack's parts that people who see few colours tell apart, too;
// the heat map's cells have the first one, more or less of it.
constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6470;--line:#d5dae0;--row:#f5f7f9;
--c0:#0072b2;--c1:#e69f00;--c2:#009e73;--c3:#cc79a7;--c4:#56b4e9;--c5:#d55e00}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#9aa4b0;--line:#343b44;
--row:#1b2026;--c0:#4aa3dc;--c1:#f0b429;--c2:#2bc496;--c3:#e29cc3;--c4:#8fd0f5;--c5:#f2803a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:16px;background:var(--bg);color:var(--fg);
font:14px/1.45 system-ui,sans-serif}
h1{font-size:20px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 8px;overflow-wrap:anywhere}
p{margin:4px 0;color:var(--dim);overflow-wrap:anywhere}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;margin:8px 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}tbody tr:nth-child(even){background:var(--row)}
th{color:var(--dim);font-weight:600}.n{text-align:right}
figure{margin:12px 0}figcaption{font-weight:600}
.plot{display:block;width:100%;height:140px;background:var(--row);border:1px solid var(--line)}
.heat{display:block;width:100%;background:var(--row)}
.ends{display:flex;justify-content:space-between;color:var(--dim);font-size:12px}
ul{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0;padding:0;font-size:12px}
li::before{content:"";display:inline-block;width:10px;height:10px;margin-right:5px;
background:var(--k)}
)";

/// The length of the UTF-8 sequence that `text` begins with; 0: it begins with
/// none.
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

std::string TextOf(double value, Page::Unit unit) {
  return unit == Page::Unit::kSeconds ? HumanSeconds(value)
                                      : HumanBytes(static_cast<uint64_t>(value));
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const char c = text[0];
    const bool control = length == 1 && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f);
    if (length == 0 || control) {
      out += "\xEF\xBF\xBD";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return out;
}

Page::Page(std::string_view title) {
  const std::string escaped = EscapeHtml(title);
  html_ = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<link rel=\"icon\" "
      "href=\"data:,\"><title>{}</title><style>{}</style></head>\n"
      "<body><h1>{}</h1>\n",
      escaped, kStyle, escaped);
}

void Page::Heading(std::string_view text) {
  html_ += fmt::format("<h2>{}</h2>\n", EscapeHtml(text));
}

void Page::Note(std::string_view text) { html_ += fmt::format("<p>{}</p>\n", EscapeHtml(text)); }

Page::Cell Page::Count(uint64_t count) { return {std::to_string(count), "", true}; }

Page::Cell Page::Bytes(uint64_t bytes) { return {HumanBytes(bytes), std::to_string(bytes), true}; }

Page::Cell Page::Seconds(double seconds) {
  return {HumanSeconds(seconds), fmt::format("{}", seconds), true};
}

Page::Cell Page::Ratio(double ratio) {
  return {fmt::format("{:.2f} %", 100 * ratio), fmt::format("{}", ratio), true};
}

void Page::Table(std::string_view id, const std::vector<std::string>& titles,
                 const std::vector<std::vector<Cell>>& rows) {
  html_ += fmt::format("<div class=\"scroll\" tabindex=\"0\"><table id=\"{}\"><thead><tr>",
                       EscapeHtml(id));
  for (size_t i = 0; i < titles.size(); ++i) {
    const bool number = !rows.empty() && rows.front()[i].number;
    html_ += fmt::format("<th scope=\"col\"{}>{}</th>", number ? " class=\"n\"" : "",
                         EscapeHtml(titles[i]));
  }
  html_ += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    html_ += "<tr>";
    for (const Cell& cell : row) {
      const std::string text = EscapeHtml(cell.text);
      html_ += cell.number ? "<td class=\"n\">" : "<td>";
      html_ += cell.value.empty()
                   ? text
                   : fmt::format("<data value=\"{}\">{}</data>", EscapeHtml(cell.value), text);
      html_ += "</td>";
    }
    html_ += "</tr>\n";
  }
  html_ += "</tbody></table></div>\n";
}

void Page::Bars(std::string_view title, const std::vector<std::string>& names,
                const std::vector<Column>& columns, Unit unit) {
  double most = 0;
  for (const Column& column : columns) {
    double sum = 0;
    for (const double part : column.parts) sum += part;
    most = std::max(most, sum);
  }
  if (most <= 0) return;
  html_ += fmt::format("<figure><figcaption>{}</figcaption><ul>", EscapeHtml(title));
  for (size_t i = 0; i < names.size(); ++i) {
    html_ += fmt::format("<li style=\"--k:var(--c{})\">{}</li>", i, EscapeHtml(names[i]));
  }
  // The picture is stretched to the width that there is, so it has no text of
  // its own.
  constexpr double kHeight = 100, kWidth = 10, kGap = 1;
  html_ += fmt::format(
      "</ul><div class=\"ends\"><span>{}</span></div><svg class=\"plot\" "
      "role=\"img\" "
      "aria-label=\"{}\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\">",
      TextOf(most, unit), EscapeHtml(title),
      kWidth * static_cast<double>(std::max<size_t>(columns.size(), 8)), kHeight);
  for (size_t c = 0; c < columns.size(); ++c) {
    std::string tip = columns[c].label;
    for (size_t i = 0; i < names.size(); ++i) {
      tip +=
          fmt::format("{}{} {}", i == 0 ? ": " : ", ", names[i], TextOf(columns[c].parts[i], unit));
    }
    html_ += fmt::format("<g><title>{}</title>", EscapeHtml(tip));
    double top = kHeight;
    for (size_t i = 0; i < names.size(); ++i) {
      const double height = kHeight * columns[c].parts[i] / most;
      top -= height;
      html_ += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
          "fill=\"var(--c{})\"/>",
          kWidth * static_cast<double>(c) + kGap / 2, top, kWidth - kGap, height, i);
    }
    html_ += "</g>";
  }
  html_ += fmt::format(
      "</svg><div "
      "class=\"ends\"><span>{}</span><span>{}</span></div></figure>\n",
      EscapeHtml(columns.front().label),
      columns.size() < 2 ? "" : EscapeHtml(columns.back().label));
}

void Page::HeatMap(std::string_view title, const std::vector<std::string>& rows,
                   const std::vector<std::string>& columns, const std::vector<double>& ratios) {
  double most = 0;
  for (const double ratio : ratios) most = std::max(most, ratio);
  if (most <= 0) return;
  constexpr double kCell = 10, kGap = 1, kRowPixels = 16;
  html_ += fmt::format(
      "<figure><figcaption>{}</figcaption><div class=\"ends\"><span>{}: 0 to "
      "{:.2f} %</span></div>"
      "<svg class=\"heat\" style=\"height:{}px\" role=\"img\" "
      "aria-label=\"{}\" "
      "viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\">",
      EscapeHtml(title), EscapeHtml(fmt::format("{}", fmt::join(rows, ", "))), 100 * most,
      kRowPixels * static_cast<double>(rows.size()), EscapeHtml(title),
      kCell * static_cast<double>(columns.size()), kCell * static_cast<double>(rows.size()));
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < columns.size(); ++c) {
      const double ratio = ratios[r * columns.size() + c];
      if (ratio < 0) continue;
      html_ += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{}\" height=\"{}\" "
          "fill=\"var(--c0)\" "
          "fill-opacity=\"{:.3f}\"><title>{}</title></rect>",
          kCell * static_cast<double>(c), kCell * static_cast<double>(r), kCell - kGap,
          kCell - kGap, ratio / most,
          EscapeHtml(fmt::format("{}, {}: {:.3f} %", columns[c], rows[r], 100 * ratio)));
    }
  }
  html_ += fmt::format(
      "</svg><div "
      "class=\"ends\"><span>{}</span><span>{}</span></div></figure>\n",
      EscapeHtml(columns.front()), columns.size() < 2 ? "" : EscapeHtml(columns.back()));
}

std::string Page::Finish() {
  html_ += "</body></html>\n";
  return std::move(html_);
}

}  // namespace deltawire::metrics
