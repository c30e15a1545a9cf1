// A lookup of a host's addresses by name, with a deadline. getaddrinfo has none, so it runs on a
// thread of its own, which outlives the deadline if it must. A PullClient and that thread share
// ownership. Run is called once; Cancel from any thread. Errors name the host.
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

/// Returns the system resolver's answer, or kUnavailable when it knows no address.
StatusOr<std::vector<std::string>> AddressesOf(const std::string& host);

class HostLookup : public std::enable_shared_from_this<HostLookup> {
 public:
  explicit HostLookup(ResolveHost resolve) : resolve_(std::move(resolve)) {}

  /// Returns kDeadlineExceeded after `limit`, kCancelled after Cancel, else the resolver's answer.
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
