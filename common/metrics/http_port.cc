#include "common/metrics/http_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "common/base/log.h"

namespace deltawire::metrics {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr size_t kMostOfRequest = size_t{8} << 10;
constexpr std::string_view kEnd = "\r\n\r\n";

std::optional<std::string> AddressOf(int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return std::nullopt;
  char text[INET6_ADDRSTRLEN] = {};
  const bool v6 = at.ss_family == AF_INET6;
  const void* const address =
      v6 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(at).sin6_addr)
         : &reinterpret_cast<const sockaddr_in&>(at).sin_addr;
  inet_ntop(at.ss_family, address, text, sizeof text);
  return text;
}

/// Returns false if `events` did not come until then.
bool Await(int fd, short events, SteadyClock::time_point until) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - SteadyClock::now()).count();
    if (left <= 0) return false;
    pollfd waited{fd, events, 0};
    const int ready = poll(&waited, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

/// Reads the request with its headers; empty: it did not arrive whole.
std::string Read(int fd) {
  const auto until = SteadyClock::now() + kPatience;
  std::string request;
  char piece[2048];
  while (request.find(kEnd) == std::string::npos) {
    if (request.size() > kMostOfRequest || !Await(fd, POLLIN, until)) return "";
    const ssize_t n = recv(fd, piece, sizeof piece, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return "";
    request.append(piece, static_cast<size_t>(n));
  }
  return request;
}

void Write(int fd, std::string_view answer) {
  while (!answer.empty()) {
    if (!Await(fd, POLLOUT, SteadyClock::now() + kPatience)) return;
    const ssize_t n = send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return;
    answer.remove_prefix(static_cast<size_t>(n));
  }
}

std::string Answer(std::string_view status, std::string_view headers, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\n{}Content-Length: {}\r\nConnection: close\r\n"
      "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n\r\n{}",
      status, headers, body.size(), body);
}

}  // namespace

StatusOr<std::unique_ptr<HttpPort>> HttpPort::Listen(const std::string& address,
                                                     std::vector<Resource> resources) {
  const size_t colon = address.rfind(':');
  const std::string digits = colon == std::string::npos ? "" : address.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (ec != std::errc() || end != digits.data() + digits.size()) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not HOST:PORT for metrics", address);
  }
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  auto listener = ListenTcp(host.empty() ? "127.0.0.1" : host, port);
  if (!listener.ok()) return Annotate(listener.status(), "metrics");
  std::unique_ptr<HttpPort> made(new HttpPort(std::move(resources)));
  made->acceptor_ =
      std::make_unique<Acceptor>(*std::move(listener), fmt::format("metrics port {}", port),
                                 Acceptor::kReserve, [raw = made.get()](int fd) {
                                   try {
                                     raw->Take(fd);
                                   } catch (const std::exception& e) {
                                     LogError("metrics: a connection: {}", e.what());
                                   }
                                 });
  return made;
}

HttpPort::~HttpPort() {
  if (acceptor_ != nullptr) acceptor_->Stop();
  std::unique_lock lock(mu_);
  for (const auto& [fd, address] : connections_) shutdown(fd, SHUT_RDWR);
  cv_.wait(lock, [this] { return connections_.empty(); });
}

void HttpPort::Take(int fd) {
  UniqueFd owner(fd);
  const auto address = AddressOf(fd);
  if (!address) return;  // the peer has gone
  {
    std::lock_guard lock(mu_);
    const auto same =
        std::ranges::count(connections_, *address, &std::map<int, std::string>::value_type::second);
    if (connections_.size() >= kMost || static_cast<size_t>(same) >= kMostOfAddress) return;
    connections_[fd] = *address;
  }
  absl::Cleanup forget = [this, fd] {
    std::lock_guard lock(mu_);
    connections_.erase(fd);
    cv_.notify_all();  // under the lock: a waiting thread may destroy this
  };
  std::thread([this, fd] {
    const absl::Cleanup ended = [this, fd] {
      std::lock_guard lock(mu_);
      connections_.erase(fd);  // before the number can be another connection's
      close(fd);
      cv_.notify_all();
    };
    try {
      Serve(fd);
    } catch (const std::exception& e) {
      LogError("metrics: {}", e.what());
    }
  }).detach();
  std::move(forget).Cancel();
  owner.Release();
}

void HttpPort::Serve(int fd) const {
  const std::string request = Read(fd);
  if (request.empty()) return;
  Write(fd, AnswerTo(request));
  shutdown(fd, SHUT_WR);
}

std::string HttpPort::AnswerTo(std::string_view request) const {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t blank = line.find(' '), last = line.rfind(' ');
  if (blank == std::string_view::npos || last == blank ||
      !line.substr(last).starts_with(" HTTP/1")) {
    return Answer("400 Bad Request", "", "");
  }
  if (line.substr(0, blank) != "GET") return Answer("405 Method Not Allowed", "Allow: GET\r\n", "");
  std::string_view path = line.substr(blank + 1, last - blank - 1);
  path = path.substr(0, path.find('?'));
  const auto resource = std::ranges::find(resources_, path, &Resource::path);
  if (resource == resources_.end()) return Answer("404 Not Found", "", "");
  try {
    return Answer("200 OK", resource->headers, resource->make());
  } catch (const std::exception& e) {
    LogError("metrics: {}: {}", path, e.what());
    return Answer("500 Internal Server Error", "", "");
  }
}

}  // namespace deltawire::metrics
