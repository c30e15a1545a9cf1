// Charts for a Page, each a <figure> with an SVG that the server draws: axes with units, a legend,
// and the figures of each mark where the pointer rests. Widths are parts of the page's, heights and
// letters are pixels, so that a narrow window can read them, too.
// Stateless. Threads: any. Cost: the text, about 150 bytes a mark. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::metrics {

/// Series have one of so many colours.
inline constexpr size_t kMostSeries = 6;

/// A version as a column, with a value for each series.
struct Column {
  std::string label;  ///< below the axis: short
  std::string name;
  std::vector<double> values;
};
struct Columns {
  std::string title;
  std::vector<std::string> series;  ///< at most kMostSeries
  std::vector<Column> columns;      ///< the oldest first, each with a value per series
};
/// Seconds, each column a stack of its values from the bottom up. "": all are 0.
std::string SecondsChart(const Columns& what);
/// Bytes, each value a line at its height on a logarithmic scale, since a delta and a whole model
/// are far apart. "": all are 0.
std::string BytesChart(const Columns& what);

/// A number's value from an instant on.
struct Step {
  int64_t unix_nanos = 0;
  uint64_t value = 0;
  std::string name;
};
struct Steps {
  std::string title, axis;
  std::vector<std::string> series;       ///< at most kMostSeries
  std::vector<std::vector<Step>> steps;  ///< of each series, in the order of time
};
/// A number over time (UTC). "": there are no steps.
std::string StepsChart(const Steps& what);

/// Ratios as colours.
struct Heat {
  std::string title, axis;
  std::vector<std::string> rows, columns;
  std::vector<double> ratios;  ///< row by row; negative: there is none
};
/// "": there is no ratio.
std::string HeatChart(const Heat& what);

}  // namespace deltawire::metrics
