#include "common/metrics/metrics.h"

#include <CivetServer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "common/base/log.h"
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

constexpr const char* kMetricsHeaders =
    "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
// The page has no scripts and loads nothing. Should a name ever get into it unescaped, then no
// browser runs it either.
constexpr const char* kPageHeaders =
    "Content-Type: text/html; charset=utf-8\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "Referrer-Policy: no-referrer\r\n";

}  // namespace

struct Server::Impl {
  Shown shown;
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
  if (what.page) impl->page = std::make_unique<Resource>("/", kPageHeaders, what.page);
  // Two threads: who looks at the page, or connects and says nothing, does not hold up a scrape.
  const std::vector<std::string> options = {"listening_ports",    address, "num_threads", "2",
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
