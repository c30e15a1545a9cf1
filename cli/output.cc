#include "cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <functional>
#include <numeric>

#include "common/base/human.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

constexpr std::string_view kGap = "  ";

size_t TerminalWidth(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool BeginsCodePoint(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, BeginsCodePoint));
}

std::string_view CutToWidth(std::string_view text, size_t width) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (BeginsCodePoint(text[i]) && width-- == 0) return text.substr(0, i);
  }
  return text;
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string Table::Line(const std::vector<std::string>& cells,
                        const std::vector<size_t>& widths) const {
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const size_t width = DisplayWidth(cells[i]);
    const std::string pad(width < widths[i] ? widths[i] - width : 0, ' ');
    if (i > 0) line += kGap;
    line += columns_[i].align == Align::kRight ? pad + cells[i] : cells[i] + pad;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::vector<size_t> Table::MinWidths() const {
  std::vector<size_t> widths;
  for (const Column& c : columns_) widths.push_back(std::max(DisplayWidth(c.title), c.min_width));
  return widths;
}

std::string Table::TitleLine() const {
  std::vector<std::string> titles;
  for (const Column& c : columns_) titles.push_back(c.title);
  return Line(titles, MinWidths());
}

std::string Table::RowLine(const std::vector<std::string>& row) const {
  return Line(row, MinWidths());
}

std::string Table::Text() const {
  std::vector<size_t> widths = MinWidths();
  std::vector<std::string> titles;
  for (const Column& c : columns_) titles.push_back(c.title);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string text = Line(titles, widths);
  for (const auto& row : rows_) text += Line(row, widths);
  return text;
}

std::vector<bool> Table::Fitting(size_t width) const {
  std::vector<size_t> widths = MinWidths();
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::vector<size_t> by_rank(columns_.size());
  std::iota(by_rank.begin(), by_rank.end(), 0);
  std::ranges::stable_sort(by_rank, {}, [this](size_t i) { return columns_[i].rank; });
  std::vector<bool> fitting(columns_.size(), false);
  size_t used = 0;
  for (const size_t i : by_rank) {
    used += widths[i] + (used == 0 ? 0 : kGap.size());
    if (used > width && columns_[i].rank > 0) break;
    fitting[i] = true;
  }
  return fitting;
}

Table Table::Narrowed(size_t width) const {
  const std::vector<bool> fitting = Fitting(width);
  std::vector<Column> columns;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (fitting[i]) columns.push_back(columns_[i]);
  }
  Table narrow(std::move(columns));
  for (const auto& row : rows_) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < row.size(); ++i) {
      if (fitting[i]) cells.push_back(row[i]);
    }
    narrow.Add(std::move(cells));
  }
  return narrow;
}

std::string Table::Text(size_t width) const {
  const std::vector<bool> fitting =
      width == 0 ? std::vector<bool>(columns_.size(), true) : Fitting(width);
  if (std::ranges::all_of(fitting, std::identity())) return Text();
  const std::string lines = Narrowed(width).Text();
  std::string text;
  size_t begin = 0;
  for (size_t line = 0; begin < lines.size(); ++line) {
    const size_t end = lines.find('\n', begin) + 1;
    text += lines.substr(begin, end - begin);
    begin = end;
    if (line == 0 || line > rows_.size()) continue;  // the titles, or a cell of several lines
    std::string others;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = rows_[line - 1][i];
      if (fitting[i] || cell == "-" || cell.empty()) continue;
      std::string title = columns_[i].title;
      std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::tolower(c); });
      others += fmt::format("{}{} {}", others.empty() ? "    " : ", ", title, cell);
    }
    if (!others.empty()) text += Wrapped(others + "\n", width);
  }
  return text;
}

std::string Wrapped(std::string_view text, size_t width) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t spaces = std::min(line.find_first_not_of(' '), line.size());
    const std::string indent(spaces + 2, ' ');
    std::string prefix;
    while (width > indent.size() && prefix.size() + DisplayWidth(line) > width) {
      // Break at the last space within the width, but not within the line's indent. A long word
      // stays whole.
      const std::string_view head = CutToWidth(line, width - prefix.size() + 1);
      size_t space = head.rfind(' ');
      const size_t own = prefix.empty() ? spaces : 0;
      if (space == std::string_view::npos || space <= own) space = line.find(' ', head.size());
      if (space == std::string_view::npos) break;
      out += prefix;
      out += line.substr(0, space);
      out += '\n';
      line.remove_prefix(space + 1);
      prefix = indent;
    }
    out += prefix;
    out += line;
    out += '\n';
  }
  return out;
}

std::string ProgressText(std::string_view label, uint64_t done, uint64_t total, double seconds,
                         size_t width) {
  constexpr size_t kBar = 24;
  std::string text;
  if (total == 0) {
    text = done == 0 ? fmt::format("{} ...  {}", label, HumanSeconds(seconds))
                     : fmt::format("{} ...  {}", label, HumanBytes(done));
  } else {
    const uint64_t shown = std::min(done, total);
    const double part = static_cast<double>(shown) / static_cast<double>(total);
    const auto filled = static_cast<size_t>(part * kBar);
    text = fmt::format("{}  [{}{}] {:3.0f} %  {} of {}", label, std::string(filled, '#'),
                       std::string(kBar - filled, '.'), part * 100, HumanBytes(shown),
                       HumanBytes(total));
    if (seconds > 0.5) text += "  " + HumanRate(static_cast<double>(shown) / seconds);
  }
  if (text.size() > width) text.resize(width);
  return text;
}

Progress::Progress(std::string label, uint64_t total)
    : total_(total), label_(std::move(label)), start_(std::chrono::steady_clock::now()) {
  if (isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    cv_.notify_all();
  }
  thread_.join();
}

void Progress::Set(uint64_t done, uint64_t total) {
  done_ = done;
  total_ = total;
}

void Progress::Stage(std::string label) {
  std::lock_guard lock(mu_);
  label_ = std::move(label);
  start_ = std::chrono::steady_clock::now();
  Set(0, 0);
}

void Progress::Run() {
  constexpr auto kEvery = std::chrono::milliseconds(100);
  std::unique_lock lock(mu_);
  bool drawn = false;
  // Wait before the first line, so that quick work shows no progress.
  while (!cv_.wait_for(lock, kEvery, [this] { return stopping_; })) {
    const std::string text =
        ProgressText(label_, done_, total_, SecondsSince(start_), TerminalWidth(STDERR_FILENO) - 1);
    std::fprintf(stderr, "\r%s\033[K", text.c_str());
    std::fflush(stderr);
    drawn = true;
  }
  if (!drawn) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }

size_t StdoutWidth() { return StdoutIsTerminal() ? TerminalWidth(STDOUT_FILENO) : 0; }

std::string Percent(double part, double whole) {
  if (whole <= 0) return "-";
  const double percent = part / whole * 100;
  if (percent >= 99.995) return fmt::format("{:.0f} %", percent);
  if (percent == 0 || percent >= 0.01) return fmt::format("{:.2f} %", percent);
  return "<0.01 %";
}

std::string Grouped(uint64_t n) {
  const std::string digits = std::to_string(n);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string VersionText(StateId id) {
  if (id.epoch == 0) return "-";
  if (id.epoch == 1) return std::to_string(id.version);
  return fmt::format("{} (epoch {})", id.version, id.epoch);
}

std::string VersionText(const v1::Identity& id) { return VersionText(FromProto(id).id); }

std::string LineageText(const Hash128& lineage) {
  constexpr size_t kShown = 8;  // enough to tell lineages in one table apart
  return lineage == Hash128() ? "-" : lineage.Hex().substr(0, kShown);
}

std::string RootText(uint64_t root) {
  return root == 0 ? "-" : fmt::format("{:016x}", root).substr(0, 8);
}

std::string PullTimesText(const v1::PullStats& pull) {
  if (pull.seconds() <= 0) return "";
  const bool transfer = pull.transfer_seconds() >= pull.apply_seconds();
  std::string text = fmt::format("transfer {}{}, apply+commit {}{}",
                                 HumanSeconds(pull.transfer_seconds()), transfer ? " (most)" : "",
                                 HumanSeconds(pull.apply_seconds()), transfer ? "" : " (most)");
  if (pull.ahead_seconds() > 0) {
    text += fmt::format("; {} came in {} before the publish", HumanBytes(pull.ahead_bytes()),
                        HumanSeconds(pull.ahead_seconds()));
  }
  return text;
}

std::string ClockText(int64_t unix_nanos) {
  const time_t seconds = unix_nanos / 1'000'000'000;
  tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}.{:03}", local.tm_hour, local.tm_min, local.tm_sec,
                     unix_nanos / 1'000'000 % 1000);
}

void PrintJson(const Json& json) {
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

void PrintJsonLine(const Json& json) {
  std::printf("%s\n", ToLine(json).c_str());
  std::fflush(stdout);
}

}  // namespace deltawire::cli
