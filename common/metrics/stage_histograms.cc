#include "common/metrics/stage_histograms.h"

#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace deltawire::metrics {
namespace {

// Two buckets per power of ten. A stage of a small model takes less than the first, one of a model
// of a terabyte over a slow link more than the last.
const prometheus::Histogram::BucketBoundaries kSeconds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                                          1,     3,     10,   30,   100};

}  // namespace

struct StageHistograms::Impl {
  explicit Impl(const std::string& daemon)
      : of_versions(prometheus::BuildHistogram()
                        .Name("deltawire_" + daemon + "_stage_seconds")
                        .Help("Time that each stage of a version took (docs/operations.md)")
                        .Register(registry)),
        of_engines(prometheus::BuildHistogram()
                       .Name("deltawire_" + daemon + "_engine_stage_seconds")
                       .Help("Time that each stage of an engine's update took")
                       .Register(registry)) {}

  prometheus::Registry registry;
  prometheus::Family<prometheus::Histogram>& of_versions;
  prometheus::Family<prometheus::Histogram>& of_engines;
};

StageHistograms::StageHistograms(const std::string& daemon)
    : impl_(std::make_unique<Impl>(daemon)) {}

StageHistograms::~StageHistograms() = default;

void StageHistograms::Observe(const StageEnd& end) {
  prometheus::Labels labels = {{"model", std::string(end.model)},
                               {"stage", std::string(ToString(end.stage))}};
  const bool engine = !end.engine.empty();
  if (engine) {
    labels.emplace("engine", end.engine);
    labels.emplace("kind", end.kind);
  }
  (engine ? impl_->of_engines : impl_->of_versions).Add(labels, kSeconds).Observe(end.seconds);
}

std::vector<prometheus::MetricFamily> StageHistograms::Collect() const {
  return impl_->registry.Collect();
}

StageObserver ObserverOf(std::shared_ptr<StageHistograms> histograms) {
  return [histograms = std::move(histograms)](const StageEnd& end) { histograms->Observe(end); };
}

}  // namespace deltawire::metrics
