// Private to common/net: one accepted connection of a PullServer, from its first byte to its close.
// Owner: the coroutine that runs it; its Connection is shared with PullServer and with cuts.
// Threads: a strand of IoThreads; Connection's Close and Cut from any.
// Errors go to the peer as an Error frame and to the session; exceptions become INTERNAL.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "common/net/io_impl.h"
#include "common/net/pull_server.h"

namespace deltawire::net {

/// What Stop and a cut reach of a stream from other threads.
struct Connection : std::enable_shared_from_this<Connection> {
  explicit Connection(asio::any_io_executor executor) : socket(executor), idle(executor) {}

  /// At once, without a word.
  void Close();
  /// Between two frames if the one under way ends soon; the peer is told why.
  void Cut();

  tcp::socket socket;
  asio::steady_timer idle;
  std::string address;    ///< of the peer, without its port
  bool admitted = false;  ///< counts against the server's limits; PullServer's mutex
  // On the strand:
  bool closed = false;
  bool cut = false;
  bool woken = false;
  bool reading = false;         ///< nothing is half sent: a cut may interrupt
  std::function<void()> hurry;  ///< bounds what the stream does from now on
};

class ServerStream {
 public:
  /// With a `refusal` nothing is read: the peer is told, and the connection closed.
  ServerStream(std::shared_ptr<Connection> connection, PullSource& source,
               const PullServer::Options& options, Status refusal);
  ~ServerStream();
  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;

  asio::awaitable<void> Run();

 private:
  asio::awaitable<Status> Exchange();
  asio::awaitable<Status> AwaitFirstByte();
  asio::awaitable<Status> ReceiveHave();
  asio::awaitable<Status> SendAll();
  asio::awaitable<void> AwaitClose();
  asio::awaitable<Status> Send(const OutFrame& frame);
  asio::awaitable<Status> SendBare(wire::FrameType type);
  asio::awaitable<void> SendError(const Status& status);
  asio::awaitable<StatusOr<wire::FrameHeader>> ReadHeader(wire::FrameType want);
  asio::awaitable<Status> ReadPayload(const wire::FrameHeader& header,
                                      std::vector<std::byte>& payload);
  asio::awaitable<Status> ReadAll(void* to, size_t bytes, std::string_view what);
  void TellSession(const Status& status);
  /// Why the session has ended this stream.
  Status WhyCut();
  Status Failure(std::string_view doing, const ErrorCode& ec) const;

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<tcp::socket> socket_;
  PullSource& source_;
  const PullServer::Options& options_;
  const Status refusal_;
  const std::string peer_;
  std::shared_ptr<Watchdog> watchdog_;
  std::shared_ptr<PullSession> session_;
  uint16_t stream_ = 0;
};

}  // namespace deltawire::net
