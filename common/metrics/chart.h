// Charts for a Page, each a <figure> with an SVG that the server draws: axes with units, a legend,
// and the figures of each mark on hover. Widths are parts of the page's, but heights and letters
// are pixels, so that a narrow window can read them. A mark takes about 150 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::metrics {

/// The number of different series colors.
inline constexpr size_t kMostSeries = 6;

/// A version as a column, with a value for each series.
struct Column {
  std::string label;  ///< below the axis, so short
  std::string name;
  std::vector<double> values;
};
struct Columns {
  std::string title;
  std::vector<std::string> series;  ///< at most kMostSeries
  std::vector<Column> columns;      ///< oldest first, each with a value per series
};
/// Draws seconds, each column a stack of its values. Returns "" if all are 0.
std::string SecondsChart(const Columns& what);
/// Draws bytes, each value a line at its height on a logarithmic scale, since a delta and a whole
/// model are far apart. Returns "" if all are 0.
std::string BytesChart(const Columns& what);

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
/// Draws a number over time (UTC). Returns "" if there are no steps.
std::string StepsChart(const Steps& what);

struct Heat {
  std::string title, axis;
  std::vector<std::string> rows, columns;
  std::vector<double> ratios;  ///< row by row; negative: no ratio
};
/// Returns "" if there is no ratio.
std::string HeatChart(const Heat& what);

}  // namespace deltawire::metrics
