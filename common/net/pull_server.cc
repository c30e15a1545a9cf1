#include "common/net/pull_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/base/acceptor.h"
#include "common/base/log.h"
#include "common/net/server_stream.h"

namespace deltawire::net {

namespace {
/// The limit of rejected connections that stay open until their Error frame is sent.
constexpr size_t kMostRefused = 256;
}  // namespace

struct PullServer::Impl : std::enable_shared_from_this<PullServer::Impl> {
  Impl(IoThreads& io_threads, PullSource& pull_source, const Options& opts)
      : io(io_threads.impl().context),
        source(pull_source),
        options(WithDefaults(opts)),
        rate(opts.bytes_per_s) {}

  asio::io_context& io;
  PullSource& source;
  const Options options;
  TokenBucket rate;
  uint16_t port = 0;
  std::optional<Acceptor> acceptor;

  std::mutex mu;
  std::condition_variable all_closed;
  bool stopped = false;
  std::unordered_set<std::shared_ptr<Connection>> connections;  ///< admitted and refused
  size_t admitted = 0;
  uint64_t refused = 0;
  std::unordered_map<std::string, size_t> of_address;  ///< admitted connections per peer address

  static Options WithDefaults(Options o) {
    if (o.ping_interval.count() == 0) {
      o.ping_interval = std::clamp(o.stream_timeout / 4, kLeastPingInterval, kMostPingInterval);
    }
    return o;
  }
  void Take(int fd);
  /// kResourceExhausted: the connection gets this error, then is closed. kCancelled: the connection
  /// is closed at once.
  Status Admit(const std::shared_ptr<Connection>& connection);
  void Forget(const std::shared_ptr<Connection>& connection);
  asio::awaitable<void> Serve(std::shared_ptr<Connection> connection, Status refusal);
};

asio::awaitable<void> PullServer::Impl::Serve(std::shared_ptr<Connection> connection,
                                              Status refusal) {
  ServerStream stream(connection, source, options, rate, std::move(refusal));
  co_await stream.Run();
}

Status PullServer::Impl::Admit(const std::shared_ptr<Connection>& connection) {
  std::lock_guard lock(mu);
  if (stopped) return absl::CancelledError("stopping");
  const auto same = of_address.find(connection->address);
  const size_t from_there = same == of_address.end() ? 0 : same->second;
  const bool per_address = from_there >= options.max_connections_per_address;
  if (!per_address && admitted < options.max_connections) {
    connections.insert(connection);
    connection->admitted = true;
    ++admitted;
    ++of_address[connection->address];
    return absl::OkStatus();
  }
  ++refused;
  // A rejected connection stays open only for TLS's handshake and its Error frame, and does not
  // count as admitted. Slow peers could pile up, so their number is limited.
  if (connections.size() - admitted >= kMostRefused) return absl::CancelledError("too many");
  connections.insert(connection);
  return Errorf(StatusCode::kResourceExhausted,
                "the sender has {} bulk connections{}, which is the most: use fewer streams or "
                "receivers, or try again later",
                per_address ? from_there : admitted,
                per_address ? " from " + connection->address : "");
}

void PullServer::Impl::Forget(const std::shared_ptr<Connection>& connection) {
  std::lock_guard lock(mu);
  if (connections.erase(connection) == 0) return;
  if (connection->admitted) {
    --admitted;
    const auto at = of_address.find(connection->address);
    if (--at->second == 0) of_address.erase(at);
  }
  if (connections.empty()) all_closed.notify_all();
}

// Runs on the acceptor's thread.
void PullServer::Impl::Take(int fd) {
  UniqueFd owner(fd);
  auto connection = std::make_shared<Connection>(asio::make_strand(io));
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  ErrorCode ec;
  // Fails for a connection that is already gone.
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return;
  connection->socket.assign(at.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd, ec);
  if (ec) {
    LogWarn("bulk port {}: {}", port, ec.message());
    return;
  }
  owner.Release();
  connection->address = connection->socket.remote_endpoint(ec).address().to_string();
  Status refusal = Admit(connection);
  if (absl::IsCancelled(refusal)) return;
  const auto ended = [self = shared_from_this(), connection](const std::exception_ptr& thrown) {
    if (thrown) {
      LogError("{}", MessageOf(FromException("bulk stream", thrown)));
      ErrorCode ignored;
      connection->socket.close(ignored);
    }
    self->Forget(connection);
  };
  try {
    asio::co_spawn(connection->socket.get_executor(), Serve(connection, std::move(refusal)), ended);
  } catch (...) {
    ended(std::current_exception());
  }
}

StatusOr<std::unique_ptr<PullServer>> PullServer::Listen(IoThreads& io, const std::string& host,
                                                         uint16_t port, PullSource& source,
                                                         const Options& options) {
  auto impl = std::make_shared<Impl>(io, source, options);
  auto listening = ListenTcp(host, port);
  if (!listening.ok()) return Annotate(listening.status(), "bulk streams");
  impl->port = PortOf(*listening);
  impl->acceptor.emplace(std::move(*listening), fmt::format("bulk port {}", impl->port),
                         options.reserved_descriptors, [raw = impl.get()](int fd) {
                           try {
                             raw->Take(fd);
                           } catch (...) {
                             LogError("{}", MessageOf(FromException("accepting a bulk stream",
                                                                    std::current_exception())));
                           }
                         });
  return std::unique_ptr<PullServer>(new PullServer(std::move(impl)));
}

uint16_t PullServer::port() const { return impl_->port; }

size_t PullServer::connections() const {
  std::lock_guard lock(impl_->mu);
  return impl_->admitted;
}

uint64_t PullServer::refused() const {
  std::lock_guard lock(impl_->mu);
  return impl_->refused;
}

void PullServer::Stop() {
  {
    std::lock_guard lock(impl_->mu);
    if (std::exchange(impl_->stopped, true)) return;
  }
  impl_->acceptor->Stop();
  std::unique_lock lock(impl_->mu);
  for (const auto& connection : impl_->connections) connection->Close();
  impl_->all_closed.wait(lock, [this] { return impl_->connections.empty(); });
}

PullServer::~PullServer() { Stop(); }

}  // namespace deltawire::net
