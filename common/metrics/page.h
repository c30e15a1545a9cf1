// One HTML document, made of headings, tables and charts: no scripts, nothing
// to fetch, light or dark as the reader's system is. All text is escaped, since
// names of models and receivers come from peers. Owner: whoever makes it, for
// one request. Threads: one. Cost: the text. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::metrics {

/// `text` as HTML's text or attribute value shows it. Bytes that are no UTF-8,
/// and control characters, become U+FFFD.
std::string EscapeHtml(std::string_view text);

class Page {
 public:
  explicit Page(std::string_view title);

  void Heading(std::string_view text);
  void Note(std::string_view text);

  /// What a reader sees, and the exact value for programs ("": the text
  /// itself).
  struct Cell {
    std::string text, value;
    bool number = false;  ///< stands at the right
  };
  static Cell Text(std::string text) { return {std::move(text), "", false}; }
  static Cell Count(uint64_t count);
  static Cell Bytes(uint64_t bytes);
  static Cell Seconds(double seconds);
  /// A ratio, shown in per cent.
  static Cell Ratio(double ratio);
  /// REQUIRES: each row has a cell per title.
  void Table(std::string_view id, const std::vector<std::string>& titles,
             const std::vector<std::vector<Cell>>& rows);

  struct Column {
    std::string label;
    std::vector<double> parts;  ///< from the bottom up
  };
  enum class Unit : uint8_t { kSeconds, kBytes };
  /// A bar for each column, stacked of its parts. REQUIRES: 1 to kParts names,
  /// and as many parts in each column.
  static constexpr size_t kParts = 6;
  void Bars(std::string_view title, const std::vector<std::string>& names,
            const std::vector<Column>& columns, Unit unit);

  /// A grid of ratios; a negative one is empty. REQUIRES: `ratios` has rows *
  /// columns numbers.
  void HeatMap(std::string_view title, const std::vector<std::string>& rows,
               const std::vector<std::string>& columns, const std::vector<double>& ratios);

  /// The whole document.
  std::string Finish();

 private:
  std::string html_;
};

}  // namespace deltawire::metrics
