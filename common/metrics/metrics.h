// Prometheus exposition of a daemon: GET /metrics on its own port, off unless asked for.
// Values are taken from the daemon's own counters when scraped, so there is one truth.
// Owner: main; what the callback reads outlives it. Threads: the callback comes from the server's.
// Errors: kAlreadyExists when the address is taken.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace deltawire::metrics {

enum class Kind : uint8_t { kCounter, kGauge };

/// One value. Samples of one name stand next to each other and agree in help and kind.
struct Sample {
  std::string name;  ///< e.g. "deltawire_sender_published_total"
  std::string help;
  Kind kind = Kind::kGauge;
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
};

using Collect = std::function<std::vector<Sample>()>;

class Server {
 public:
  /// `address` is "host:port".
  static StatusOr<std::unique_ptr<Server>> Start(const std::string& address, Collect collect);
  ~Server();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::metrics
