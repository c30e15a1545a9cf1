#include "common/net/byte_stream.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <limits>
#include <utility>

namespace deltawire::net {
namespace {

// The completion condition of a write. Asio's default splits a write into calls of 64 KiB.
size_t WholePiece(const ErrorCode& ec, size_t) {
  return ec ? 0 : std::numeric_limits<size_t>::max();
}

// A stream that always finds its socket ready yields to others on its thread at this interval.
constexpr std::chrono::milliseconds kTurn{5};

bool IsAddress(const std::string& host) {
  unsigned char parsed[16];
  return inet_pton(AF_INET, host.c_str(), parsed) == 1 ||
         inet_pton(AF_INET6, host.c_str(), parsed) == 1;
}

}  // namespace

ErrorCode ByteStream::Begin(std::shared_ptr<const TlsContext> tls, const std::string* host) {
  ERR_clear_error();
  tls_ = std::move(tls);
  ssl_.reset(SSL_new(tls_->context.get()));
  ErrorCode ec;
  socket_->native_non_blocking(true, ec);
  if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), socket_->native_handle()) != 1) {
    fault_ = "OpenSSL has no memory";
    return asio::error::no_memory;
  }
  if (host == nullptr) {
    SSL_set_accept_state(ssl_.get());
    return {};
  }
  const std::string& expected = tls_->server_name.empty() ? *host : tls_->server_name;
  // An empty name would match any certificate.
  bool named = !expected.empty();
  if (named && IsAddress(expected)) {
    named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), expected.c_str()) == 1;
  } else if (named) {
    named = SSL_set1_host(ssl_.get(), expected.c_str()) == 1 &&
            SSL_set_tlsext_host_name(ssl_.get(), expected.c_str()) == 1;
  }
  if (!named) {
    fault_ = fmt::format("\"{}\" is no name that a certificate can be compared with", expected);
    return asio::error::invalid_argument;
  }
  SSL_set_connect_state(ssl_.get());
  return {};
}

asio::awaitable<ErrorCode> ByteStream::Accept(std::shared_ptr<const TlsContext> tls) {
  const ErrorCode ec = Begin(std::move(tls), nullptr);
  if (ec) co_return ec;
  co_return co_await Handshake();
}

asio::awaitable<ErrorCode> ByteStream::Connect(std::shared_ptr<const TlsContext> tls,
                                               std::string host) {
  const ErrorCode ec = Begin(std::move(tls), &host);
  if (ec) co_return ec;
  co_return co_await Handshake();
}

asio::awaitable<ErrorCode> ByteStream::Handshake() {
  while (true) {
    ERR_clear_error();
    const int rc = SSL_do_handshake(ssl_.get());
    if (rc == 1) {
      NoteKernelTls(ssl_.get());
      co_return ErrorCode();
    }
    const ErrorCode ec = co_await Await(rc);
    if (ec) co_return ec;
  }
}

asio::awaitable<ErrorCode> ByteStream::Await(int rc) {
  const int why = SSL_get_error(ssl_.get(), rc);
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
    const auto [ec] = co_await socket_->async_wait(
        why == SSL_ERROR_WANT_READ ? tcp::socket::wait_read : tcp::socket::wait_write, kAwait);
    // A closed socket's descriptor may be another connection's by now.
    co_return ec || socket_->is_open() ? ec : ErrorCode(asio::error::operation_aborted);
  }
  if (why == SSL_ERROR_ZERO_RETURN) co_return asio::error::eof;
  const int system = errno;
  fault_ = TlsErrors(ssl_.get());
  if (why == SSL_ERROR_SYSCALL && fault_.empty()) {
    co_return system == 0 ? ErrorCode(asio::error::eof)
                          : ErrorCode(system, boost::system::system_category());
  }
  if (fault_ == "unexpected eof while reading") {
    fault_.clear();
    co_return asio::error::eof;
  }
  if (fault_.empty()) fault_ = "a fault that OpenSSL does not name";
  co_return asio::error::connection_aborted;
}

bool ByteStream::TurnIsOver() const {
  return std::chrono::steady_clock::now() - turn_began_ > kTurn;
}

asio::awaitable<ErrorCode> ByteStream::GiveWay() {
  if (!TurnIsOver()) co_return ErrorCode();
  co_await asio::post(socket_->get_executor(), asio::use_awaitable);
  turn_began_ = std::chrono::steady_clock::now();
  co_return socket_->is_open() ? ErrorCode() : ErrorCode(asio::error::operation_aborted);
}

asio::awaitable<ByteStream::Count> ByteStream::ReadSome(asio::mutable_buffer to) {
  if (ssl_ == nullptr) co_return co_await socket_->async_read_some(to, kAwait);
  if (const ErrorCode ec = co_await GiveWay()) co_return Count(ec, 0);
  size_t done = 0;
  while (socket_->is_open()) {
    // A record has 16 KiB. Read whatever else is ready too, so that the caller's turn pays off.
    size_t n = 0;
    ERR_clear_error();
    const int rc =
        SSL_read_ex(ssl_.get(), static_cast<std::byte*>(to.data()) + done, to.size() - done, &n);
    done += n;
    if (rc == 1 && done < to.size() && !TurnIsOver()) continue;
    if (done != 0) co_return Count(ErrorCode(), done);
    const ErrorCode ec = co_await Await(rc);
    if (ec) co_return Count(ec, 0);
  }
  co_return Count(asio::error::operation_aborted, done);
}

asio::awaitable<ByteStream::Count> ByteStream::ReadAll(asio::mutable_buffer to) {
  if (ssl_ == nullptr) co_return co_await asio::async_read(*socket_, to, kAwait);
  for (size_t done = 0; done < to.size();) {
    const auto [ec, n] = co_await ReadSome(to + done);
    done += n;
    if (ec) co_return Count(ec, done);
  }
  co_return Count(ErrorCode(), to.size());
}

asio::awaitable<ErrorCode> ByteStream::Write(asio::const_buffer first, asio::const_buffer second) {
  if (ssl_ == nullptr) {
    const std::array<asio::const_buffer, 2> both = {first, second};
    const auto [ec, n] = co_await asio::async_write(*socket_, both, WholePiece, kAwait);
    co_return ec;
  }
  const ErrorCode ec = co_await WriteTls(first);
  if (ec) co_return ec;
  co_return co_await WriteTls(second);
}

asio::awaitable<ErrorCode> ByteStream::WriteTls(asio::const_buffer from) {
  for (size_t done = 0; done < from.size();) {
    if (const ErrorCode ec = co_await GiveWay()) co_return ec;
    if (!socket_->is_open()) co_return asio::error::operation_aborted;
    size_t n = 0;
    ERR_clear_error();
    const int rc = SSL_write_ex(ssl_.get(), static_cast<const std::byte*>(from.data()) + done,
                                from.size() - done, &n);
    if (rc == 1) {
      done += n;
      continue;
    }
    const ErrorCode ec = co_await Await(rc);
    if (ec) co_return ec;
  }
  co_return ErrorCode();
}

void ByteStream::Close() {
  ErrorCode ignored;
  if (ssl_ != nullptr && socket_->is_open() && fault_.empty() && SSL_is_init_finished(ssl_.get())) {
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  socket_->shutdown(tcp::socket::shutdown_both, ignored);
  socket_->close(ignored);
}

std::vector<std::string> ByteStream::peer_names() const {
  return ssl_ == nullptr ? std::vector<std::string>() : PeerNames(ssl_.get());
}

security::ChannelBinding ByteStream::binding() const {
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";  // RFC 9266
  security::ChannelBinding binding{};
  if (ssl_ != nullptr) {
    SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(binding.data()),
                               binding.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0);
  }
  return binding;
}

}  // namespace deltawire::net
