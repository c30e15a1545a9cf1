#include "common/metrics/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "common/base/log.h"
#include "common/base/sync.h"
#include "common/metrics/http_port.h"
#include "common/metrics/page.h"
#include "common/metrics/process.h"
#include "common/metrics/stage_histograms.h"

namespace deltawire::metrics {
namespace {

void AddFamilies(std::vector<Sample> samples, std::vector<prometheus::MetricFamily>& families) {
  for (Sample& s : samples) {
    if (families.empty() || families.back().name != s.name) {
      prometheus::MetricFamily family;
      family.name = s.name;
      family.help = s.help;
      family.type = s.kind == Kind::kCounter ? prometheus::MetricType::Counter
                                             : prometheus::MetricType::Gauge;
      families.push_back(std::move(family));
    }
    prometheus::ClientMetric metric;
    for (auto& [name, value] : s.labels) metric.label.push_back({name, std::move(value)});
    if (s.kind == Kind::kCounter) {
      metric.counter.value = s.value;
    } else {
      metric.gauge.value = s.value;
    }
    families.back().metric.push_back(std::move(metric));
  }
}

std::string Exposition(const Shown& shown) {
  std::vector<prometheus::MetricFamily> families;
  AddFamilies(shown.collect(), families);
  if (shown.stages != nullptr) {
    for (auto& family : shown.stages->Collect()) families.push_back(std::move(family));
  }
  AddFamilies(ProcessSamples(), families);
  return prometheus::TextSerializer().Serialize(families);
}

/// Caches a page for a second, so that frequent requests cost the daemon little.
class Remembered {
 public:
  explicit Remembered(std::function<std::string()> make) : make_(std::move(make)) {}

  std::string operator()() {
    std::lock_guard lock(mu_);
    const auto now = SteadyClock::now();
    if (page_.empty() || now - made_ >= std::chrono::seconds(1)) {
      page_ = make_();
      made_ = now;
    }
    return page_;
  }

 private:
  const std::function<std::string()> make_;
  Mutex mu_;
  std::string page_;
  SteadyClock::time_point made_;
};

constexpr const char* kMetricsHeaders =
    "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
/// Returns the page's headers. With them no browser runs a script, even if a name injects one
/// unescaped.
std::string PageHeaders() {
  return fmt::format(
      "Content-Type: text/html; charset=utf-8\r\nContent-Security-Policy: {}\r\n"
      "Referrer-Policy: no-referrer\r\n",
      kPagePolicy);
}

}  // namespace

struct Server::Impl {
  Shown shown;
  std::unique_ptr<Remembered> remembered;
  std::unique_ptr<HttpPort> port;  // destroyed before the data that it uses
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& address, Shown shown) {
  auto impl = std::make_unique<Impl>();
  impl->shown = std::move(shown);
  const Shown& what = impl->shown;
  std::vector<HttpPort::Resource> resources = {
      {"/metrics", kMetricsHeaders, [&what] { return Exposition(what); }}};
  if (what.page) {
    impl->remembered = std::make_unique<Remembered>(what.page);
    resources.push_back({"/", PageHeaders(), [&page = *impl->remembered] { return page(); }});
  }
  DW_ASSIGN_OR_RETURN(impl->port, HttpPort::Listen(address, std::move(resources)));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace deltawire::metrics
