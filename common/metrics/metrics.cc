#include "common/metrics/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

namespace deltawire::metrics {
namespace {

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(metrics::Collect collect) : collect_(std::move(collect)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    for (const Sample& s : collect_()) {
      if (families.empty() || families.back().name != s.name) {
        prometheus::MetricFamily family;
        family.name = s.name;
        family.help = s.help;
        family.type = s.kind == Kind::kCounter ? prometheus::MetricType::Counter
                                               : prometheus::MetricType::Gauge;
        families.push_back(std::move(family));
      }
      prometheus::ClientMetric metric;
      for (const auto& [name, value] : s.labels) metric.label.push_back({name, value});
      if (s.kind == Kind::kCounter) {
        metric.counter.value = s.value;
      } else {
        metric.gauge.value = s.value;
      }
      families.back().metric.push_back(std::move(metric));
    }
    return families;
  }

 private:
  const metrics::Collect collect_;
};

}  // namespace

struct Server::Impl {
  std::shared_ptr<Collector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& address, Collect collect) {
  auto impl = std::make_unique<Impl>();
  impl->collector = std::make_shared<Collector>(std::move(collect));
  // The library throws when it cannot listen.
  try {
    impl->exposer = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception& e) {
    return Errorf(StatusCode::kAlreadyExists,
                  "listening on {} for metrics failed: the address is taken or not this machine's "
                  "({})",
                  address, e.what());
  }
  impl->exposer->RegisterCollectable(impl->collector);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace deltawire::metrics
