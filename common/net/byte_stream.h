// A TCP connection's bytes, plain or through TLS, with one set of calls. Private to common/net. The
// stream's coroutine owns it; the socket is shared with code that may close it. For the socket's
// strand only. TLS reads and writes the socket itself, without buffers between, so that the
// kernel's TLS can be used. Errors are Asio's codes; after one of TLS, fault() says more.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/net/io_impl.h"
#include "common/net/tls.h"
#include "common/security/token_proof.h"

namespace deltawire::net {

class ByteStream {
 public:
  using Count = std::tuple<ErrorCode, size_t>;

  explicit ByteStream(std::shared_ptr<tcp::socket> socket) : socket_(std::move(socket)) {}

  /// Does the TLS handshake as a server, or as a client that dialed `host`.
  asio::awaitable<ErrorCode> Accept(std::shared_ptr<const TlsContext> tls);
  asio::awaitable<ErrorCode> Connect(std::shared_ptr<const TlsContext> tls, std::string host);

  asio::awaitable<Count> ReadSome(asio::mutable_buffer to);
  asio::awaitable<Count> ReadAll(asio::mutable_buffer to);
  asio::awaitable<ErrorCode> Write(asio::const_buffer first, asio::const_buffer second = {});
  /// Sends TLS's close notice, if TLS is on, and closes.
  void Close();

  bool encrypted() const { return ssl_ != nullptr; }
  /// Returns why TLS rejected the peer or failed; empty if it did not.
  const std::string& fault() const { return fault_; }
  std::vector<std::string> peer_names() const;
  security::ChannelBinding binding() const;

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  asio::awaitable<ErrorCode> Handshake();
  ErrorCode Begin(std::shared_ptr<const TlsContext> tls, const std::string* host);
  /// Waits until the socket can be read or written, whichever the last OpenSSL call needs; `rc` is
  /// that call's result.
  asio::awaitable<ErrorCode> Await(int rc);
  asio::awaitable<ErrorCode> WriteTls(asio::const_buffer from);
  /// Lets the strand's other work run, timers and cuts included, if this stream has used its turn.
  /// OpenSSL calls that find the socket ready do not suspend.
  asio::awaitable<ErrorCode> GiveWay();
  bool TurnIsOver() const;

  const std::shared_ptr<tcp::socket> socket_;
  std::shared_ptr<const TlsContext> tls_;
  std::unique_ptr<SSL, Free> ssl_;
  std::string fault_;
  std::chrono::steady_clock::time_point turn_began_{};
};

}  // namespace deltawire::net
