// Prometheus exposition of a daemon: GET /metrics on its own port, off unless asked for.
// Each scrape reads the daemon's own counters, so metrics keep no second copy of a value.
// Owner: main; the data that the callback reads must outlive the Server.
// Threads: the server's own thread calls the callback.
// Errors: kAlreadyExists when the address is taken or not this machine's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace deltawire::metrics {

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
