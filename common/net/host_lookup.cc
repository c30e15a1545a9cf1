#include "common/net/host_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include <system_error>
#include <thread>

namespace deltawire::net {

StatusOr<std::vector<std::string>> AddressesOf(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  std::vector<std::string> addresses;
  for (const addrinfo* a = found; rc == 0 && a != nullptr; a = a->ai_next) {
    char text[NI_MAXHOST];
    rc = ::getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    if (rc == 0) addresses.emplace_back(text);
  }
  if (found != nullptr) ::freeaddrinfo(found);
  if (rc == 0) return addresses;
  return Errorf(StatusCode::kUnavailable, "resolving the host {}: {}", host, ::gai_strerror(rc));
}

StatusOr<std::vector<std::string>> HostLookup::Run(const std::string& host,
                                                   std::chrono::milliseconds limit) {
  try {
    std::thread([self = shared_from_this(), host] {
      StatusOr<std::vector<std::string>> found =
          absl::InternalError("the resolver threw an exception");
      try {
        found = self->resolve_(host);
      } catch (...) {  // `found` keeps its initial error
      }
      std::lock_guard lock(self->mu_);
      self->found_ = std::move(found);
      self->cv_.notify_all();
    }).detach();
  } catch (const std::system_error& e) {
    return Errorf(StatusCode::kResourceExhausted, "resolving the host {}: {}", host, e.what());
  }
  std::unique_lock lock(mu_);
  const bool over = cv_.wait_for(lock, limit, [this] { return cancelled_ || found_.has_value(); });
  if (cancelled_) return absl::CancelledError("the lookup was cancelled");
  if (over) return *found_;
  return Errorf(StatusCode::kDeadlineExceeded,
                "resolving the host {}: no answer within {} ms; look at this machine's name "
                "servers, or name the sender by its address",
                host, limit.count());
}

void HostLookup::Cancel() {
  std::lock_guard lock(mu_);
  cancelled_ = true;
  cv_.notify_all();
}

}  // namespace deltawire::net
