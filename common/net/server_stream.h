// One accepted connection of a PullServer, from its first byte to its close. Private to common/net.
// Its coroutine owns it and runs on one strand of IoThreads; PullServer and Cut share its
// Connection, whose Close and Cut any thread may call. Errors go to the peer as an Error frame and
// to the session; exceptions become INTERNAL.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "common/net/byte_stream.h"
#include "common/net/io_impl.h"
#include "common/net/pull_server.h"

namespace deltawire::net {

/// The part of a stream that other threads may use, to stop or to cut it.
struct Connection : std::enable_shared_from_this<Connection> {
  explicit Connection(asio::any_io_executor executor) : socket(executor), idle(executor) {}

  /// Closes at once, without an Error frame.
  void Close();
  /// Ends the stream after the current frame and sends the peer the reason. Closes it in the middle
  /// of that frame if cut_grace ends first.
  void Cut();

  tcp::socket socket;
  asio::steady_timer idle;
  std::string address;    ///< the peer's, without its port
  bool admitted = false;  ///< counts against the server's limits; guarded by PullServer's mutex
  // For the strand only:
  bool closed = false;
  bool cut = false;
  bool woken = false;
  bool reading = false;         ///< no frame is half sent, so a cut may interrupt at once
  std::function<void()> hurry;  ///< limits the stream's remaining time to cut_grace
};

class ServerStream {
 public:
  /// If `refusal` is an error, Run sends it to the peer and closes, after TLS's handshake if the
  /// server has TLS. It reads no message of the peer. All streams of the server share `rate`.
  ServerStream(std::shared_ptr<Connection> connection, PullSource& source,
               const PullServer::Options& options, TokenBucket& rate, Status refusal);
  ~ServerStream();
  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;

  asio::awaitable<void> Run();

 private:
  asio::awaitable<Status> Exchange();
  asio::awaitable<Status> AwaitFirstByte();
  /// Begins TLS if the server has it; rejects a peer that speaks the other protocol.
  asio::awaitable<Status> Secure();
  /// Tunes the socket for its part in a pull of `streams`.
  void FitToLink(uint16_t streams);
  asio::awaitable<Status> ReceiveHave();
  asio::awaitable<Status> SendAll();
  asio::awaitable<void> AwaitClose();
  asio::awaitable<Status> Send(const OutFrame& frame);
  asio::awaitable<Status> AwaitTurn(size_t bytes);
  /// Waits for pulls with priority.
  asio::awaitable<Status> AwaitOthers(size_t bytes);
  /// Waits until then, or until `still` is false. Checks at the interval `look` whether the stream
  /// was closed.
  asio::awaitable<Status> AwaitUntil(std::chrono::steady_clock::time_point until,
                                     std::chrono::milliseconds look, std::function<bool()> still);
  /// Reports to the session the bytes that have reached the receiver's kernel since the last
  /// report.
  void TellMoved();
  /// Returns the size of one send, which is small enough that a slow stream is not silent for long.
  size_t PieceBytes() const;
  /// Joins or leaves the limits of its pull.
  void ShareRates(void (TokenBucket::*change)()) const;
  asio::awaitable<Status> SendBare(wire::FrameType type);
  asio::awaitable<void> SendError(const Status& status);
  asio::awaitable<StatusOr<wire::FrameHeader>> ReadHeader(wire::FrameType want);
  asio::awaitable<Status> ReadPayload(const wire::FrameHeader& header,
                                      std::vector<std::byte>& payload);
  asio::awaitable<Status> ReadAll(void* to, size_t bytes, std::string_view what);
  void TellSession(const Status& status);
  Status WhyCut();
  Status Failure(std::string_view doing, const ErrorCode& ec) const;

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<tcp::socket> socket_;
  ByteStream bytes_;
  PullSource& source_;
  const PullServer::Options& options_;
  TokenBucket& rate_;
  const Status refusal_;
  const std::string peer_;
  std::shared_ptr<Watchdog> watchdog_;
  std::shared_ptr<PullSession> session_;
  uint16_t stream_ = 0;
  uint64_t moved_ = 0;   // bytes in the peer's kernel at the last report to the session
  uint64_t untold_ = 0;  // bytes sent since
};

}  // namespace deltawire::net
