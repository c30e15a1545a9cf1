// The tool's output: aligned tables, one-line errors, JSON, and a progress line on terminals.
// Tables go to stdout, progress and errors to stderr. Owner: one command. Threads: Progress may be
// fed from any; the rest belongs to one thread. Cost: Progress has a thread. Errors: none of its
// own.
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
  size_t min_width = 0;  ///< for tables that print a row before they know the next
  int rank = 0;          ///< a table that is too wide gives up the highest ranks first, and never 0
};

/// Columns two spaces apart; the last one is not padded on its right.
class Table {
 public:
  explicit Table(std::vector<Column> columns);
  /// REQUIRES: one cell per column.
  void Add(std::vector<std::string> row);
  size_t rows() const { return rows_.size(); }
  /// Title line and rows, each ended by a newline.
  std::string Text() const;
  /// The same within `width` columns; 0: any width. Columns that do not fit follow below their row,
  /// as "title value, title value"; cells of "-" are left out there.
  std::string Text(size_t width) const;
  /// Only the columns that fit.
  Table Narrowed(size_t width) const;
  /// The title line or one row alone, both at min_width: for live tables.
  std::string TitleLine() const;
  std::string RowLine(const std::vector<std::string>& row) const;

 private:
  // Which columns fit into `width`, by rank.
  std::vector<bool> Fitting(size_t width) const;
  std::string Line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const;
  std::vector<size_t> MinWidths() const;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// How many columns UTF-8 text takes on a terminal: one per code point.
size_t DisplayWidth(std::string_view text);
/// The text's first `width` columns.
std::string_view CutToWidth(std::string_view text, size_t width);

/// Breaks lines that are longer than `width` at spaces; what follows is indented by two columns
/// more than the line. 0: leaves all as it is.
std::string Wrapped(std::string_view text, size_t width);

/// The text of a progress line, `width` columns at most: "label  [####....]  45%  0.5 of 1.2 GB".
/// total 0: no bar, only what is done.
std::string ProgressText(std::string_view label, uint64_t done, uint64_t total, double seconds,
                         size_t width);

/// One line on stderr that a thread redraws ten times a second; only on a terminal. The destructor
/// erases the line.
class Progress {
 public:
  explicit Progress(std::string label, uint64_t total = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(uint64_t bytes) { done_.fetch_add(bytes, std::memory_order_relaxed); }
  void Set(uint64_t done, uint64_t total);
  /// Begins the next stage: with another label, and counting from zero.
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
  std::thread thread_;  // not running without a terminal
};

bool StdoutIsTerminal();
/// Columns of the terminal that stdout is; 0: it is none.
size_t StdoutWidth();

/// A part of a whole: "1.08 %"; "-" when the whole is zero.
std::string Percent(double part, double whole);
/// 1234567 as "1,234,567".
std::string Grouped(uint64_t n);
/// "7", "7 (epoch 2)" or "-".
std::string VersionText(StateId id);
std::string VersionText(const v1::Identity& id);
/// The first 8 hex digits of a lineage, or "-".
std::string LineageText(const Hash128& lineage);
/// The root's first hexadecimal digits: equal ones mean equal bytes. "-" for no root.
std::string RootText(uint64_t root);
/// Where a pull's time went, and which stage took the most: "transfer 12 ms (most), apply+commit 3
/// ms; 41 MB came in 2.1 s before the publish". "" for no pull.
std::string PullTimesText(const v1::PullStats& pull);
/// Local time of a wall clock instant, "14:03:22.125".
std::string ClockText(int64_t unix_nanos);

/// Print to stdout: indented, or in one line for streams of records.
void PrintJson(const Json& json);
void PrintJsonLine(const Json& json);

}  // namespace deltawire::cli
