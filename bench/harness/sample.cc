#include "bench/harness/sample.h"

#include <algorithm>

namespace deltawire::bench {

Sample Summarize(std::vector<double> runs) {
  std::vector<double> sorted = runs;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  Sample out;
  out.median = sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  out.min = sorted.front();
  out.max = sorted.back();
  out.runs = std::move(runs);
  return out;
}

Sample Rate(const Sample& seconds, double factor) {
  std::vector<double> rates;
  for (const double s : seconds.runs) rates.push_back(factor / s);
  return Summarize(std::move(rates));
}

StatusOr<Series> Measure(const Rounds& rounds, const std::function<Status(Series&)>& round) {
  Series kept;
  for (size_t i = 0; i < rounds.total(); ++i) {
    Series dropped;
    DW_RETURN_IF_ERROR(round(i < rounds.warmups ? dropped : kept));
  }
  return kept;
}

}  // namespace deltawire::bench
