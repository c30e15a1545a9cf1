// Finds a host's addresses by its name, with a deadline. getaddrinfo has none, so it runs on a
// thread of its own; after the deadline nobody waits for that thread, and it ends by itself.
// Owner: a PullClient, and that thread until getaddrinfo returns, both by shared_ptr.
// Threads: Run once; Cancel from any. Cost: a thread. Errors name the host.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace deltawire::net {

/// Returns the numeric addresses of `host`, in the order in which to try them. Blocks.
using ResolveHost = std::function<StatusOr<std::vector<std::string>>(const std::string& host)>;

/// What the system's resolver says. kUnavailable when it knows no address.
StatusOr<std::vector<std::string>> AddressesOf(const std::string& host);

class HostLookup : public std::enable_shared_from_this<HostLookup> {
 public:
  explicit HostLookup(ResolveHost resolve) : resolve_(std::move(resolve)) {}

  /// kDeadlineExceeded after `limit`, kCancelled after Cancel, else what the resolver says.
  /// REQUIRES: owned by a shared_ptr.
  StatusOr<std::vector<std::string>> Run(const std::string& host, std::chrono::milliseconds limit);
  void Cancel();

 private:
  const ResolveHost resolve_;
  std::mutex mu_;
  std::condition_variable cv_;
  bool cancelled_ = false;
  std::optional<StatusOr<std::vector<std::string>>> found_;
};

}  // namespace deltawire::net
