#include "common/net/pull_server.h"

#include <spdlog/spdlog.h>

#include <array>
#include <limits>
#include <mutex>
#include <unordered_set>

#include "common/net/io_impl.h"

namespace deltawire::net {

namespace {

// What Stop and a cut reach of a stream from other threads: its socket and the timer it idles on.
struct Connection : std::enable_shared_from_this<Connection> {
  explicit Connection(asio::any_io_executor executor) : socket(executor), idle(executor) {}

  // From any thread; a socket may only be touched on its own strand.
  void Close() {
    asio::post(socket.get_executor(), [self = shared_from_this()] {
      self->closed = true;
      ErrorCode ignored;
      self->socket.close(ignored);
      self->idle.cancel();
    });
  }

  tcp::socket socket;
  asio::steady_timer idle;
  bool closed = false;  // on the strand
  bool woken = false;   // on the strand
};

}  // namespace

struct PullServer::Impl : std::enable_shared_from_this<PullServer::Impl> {
  Impl(IoThreads& io_threads, PullSource& pull_source, const Options& opts)
      : io(io_threads.impl().context),
        source(pull_source),
        options(opts),
        acceptor(asio::make_strand(io)) {}

  asio::io_context& io;
  PullSource& source;
  const Options options;
  tcp::acceptor acceptor;
  uint16_t port = 0;

  std::mutex mu;
  std::condition_variable all_closed;
  bool stopped = false;
  std::unordered_set<std::shared_ptr<Connection>> connections;

  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(std::shared_ptr<Connection> connection);
};

namespace {

// Completion condition of a write: Asio's own cuts every call at 64 KiB.
size_t WholePiece(const ErrorCode& ec, size_t) {
  return ec ? 0 : std::numeric_limits<size_t>::max();
}

// One accepted connection. Lives in its coroutine's frame.
class ServerStream {
 public:
  ServerStream(std::shared_ptr<Connection> connection, PullSource& source,
               const PullServer::Options& options)
      : connection_(std::move(connection)),
        socket_(connection_, &connection_->socket),
        source_(source),
        options_(options),
        peer_(PeerName(*socket_)),
        watchdog_(std::make_shared<Watchdog>(socket_, options.stream_timeout)) {}

  asio::awaitable<void> Run() {
    TuneSocket(*socket_);
    watchdog_->Start();
    const Status status = co_await Exchange();
    if (session_ != nullptr) session_->StreamClosed(stream_, status);
    if (!status.ok() && socket_->is_open()) co_await SendError(status);
    watchdog_->Stop();
    ErrorCode ignored;
    socket_->shutdown(tcp::socket::shutdown_both, ignored);
    socket_->close(ignored);
    if (!status.ok()) spdlog::debug("bulk stream from {}: {}", peer_, MessageOf(status));
  }

 private:
  asio::awaitable<Status> Exchange() {
    std::vector<std::byte> payload;
    auto header = co_await ReadFrame(wire::FrameType::kHello, payload);
    if (!header.ok()) co_return header.status();
    auto hello = wire::DecodeHello(payload);
    if (!hello.ok()) co_return hello.status();
    auto joined = source_.Join(*hello, peer_);
    if (!joined.ok()) co_return joined.status();
    session_ = std::move(*joined);
    stream_ = hello->stream;
    session_->StreamOpened(stream_, [weak = std::weak_ptr(connection_)] {
      if (auto connection = weak.lock()) connection->Close();
    });
    Status sent = co_await SendBare(wire::FrameType::kWelcome);
    if (!sent.ok()) co_return sent;
    if (stream_ == 0) {
      header = co_await ReadFrame(wire::FrameType::kHave, payload);
      if (!header.ok()) co_return header.status();
      auto have = wire::DecodeHave(payload, session_->chunks());
      payload = {};
      if (!have.ok()) co_return have.status();
      Status started = session_->Start(*have);
      if (!started.ok()) co_return started;
    }
    co_return co_await SendAll();
  }

  asio::awaitable<Status> SendAll() {
    while (true) {
      connection_->woken = false;
      // Comes from any thread, perhaps after this coroutine is gone.
      auto next = session_->Next(stream_, [connection = connection_] {
        asio::post(connection->socket.get_executor(), [connection] {
          connection->woken = true;
          connection->idle.cancel();
        });
      });
      if (!next.ok()) co_return next.status();
      if (next->has_value()) {
        const bool last = (*next)->header.type == wire::FrameType::kEnd;
        Status sent = co_await Send(**next);
        if (!sent.ok()) co_return sent;
        if (last) co_return co_await AwaitClose();
        continue;
      }
      // Posting first lets a wake or a close that came before this wait be seen.
      co_await asio::post(socket_->get_executor(), asio::use_awaitable);
      if (!connection_->woken && !connection_->closed) {
        connection_->idle.expires_after(options_.ping_interval);
        co_await connection_->idle.async_wait(kAwait);
      }
      if (connection_->closed) co_return absl::CancelledError("the stream was closed");
      if (connection_->woken) continue;
      Status sent = co_await SendBare(wire::FrameType::kPing);
      if (!sent.ok()) co_return sent;
    }
  }

  // The receiver closes first, so that no unread byte turns our close into a reset.
  asio::awaitable<Status> AwaitClose() {
    std::array<std::byte, 1> byte;
    watchdog_->Feed();
    co_await socket_->async_read_some(asio::buffer(byte), kAwait);
    co_return absl::OkStatus();
  }

  asio::awaitable<Status> Send(const OutFrame& frame) {
    const wire::HeaderBytes header = wire::EncodeHeader(frame.header);
    watchdog_->Feed();
    // Payloads go out in pieces: each piece that leaves is progress for the watchdog.
    constexpr size_t kPiece = size_t{512} << 10;
    size_t done = std::min(kPiece, frame.payload.size());
    std::array<asio::const_buffer, 2> first = {asio::buffer(header),
                                               asio::buffer(frame.payload.data(), done)};
    auto [ec, n] = co_await asio::async_write(*socket_, first, WholePiece, kAwait);
    while (!ec && done < frame.payload.size()) {
      watchdog_->Feed();
      const size_t piece = std::min(kPiece, frame.payload.size() - done);
      std::tie(ec, n) = co_await asio::async_write(
          *socket_, asio::buffer(frame.payload.data() + done, piece), WholePiece, kAwait);
      done += piece;
    }
    if (ec) co_return Failure("sending", ec);
    co_return absl::OkStatus();
  }

  asio::awaitable<Status> SendBare(wire::FrameType type) {
    OutFrame frame;
    frame.header.type = type;
    frame.header.payload_xxh3 = Xxh3({});
    co_return co_await Send(frame);
  }

  asio::awaitable<void> SendError(const Status& status) {
    const auto payload = wire::Encode(wire::FromStatus(status));
    OutFrame frame;
    frame.header.type = wire::FrameType::kError;
    frame.header.payload_bytes = static_cast<uint32_t>(payload.size());
    frame.header.payload_xxh3 = Xxh3(payload);
    frame.payload = payload;
    const Status sent = co_await Send(frame);
    if (sent.ok()) co_await AwaitClose();
  }

  asio::awaitable<StatusOr<wire::FrameHeader>> ReadFrame(wire::FrameType want,
                                                         std::vector<std::byte>& payload) {
    wire::HeaderBytes bytes;
    watchdog_->Feed();
    auto [ec, n] = co_await asio::async_read(*socket_, asio::buffer(bytes), kAwait);
    if (ec) co_return Failure("waiting for a frame", ec);
    auto header = wire::DecodeHeader(bytes);
    if (!header.ok()) co_return header.status();
    if (header->type != want) {
      co_return Errorf(StatusCode::kInvalidArgument, "expected a {} frame, got {}",
                       wire::ToString(want), wire::ToString(header->type));
    }
    payload.resize(header->payload_bytes);
    std::tie(ec, n) = co_await asio::async_read(*socket_, asio::buffer(payload), kAwait);
    if (ec) co_return Failure("reading a payload", ec);
    Status checked = wire::CheckPayload(*header, Xxh3(payload));
    if (!checked.ok()) co_return checked;
    co_return header;
  }

  Status Failure(std::string_view doing, const ErrorCode& ec) const {
    if (watchdog_->fired()) {
      return Errorf(StatusCode::kDeadlineExceeded, "{} to {}: no progress for {} ms", doing, peer_,
                    watchdog_->limit().count());
    }
    return FromAsio(fmt::format("{} ({})", doing, peer_), ec);
  }

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<tcp::socket> socket_;
  PullSource& source_;
  const PullServer::Options& options_;
  const std::string peer_;
  std::shared_ptr<Watchdog> watchdog_;
  std::shared_ptr<PullSession> session_;
  uint16_t stream_ = 0;
};

}  // namespace

asio::awaitable<void> PullServer::Impl::Serve(std::shared_ptr<Connection> connection) {
  {
    ServerStream stream(connection, source, options);
    co_await stream.Run();
  }
  std::lock_guard lock(mu);
  connections.erase(connection);
  if (connections.empty()) all_closed.notify_all();
}

asio::awaitable<void> PullServer::Impl::Accept() {
  auto self = shared_from_this();
  while (acceptor.is_open()) {
    auto connection = std::make_shared<Connection>(asio::make_strand(io));
    auto [ec] = co_await acceptor.async_accept(connection->socket, kAwait);
    if (ec == asio::error::operation_aborted || ec == asio::error::bad_descriptor) break;
    if (ec) {
      // Out of descriptors, most likely: wait a little rather than spin.
      spdlog::warn("bulk port {}: accept: {}", port, ec.message());
      asio::steady_timer pause(acceptor.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    {
      std::lock_guard lock(mu);
      if (stopped) break;
      connections.insert(connection);
    }
    asio::co_spawn(connection->socket.get_executor(), Serve(connection), asio::detached);
  }
}

StatusOr<std::unique_ptr<PullServer>> PullServer::Listen(IoThreads& io, const std::string& host,
                                                         uint16_t port, PullSource& source,
                                                         const Options& options) {
  auto impl = std::make_shared<Impl>(io, source, options);
  const std::string what = fmt::format("listening on {}:{} for bulk streams", host, port);
  ErrorCode ec;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec) {
    return Errorf(StatusCode::kInvalidArgument, "{}: \"{}\" is not an IP address", what, host);
  }
  const tcp::endpoint endpoint(address, port);
  impl->acceptor.open(endpoint.protocol(), ec);
  if (!ec) impl->acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) impl->acceptor.bind(endpoint, ec);
  if (!ec) impl->acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return FromAsio(what, ec);
  impl->port = impl->acceptor.local_endpoint().port();
  asio::co_spawn(impl->acceptor.get_executor(), impl->Accept(), asio::detached);
  return std::unique_ptr<PullServer>(new PullServer(std::move(impl)));
}

uint16_t PullServer::port() const { return impl_->port; }

void PullServer::Stop() {
  std::unique_lock lock(impl_->mu);
  if (std::exchange(impl_->stopped, true)) return;
  asio::post(impl_->acceptor.get_executor(), [impl = impl_] {
    ErrorCode ignored;
    impl->acceptor.close(ignored);
  });
  for (const auto& connection : impl_->connections) connection->Close();
  impl_->all_closed.wait(lock, [this] { return impl_->connections.empty(); });
}

PullServer::~PullServer() { Stop(); }

}  // namespace deltawire::net
