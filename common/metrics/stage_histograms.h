// The durations of a version's stages as Prometheus histograms: one family by model and stage, and
// one by engine. They count a stage when it ends; a scrape only reads them. Thread-safe. Each stage
// of a model or engine has 14 series once it has occurred.
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

/// Returns an observer that adds to `histograms` and keeps it alive.
StageObserver ObserverOf(std::shared_ptr<StageHistograms> histograms);

}  // namespace deltawire::metrics
