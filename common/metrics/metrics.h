// A daemon's metrics and status page: GET /metrics and GET / on a port of their own, off by
// default. Each scrape reads the daemon's own counters, so metrics keep no second copy of a value,
// except in histograms (stage_histograms.h). The data that the callbacks read must outlive the
// Server, whose threads call them. http_port.h describes threads and errors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace deltawire::metrics {

class StageHistograms;

enum class Kind : uint8_t { kCounter, kGauge };

/// One value. REQUIRES: samples of one name are adjacent and agree in help and kind.
struct Sample {
  std::string name;  ///< e.g. "deltawire_sender_published_total"
  std::string help;
  Kind kind = Kind::kGauge;
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
};

using Collect = std::function<std::vector<Sample>()>;

/// A daemon's own metrics and page. Those of its process are added.
struct Shown {
  Collect collect;
  std::shared_ptr<const StageHistograms> stages;  ///< null: none
  /// Makes the HTML document at "/" (page.h), at most once a second; null: no page.
  std::function<std::string()> page = {};
};

class Server {
 public:
  static StatusOr<std::unique_ptr<Server>> Start(const std::string& address, Shown shown);
  ~Server();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::metrics
