// Measured values and the rounds that gather them: warm-ups first, then interleaved runs.
// Plain values, one thread. A round measures every side once (A, B, A, B ...), so that what
// disturbs a machine for a while disturbs all sides of a comparison alike.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire::bench {

struct Sample {
  double median = 0;
  double min = 0;
  double max = 0;
  std::vector<double> runs;  ///< as they came
};

/// REQUIRES: at least one run.
Sample Summarize(std::vector<double> runs);

/// 1 / x of every run times `factor`: seconds to rates.
Sample Rate(const Sample& seconds, double factor);

/// Named columns of numbers, one value per round.
class Series {
 public:
  void Add(std::string_view name, double value) { values_[std::string(name)].push_back(value); }
  bool Has(std::string_view name) const { return values_.count(std::string(name)) != 0; }
  /// REQUIRES: Has(name).
  Sample Of(std::string_view name) const { return Summarize(values_.at(std::string(name))); }

 private:
  std::map<std::string, std::vector<double>> values_;
};

struct Rounds {
  size_t warmups = 1;
  size_t runs = 5;
  size_t total() const { return warmups + runs; }
};

/// Calls `round` for each warm-up (its values are dropped) and each run. Ends at the first error.
StatusOr<Series> Measure(const Rounds& rounds, const std::function<Status(Series&)>& round);

}  // namespace deltawire::bench
