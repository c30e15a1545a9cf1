#include "receiver/engine/http_client.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <exception>
#include <optional>

#include "common/base/sync.h"
#include "receiver/engine/engine_call.h"

namespace deltawire::receiver {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Clock = SteadyClock;
using std::chrono::milliseconds;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxBody = 16 << 20;  // metrics have some 100 KB for each of vLLM's engines
/// The limit for the name and the connection. A running engine answers within the first
/// retransmission (1 s), and until then the receiver may hold the directory for it.
constexpr milliseconds kConnectLimit{5000};

/// A lookup of one name, on a thread of its own: the C library's lookup has no time limit and
/// cannot be cancelled. Shared with that thread, which may outlive the client.
struct Lookup {
  Mutex mu;
  CondVar cv;
  bool running = false;
  bool cancelled = false;
  std::optional<tcp::resolver::results_type> found;
  ErrorCode error;  // if not found
};

/// Starts a lookup, unless the last one still runs. REQUIRES: `lock` holds lookup->mu.
void StartLookup(const std::shared_ptr<Lookup>& lookup, const Endpoint& address) {
  if (std::exchange(lookup->running, true)) return;
  lookup->found.reset();
  lookup->error.clear();
  try {
    Thread([lookup, address] {
      asio::io_context context;
      ErrorCode error;
      auto found = tcp::resolver(context).resolve(address.host, std::to_string(address.port),
                                                  tcp::resolver::numeric_service, error);
      std::lock_guard lock(lookup->mu);
      if (!error) lookup->found = std::move(found);
      lookup->error = error;
      lookup->running = false;
      lookup->cv.notify_all();
    }).detach();
  } catch (...) {
    lookup->running = false;
    throw;
  }
}

using TlsStream = asio::ssl::stream<beast::tcp_stream&>;

/// Demands a certificate of the host that is dialed.
bool ExpectHost(SSL* ssl, const std::string& host) {
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1) return true;
  ERR_clear_error();  // it is a name
  return SSL_set1_host(ssl, host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
}

/// One request on one connection.
class Exchange {
 public:
  Exchange(asio::io_context& context, const Endpoint& address,
           std::shared_ptr<const EngineSecrets> secrets, const HttpRequest& request,
           milliseconds limit)
      : address_(address),
        secrets_(std::move(secrets)),
        request_(request),
        limit_(limit),
        end_(Clock::now() + limit),
        connect_end_(Clock::now() + std::min(limit, kConnectLimit)),
        stream_(context) {}

  asio::awaitable<void> Run(tcp::resolver::results_type peers) {
    if (closed_) co_return Fail("connect", {});
    stream_.expires_at(connect_end_);
    const auto [connect_error, peer] = co_await stream_.async_connect(peers, kAwait);
    if (connect_error || closed_) co_return Fail("connect", connect_error);
    ErrorCode ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    if (secrets_ == nullptr || secrets_->tls == nullptr) co_return co_await Talk(stream_);
    SSL_CTX_up_ref(secrets_->tls.get());
    asio::ssl::context tls(secrets_->tls.get());  // takes one reference
    TlsStream stream(stream_, tls);
    if (!ExpectHost(stream.native_handle(), address_.host)) co_return Fail("TLS: host name", {});
    const auto [tls_error] =
        co_await stream.async_handshake(asio::ssl::stream_base::client, kAwait);
    if (tls_error || closed_) {
      const long verified = SSL_get_verify_result(stream.native_handle());
      Fail("TLS", tls_error);
      if (!closed_ && verified != X509_V_OK) {
        reply_.error = fmt::format("TLS: the certificate of {} is not believed: {}", address_.host,
                                   X509_verify_cert_error_string(verified));
      }
      co_return;
    }
    co_await Talk(stream);
  }
  /// REQUIRES: the context's thread calls it.
  void Close() {
    closed_ = true;
    stream_.close();
  }
  HttpReply TakeReply() { return std::move(reply_); }
  Clock::time_point connect_end() const { return connect_end_; }

 private:
  /// Sends the request and reads the answer, on the connection or on the TLS over it.
  template <typename Stream>
  asio::awaitable<void> Talk(Stream& stream) {
    stream_.expires_at(end_);  // for all that follows
    reply_.sent = true;
    http::request<http::string_body> message{request_.post ? http::verb::post : http::verb::get,
                                             request_.target, 11};
    message.set(http::field::host, ToString(address_));
    message.set(http::field::user_agent, "deltawire-receiver/" DELTAWIRE_VERSION);
    message.set(http::field::accept, "*/*");
    message.set(http::field::connection, "close");
    if (secrets_ != nullptr && !secrets_->token.empty()) {
      message.set(http::field::authorization, "Bearer " + secrets_->token);
    }
    if (!request_.body.empty()) {
      message.set(http::field::content_type, "application/json");
      message.body() = request_.body;
    }
    message.prepare_payload();
    const auto [write_error, written] = co_await http::async_write(stream, message, kAwait);
    if (write_error || closed_) co_return Fail("send", write_error);
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxBody);
    const auto [read_error, read] = co_await http::async_read(stream, buffer, parser, kAwait);
    if (read_error || closed_) co_return Fail("answer", read_error);
    reply_.code = parser.get().result_int();
    reply_.body = std::move(parser.get().body());
  }

  void Fail(std::string_view step, const ErrorCode& error) {
    reply_.gone = !closed_ && error == asio::error::connection_refused;
    if (closed_) {
      reply_.cancelled = true;
      reply_.error = kStopping;
    } else if (error == beast::error::timeout) {
      const milliseconds limit = reply_.sent ? limit_ : std::min(limit_, kConnectLimit);
      reply_.error = fmt::format("{}: nothing within {} ms", step, limit.count());
    } else if (reply_.sent &&
               (error == http::error::end_of_stream || error == http::error::partial_message ||
                error == asio::ssl::error::stream_truncated)) {
      reply_.error = "the connection was closed before the answer was whole";
    } else {
      reply_.error = fmt::format("{}: {}", step, error.message());
    }
  }

  const Endpoint& address_;
  const std::shared_ptr<const EngineSecrets> secrets_;  // null: none
  const HttpRequest& request_;
  const milliseconds limit_;
  const Clock::time_point end_, connect_end_;
  beast::tcp_stream stream_;
  bool closed_ = false;
  HttpReply reply_;
};

}  // namespace

struct HttpClient::Impl {
  Impl(const Endpoint& a, std::shared_ptr<EngineAccess> by) : address(a), access(std::move(by)) {}
  /// Returns the engine's addresses; nullopt: `reply` says why there are none.
  std::optional<tcp::resolver::results_type> Find(milliseconds limit, HttpReply* reply) const;

  const Endpoint address;
  const std::shared_ptr<EngineAccess> access;  // null: none
  const std::shared_ptr<Lookup> lookup = std::make_shared<Lookup>();
  asio::io_context context;
  std::optional<Exchange> exchange;  // used on the thread that runs the context only
  bool cancelled = false;            // the same
};

std::optional<tcp::resolver::results_type> HttpClient::Impl::Find(milliseconds limit,
                                                                  HttpReply* reply) const {
  const auto end = Clock::now() + limit;
  ErrorCode no_literal;
  const auto literal = asio::ip::make_address(address.host, no_literal);
  std::unique_lock lock(lookup->mu);
  // The result of a lookup that outlived its request is used now.
  if (no_literal && !lookup->cancelled && !lookup->found) StartLookup(lookup, address);
  while (lookup->running && !lookup->cancelled && Clock::now() < end) {
    lookup->cv.wait_until(lock, end);
  }
  if (lookup->cancelled) {
    *reply = {.cancelled = true, .error = kStopping};
    return std::nullopt;
  }
  if (!no_literal) {
    return tcp::resolver::results_type::create({literal, address.port}, address.host,
                                               std::to_string(address.port));
  }
  if (lookup->found) return std::exchange(lookup->found, std::nullopt);
  reply->error = lookup->running ? fmt::format("resolve: nothing within {} ms", limit.count())
                                 : fmt::format("resolve: {}", lookup->error.message());
  return std::nullopt;
}

HttpClient::HttpClient(const Endpoint& address, std::shared_ptr<EngineAccess> access)
    : impl_(std::make_unique<Impl>(address, std::move(access))) {}
HttpClient::~HttpClient() = default;

HttpReply HttpClient::Send(const HttpRequest& request, milliseconds limit) {
  Impl& i = *impl_;
  const auto secrets = i.access == nullptr ? nullptr : i.access->Now();
  i.exchange.emplace(i.context, i.address, secrets, request, limit);
  HttpReply reply;
  try {
    const auto found = i.Find(std::min(limit, kConnectLimit), &reply);
    if (found) {
      if (i.cancelled) i.exchange->Close();
      std::exception_ptr thrown;
      asio::co_spawn(i.context, i.exchange->Run(*found), [&](std::exception_ptr e) { thrown = e; });
      i.context.restart();
      i.context.run();
      if (thrown) std::rethrow_exception(thrown);
      reply = i.exchange->TakeReply();
    }
  } catch (const std::exception& e) {
    reply = i.exchange->TakeReply();
    reply.code = 0;
    reply.error = e.what();
  }
  reply.secrets = secrets;
  i.exchange.reset();
  return reply;
}

void HttpClient::Cancel() {
  {
    std::lock_guard lock(impl_->lookup->mu);
    impl_->lookup->cancelled = true;
    impl_->lookup->cv.notify_all();
  }
  asio::post(impl_->context, [i = impl_.get()] {
    i->cancelled = true;
    if (i->exchange) i->exchange->Close();
  });
}

}  // namespace deltawire::receiver
