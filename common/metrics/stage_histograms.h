// How long each stage of a version took, as Prometheus's histograms: one family by model and stage,
// and one by engine. They count what ends, when it ends; a scrape only reads them.
// Owner: main, and the metrics server. Threads: any. Cost: 14 series for each stage of a model or
// engine that has ended once. Errors: none.
#pragma once

#include <memory>
#include <string>

#include "common/base/stages.h"

namespace prometheus {
struct MetricFamily;
}

namespace deltawire::metrics {

class StageHistograms {
 public:
  /// `daemon` is part of the names: deltawire_DAEMON_stage_seconds.
  explicit StageHistograms(const std::string& daemon);
  ~StageHistograms();

  void Observe(const StageEnd& end);
  std::vector<prometheus::MetricFamily> Collect() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

/// Tells `histograms`, which it keeps alive.
StageObserver ObserverOf(std::shared_ptr<StageHistograms> histograms);

}  // namespace deltawire::metrics
