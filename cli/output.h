// The tool's output: aligned tables, one-line errors, JSON, and a progress line on terminals.
// Tables go to stdout, progress and errors to stderr. Any thread may update Progress, which has a
// thread of its own; the rest belongs to one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/identity.h"
#include "proto/client/json.h"
#include "proto/deltawire/v1/common.pb.h"

namespace deltawire::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  size_t min_width = 0;  ///< for tables that print rows one by one
  int rank = 0;          ///< a table that is too wide drops the highest ranks first, and never 0
};

/// A table with columns two spaces apart. The last column is not padded on its right.
class Table {
 public:
  explicit Table(std::vector<Column> columns);
  /// REQUIRES: one cell per column.
  void Add(std::vector<std::string> row);
  size_t rows() const { return rows_.size(); }
  /// Returns the title line and the rows, each ended by a newline.
  std::string Text() const;
  /// Returns the same within `width` columns (0: any width). Columns that do not fit follow below
  /// their row, as "title value, title value", without cells of "-".
  std::string Text(size_t width) const;
  /// Returns a table with only the columns that fit.
  Table Narrowed(size_t width) const;
  /// Returns the title line or one row alone, both at min_width, for live tables.
  std::string TitleLine() const;
  std::string RowLine(const std::vector<std::string>& row) const;

 private:
  // Returns the columns that fit into `width`, chosen by rank.
  std::vector<bool> Fitting(size_t width) const;
  std::string Line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const;
  std::vector<size_t> MinWidths() const;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Returns the number of terminal columns of UTF-8 text: one per code point.
size_t DisplayWidth(std::string_view text);
std::string_view CutToWidth(std::string_view text, size_t width);

/// Breaks lines that are longer than `width` at spaces (0: breaks none). Continuation lines are
/// indented by two columns more than the line.
std::string Wrapped(std::string_view text, size_t width);

/// Returns the text of a progress line, at most `width` columns: "label  [####....]  45%  0.5 of
/// 1.2 GB". With `total` 0 it has no bar, only the bytes done.
std::string ProgressText(std::string_view label, uint64_t done, uint64_t total, double seconds,
                         size_t width);

/// A line on stderr that a thread redraws ten times a second, only on a terminal. The destructor
/// erases the line.
class Progress {
 public:
  explicit Progress(std::string label, uint64_t total = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(uint64_t bytes) { done_.fetch_add(bytes, std::memory_order_relaxed); }
  void Set(uint64_t done, uint64_t total);
  /// Begins the next stage, with another label and a count from zero.
  void Stage(std::string label);

 private:
  void Run();
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> total_{0};
  std::mutex mu_;
  std::condition_variable cv_;
  std::string label_;
  std::chrono::steady_clock::time_point start_;
  bool stopping_ = false;
  std::thread thread_;  // not started without a terminal
};

bool StdoutIsTerminal();
/// Returns the columns of stdout's terminal, or 0 if stdout is not a terminal.
size_t StdoutWidth();

/// Returns a share such as "1.08 %", or "-" if the whole is zero.
std::string Percent(double part, double whole);
/// Formats 1234567 as "1,234,567".
std::string Grouped(uint64_t n);
/// Returns "7", "7 (epoch 2)" or "-".
std::string VersionText(StateId id);
std::string VersionText(const v1::Identity& id);
/// Returns the first 8 hex digits of a lineage, or "-".
std::string LineageText(const Hash128& lineage);
/// Returns the root's first hexadecimal digits, or "-" for no root. Equal digits mean equal bytes.
std::string RootText(uint64_t root);
/// Returns a pull's time by stage, with the longest one marked: "transfer 12 ms (most),
/// apply+commit 3 ms; 41 MB came in 2.1 s before the publish". Returns "" for no pull.
std::string PullTimesText(const v1::PullStats& pull);
/// Returns the local time of a wall clock instant: "14:03:22.125".
std::string ClockText(int64_t unix_nanos);

/// Prints to stdout: indented, or with PrintJsonLine in one line, for streams of records.
void PrintJson(const Json& json);
void PrintJsonLine(const Json& json);

}  // namespace deltawire::cli
