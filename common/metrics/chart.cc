#include "common/metrics/chart.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "common/base/human.h"
#include "common/metrics/page.h"

namespace deltawire::metrics {
namespace {

constexpr double kHeight = 160;    // of a plot, in pixels
constexpr size_t kMostLabels = 5;  // as many as fit into 400 pixels

/// A label on an axis; `at` is a fraction of its length.
struct Tick {
  double at = 0;
  std::string text;
};
struct Axis {
  std::string name;
  std::vector<Tick> ticks;
};

std::string Percent(double part) { return fmt::format("{:.2f}%", 100 * part); }

/// Returns the distance from the top of the plot to a point at fraction `part` of the axis.
double Down(double part, double height = kHeight) { return height * (1 - part); }

/// Returns the next of 1, 2, 5, 10, ..., times any power of ten, that is not below `least`.
double NiceStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= least * (1 - 1e-9)) return step * power;
  }
  return 10 * power;
}

std::string Key(const std::vector<std::string>& series) {
  std::string html = "<ul class=\"key\">";
  for (size_t i = 0; i < series.size(); ++i) {
    html += fmt::format("<li class=\"k{}\">{}</li>", i, EscapeHtml(series[i]));
  }
  return html + "</ul>";
}

/// Draws lines and texts of both axes. The y axis has its name above it, the x axis below it.
std::string Axes(const Axis& y, const Axis& x) {
  std::string svg = fmt::format("<text x=\"0\" y=\"-10\">{}</text>", EscapeHtml(y.name));
  for (const Tick& tick : y.ticks) {
    const double at = Down(tick.at);
    svg += fmt::format(
        "<line x2=\"100%\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>"
        "<text class=\"y\" x=\"-8\" y=\"{0:.1f}\" dy=\"4\">{1}</text>",
        at, EscapeHtml(tick.text));
  }
  for (const Tick& tick : x.ticks) {
    svg += fmt::format("<text class=\"x\" x=\"{}\" y=\"{}\">{}</text>", Percent(tick.at),
                       kHeight + 16, EscapeHtml(tick.text));
  }
  return svg + fmt::format("<text class=\"x\" x=\"50%\" y=\"{}\">{}</text>", kHeight + 34,
                           EscapeHtml(x.name));
}

std::string Figure(const std::string& title, const std::string& key, const std::string& svg,
                   std::string_view more_classes = "", double height = kHeight) {
  const std::string escaped = EscapeHtml(title);
  return fmt::format(
      "<figure><figcaption>{}</figcaption>{}<svg class=\"plot{}\" role=\"img\" aria-label=\"{}\" "
      "height=\"{}\">{}</svg></figure>\n",
      escaped, key, more_classes, escaped, height, svg);
}

/// Selects evenly spaced labels, as many as fit beside each other.
std::vector<Tick> LabelTicks(const std::vector<std::string>& labels, size_t slots) {
  const size_t every = (labels.size() + kMostLabels - 1) / kMostLabels;
  std::vector<Tick> ticks;
  for (size_t i = 0; i < labels.size(); i += every) {
    ticks.push_back({(static_cast<double>(i) + 0.5) / static_cast<double>(slots), labels[i]});
  }
  return ticks;
}

/// Returns at least 8, so that a few columns do not fill the whole width.
size_t Slots(const Columns& what) { return std::max<size_t>(what.columns.size(), 8); }

Axis VersionAxis(const Columns& what) {
  std::vector<std::string> labels;
  for (const Column& column : what.columns) labels.push_back(column.label);
  return {"version", LabelTicks(labels, Slots(what))};
}

/// Opens the group of column `c`, whose figures show over the whole height.
std::string OpenColumn(const Columns& what, size_t c, std::string (*text)(double)) {
  const Column& column = what.columns[c];
  std::string figures = column.name;
  for (size_t i = 0; i < what.series.size(); ++i) {
    figures += fmt::format("{} {} {}", i == 0 ? ":" : ",", what.series[i], text(column.values[i]));
  }
  const auto slots = static_cast<double>(Slots(what));
  return fmt::format(
      "<g><title>{}</title><rect class=\"hit\" x=\"{}\" width=\"{}\" height=\"{}\"/>",
      EscapeHtml(figures), Percent(static_cast<double>(c) / slots), Percent(1 / slots), kHeight);
}

std::string BytesText(double bytes) { return HumanBytes(static_cast<uint64_t>(bytes)); }

/// Returns "10 kB" for 4.
std::string PowerText(int exponent) {
  static constexpr std::array<const char*, 6> kPrefix = {"", "k", "M", "G", "T", "P"};
  const auto prefix = std::min<size_t>(static_cast<size_t>(exponent) / 3, kPrefix.size() - 1);
  return fmt::format("{:g} {}B", std::pow(10, exponent - 3 * static_cast<int>(prefix)),
                     kPrefix[prefix]);
}

/// A span of time, and the positions of times of day on it.
struct Clock {
  double first = 0, last = 1;  // seconds since 1970

  double At(int64_t unix_nanos) const {
    return (static_cast<double>(unix_nanos) * 1e-9 - first) / (last - first);
  }
  std::vector<Tick> Ticks() const;
};

std::vector<Tick> Clock::Ticks() const {
  constexpr double kMinute = 60, kHour = 3600, kDay = 86400;
  constexpr std::array<double, 17> kEvery = {
      1,       2,           5,           10,           20,           30,
      kMinute, 2 * kMinute, 5 * kMinute, 10 * kMinute, 20 * kMinute, 30 * kMinute,
      kHour,   2 * kHour,   6 * kHour,   12 * kHour,   kDay};
  const double least = (last - first) / static_cast<double>(kMostLabels);
  const auto found =
      std::find_if(kEvery.begin(), kEvery.end(), [&](double e) { return e >= least; });
  const double every = found != kEvery.end() ? *found : kDay * NiceStep(least / kDay);
  const char* const format = every < kMinute ? "%H:%M:%S" : every < kDay ? "%H:%M" : "%b %d";
  std::vector<Tick> ticks;
  for (double at = std::ceil(first / every) * every; at <= last; at += every) {
    const auto seconds = static_cast<time_t>(at);
    tm utc{};
    char text[16];
    std::strftime(text, sizeof text, format, gmtime_r(&seconds, &utc));
    ticks.push_back({(at - first) / (last - first), text});
  }
  return ticks;
}

/// Draws the lines of one series: level from each step to the next, with a dot at each.
std::string Stairs(const Steps& what, size_t series, const Clock& clock, double low, double high) {
  const std::vector<Step>& steps = what.steps[series];
  std::string svg;
  const auto y = [&](const Step& s) {
    return Down((static_cast<double>(s.value) - low) / (high - low));
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string x = Percent(clock.At(steps[i].unix_nanos));
    if (i > 0) {
      svg += fmt::format(
          "<line class=\"k{0}\" x1=\"{1}\" x2=\"{2}\" y1=\"{3:.1f}\" y2=\"{3:.1f}\"/>"
          "<line class=\"k{0}\" x1=\"{2}\" x2=\"{2}\" y1=\"{3:.1f}\" y2=\"{4:.1f}\"/>",
          series, Percent(clock.At(steps[i - 1].unix_nanos)), x, y(steps[i - 1]), y(steps[i]));
    }
    svg += fmt::format(
        "<circle class=\"k{}\" cx=\"{}\" cy=\"{:.1f}\" r=\"3\"><title>{}</title></circle>", series,
        x, y(steps[i]), EscapeHtml(steps[i].name));
  }
  return svg;
}

}  // namespace

std::string SecondsChart(const Columns& what) {
  double most = 0;
  for (const Column& column : what.columns) {
    double sum = 0;
    for (const double value : column.values) sum += value;
    most = std::max(most, sum);
  }
  if (most <= 0) return "";
  const double step = NiceStep(most / 5);
  const int steps = static_cast<int>(std::ceil(most / step - 1e-9));
  const double top = step * steps;
  Axis y{"time", {}};
  for (int i = 0; i <= steps; ++i) {
    y.ticks.push_back({static_cast<double>(i) / steps, top < 1
                                                           ? fmt::format("{:g} ms", 1e3 * step * i)
                                                           : fmt::format("{:g} s", step * i)});
  }
  std::string svg = Axes(y, VersionAxis(what));
  const auto slots = static_cast<double>(Slots(what));
  for (size_t c = 0; c < what.columns.size(); ++c) {
    svg += OpenColumn(what, c, HumanSeconds);
    double below = 0;
    for (size_t i = 0; i < what.series.size(); ++i) {
      const double value = what.columns[c].values[i];
      if (value <= 0) continue;
      below += value;
      svg +=
          fmt::format("<rect class=\"k{}\" x=\"{}\" y=\"{:.2f}\" width=\"{}\" height=\"{:.2f}\"/>",
                      i, Percent((static_cast<double>(c) + 0.1) / slots), Down(below / top),
                      Percent(0.8 / slots), kHeight * value / top);
    }
    svg += "</g>";
  }
  return Figure(what.title, Key(what.series), svg);
}

std::string BytesChart(const Columns& what) {
  double least = 0, most = 0;
  for (const Column& column : what.columns) {
    for (const double value : column.values) {
      if (value > 0) least = least > 0 ? std::min(least, value) : value;
      most = std::max(most, value);
    }
  }
  if (most <= 0) return "";
  const int low = static_cast<int>(std::floor(std::log10(least)));
  const int high = std::max(low + 1, static_cast<int>(std::ceil(std::log10(most))));
  const int every = (high - low + 3) / 4;
  Axis y{"bytes, logarithmic", {}};
  for (int power = low; power <= high; power += every) {
    y.ticks.push_back({static_cast<double>(power - low) / (high - low), PowerText(power)});
  }
  std::string svg = Axes(y, VersionAxis(what));
  const auto slots = static_cast<double>(Slots(what));
  for (size_t c = 0; c < what.columns.size(); ++c) {
    svg += OpenColumn(what, c, BytesText);
    for (size_t i = what.series.size(); i-- > 0;) {  // draws the first one on top
      const double value = what.columns[c].values[i];
      if (value <= 0) continue;
      svg += fmt::format("<rect class=\"k{}\" x=\"{}\" y=\"{:.2f}\" width=\"{}\" height=\"3\"/>", i,
                         Percent(static_cast<double>(c) / slots),
                         Down((std::log10(value) - low) / (high - low)) - 1.5, Percent(1 / slots));
    }
    svg += "</g>";
  }
  return Figure(what.title, Key(what.series), svg);
}

std::string StepsChart(const Steps& what) {
  std::vector<Step> all;
  for (const auto& series : what.steps) all.insert(all.end(), series.begin(), series.end());
  if (all.empty()) return "";
  const auto times = std::minmax_element(all.begin(), all.end(), [](const Step& a, const Step& b) {
    return a.unix_nanos < b.unix_nanos;
  });
  const auto values = std::minmax_element(
      all.begin(), all.end(), [](const Step& a, const Step& b) { return a.value < b.value; });
  Clock clock{static_cast<double>(times.first->unix_nanos) * 1e-9,
              static_cast<double>(times.second->unix_nanos) * 1e-9};
  // A single instant gets a second around it, and a single value some range.
  const double missing = std::max(0.0, 1 - (clock.last - clock.first));
  clock.first -= missing / 2;
  clock.last += missing / 2;
  const auto least = static_cast<double>(values.first->value);
  const auto most = static_cast<double>(values.second->value);
  const double step = std::max(1.0, NiceStep(std::max(1.0, most - least) / 4));
  const double low = std::floor(least / step) * step;
  const double high = std::max(low + step, std::ceil(most / step) * step);
  Axis y{what.axis, {}};
  for (double value = low; value <= high; value += step) {
    y.ticks.push_back({(value - low) / (high - low), fmt::format("{:.0f}", value)});
  }
  std::string svg = Axes(y, {"time of day, UTC", clock.Ticks()});
  for (size_t i = 0; i < what.steps.size(); ++i) svg += Stairs(what, i, clock, low, high);
  return Figure(what.title, Key(what.series), svg);
}

std::string HeatChart(const Heat& what) {
  constexpr double kRow = 14;
  constexpr size_t kMostLetters = 26;  // that fit beside the rows
  double most = 0;
  bool any = false;
  for (const double ratio : what.ratios) {
    any = any || ratio >= 0;
    most = std::max(most, ratio);
  }
  if (!any) return "";
  const double height = kRow * static_cast<double>(what.rows.size());
  const auto width = static_cast<double>(what.columns.size());
  // A ratio of 0 stays faintly visible.
  const auto opacity = [&](double ratio) { return 0.07 + 0.93 * (most > 0 ? ratio / most : 0); };
  std::string svg;
  for (size_t r = 0; r < what.rows.size(); ++r) {
    const std::string& row = what.rows[r];
    const double y = kRow * static_cast<double>(r);
    const bool cut = row.size() > kMostLetters;
    svg += fmt::format("<text class=\"y\" x=\"-8\" y=\"{:g}\">{}<title>{}</title></text>", y + 11,
                       EscapeHtml(cut ? "…" + row.substr(row.size() - kMostLetters) : row),
                       EscapeHtml(row));
    for (size_t c = 0; c < what.columns.size(); ++c) {
      const double ratio = what.ratios[r * what.columns.size() + c];
      if (ratio < 0) continue;
      svg += fmt::format(
          "<rect class=\"cell\" x=\"{}\" y=\"{:g}\" width=\"{}\" height=\"{:g}\" "
          "fill-opacity=\"{:.2f}\"><title>{}</title></rect>",
          Percent(static_cast<double>(c) / width), y, Percent(0.94 / width), kRow - 1,
          opacity(ratio),
          EscapeHtml(fmt::format("{}, {}: {:.3f} %", what.columns[c], row, 100 * ratio)));
    }
  }
  for (const Tick& tick : LabelTicks(what.columns, what.columns.size())) {
    svg += fmt::format("<text class=\"x\" x=\"{}\" y=\"{:g}\">{}</text>", Percent(tick.at),
                       height + 14, EscapeHtml(tick.text));
  }
  svg += fmt::format("<text class=\"x\" x=\"50%\" y=\"{:g}\">{}</text>", height + 32,
                     EscapeHtml(what.axis));
  std::string ramp = "<div class=\"key\"><span>0 %<svg class=\"ramp\" width=\"100\" height=\"10\">";
  for (int i = 0; i < 5; ++i) {
    ramp += fmt::format("<rect x=\"{}\" width=\"20\" height=\"10\" fill-opacity=\"{:.2f}\"/>",
                        20 * i, opacity(most * i / 4));
  }
  ramp += fmt::format("</svg>{:.2f} %</span></div>", 100 * most);
  return Figure(what.title, ramp, svg, " heat", height);
}

}  // namespace deltawire::metrics
