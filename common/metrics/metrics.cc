#include "common/metrics/metrics.h"

#include <CivetServer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "common/base/log.h"
#include "common/base/sync.h"
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

/// Answers GET of one path with what `make` returns.
class Resource : public CivetHandler {
 public:
  Resource(std::string path, std::string headers, std::function<std::string()> make)
      : path_(std::move(path)), headers_(std::move(headers)), make_(std::move(make)) {}

  using CivetHandler::handleGet;
  bool handleGet(CivetServer*, mg_connection* connection) override {
    // A handler is asked for all paths below its own, too.
    if (mg_get_request_info(connection)->local_uri != path_) return false;
    std::string body;
    try {  // no exception may pass through the library, which is in C
      body = make_();
    } catch (const std::exception& e) {
      LogError("metrics: {}: {}", path_, e.what());
      mg_send_http_error(connection, 500, "%s", "");
      return true;
    }
    const std::string head = fmt::format(
        "HTTP/1.1 200 OK\r\n{}Content-Length: {}\r\nConnection: close\r\n"
        "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n\r\n",
        headers_, body.size());
    mg_write(connection, head.data(), head.size());
    mg_write(connection, body.data(), body.size());
    return true;
  }

 private:
  const std::string path_, headers_;
  const std::function<std::string()> make_;
};

/// Makes a page anew after a second at the earliest: who asks all the time costs the daemon little.
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
/// The page's heads. No browser runs what a name may have brought into it, even unescaped.
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
  std::unique_ptr<Resource> metrics, page;
  std::unique_ptr<CivetServer> server;  // ends before what it calls
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& address, Shown shown) {
  auto impl = std::make_unique<Impl>();
  impl->shown = std::move(shown);
  const Shown& what = impl->shown;
  impl->metrics =
      std::make_unique<Resource>("/metrics", kMetricsHeaders, [&what] { return Exposition(what); });
  if (what.page) {
    impl->remembered = std::make_unique<Remembered>(what.page);
    impl->page = std::make_unique<Resource>("/", PageHeaders(),
                                            [&page = *impl->remembered] { return page(); });
  }
  // A browser opens connections ahead of its requests, and each takes a thread until it says
  // something or its time is up. Four threads: that does not hold up a scrape.
  const std::vector<std::string> options = {"listening_ports",    address, "num_threads", "4",
                                            "request_timeout_ms", "5000"};
  // The library throws when it cannot listen.
  try {
    impl->server = std::make_unique<CivetServer>(options);
  } catch (const std::exception& e) {
    return Errorf(StatusCode::kAlreadyExists,
                  "listening on {} for metrics failed: the address is taken or not this machine's "
                  "({})",
                  address, e.what());
  }
  impl->server->addHandler("/metrics", *impl->metrics);
  if (impl->page != nullptr) impl->server->addHandler("/", *impl->page);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace deltawire::metrics
