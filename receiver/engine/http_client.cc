#include "receiver/engine/http_client.h"

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <exception>
#include <optional>

namespace deltawire::receiver {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxBody = 1 << 20;

/// One request on one connection.
class Exchange {
 public:
  Exchange(asio::io_context& context, const Endpoint& address, const HttpRequest& request,
           std::chrono::milliseconds limit)
      : address_(address), request_(request), limit_(limit), resolver_(context), stream_(context) {}

  asio::awaitable<void> Run() {
    const auto [resolve_error, found] =
        co_await resolver_.async_resolve(address_.host, std::to_string(address_.port), kAwait);
    if (resolve_error || closed_) co_return Fail("resolve", resolve_error);
    stream_.expires_after(limit_);  // for all that follows
    const auto [connect_error, peer] = co_await stream_.async_connect(found, kAwait);
    if (connect_error || closed_) co_return Fail("connect", connect_error);
    ErrorCode ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    reply_.sent = true;
    http::request<http::string_body> message{request_.post ? http::verb::post : http::verb::get,
                                             request_.target, 11};
    message.set(http::field::host, ToString(address_));
    message.set(http::field::user_agent, "deltawire-receiver/" DELTAWIRE_VERSION);
    message.set(http::field::accept, "*/*");
    message.set(http::field::connection, "close");
    if (!request_.body.empty()) {
      message.set(http::field::content_type, "application/json");
      message.body() = request_.body;
    }
    message.prepare_payload();
    const auto [write_error, written] = co_await http::async_write(stream_, message, kAwait);
    if (write_error || closed_) co_return Fail("send", write_error);
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxBody);
    const auto [read_error, read] = co_await http::async_read(stream_, buffer, parser, kAwait);
    if (read_error || closed_) co_return Fail("answer", read_error);
    reply_.code = parser.get().result_int();
    reply_.body = std::move(parser.get().body());
  }
  /// On the context's thread.
  void Close() {
    closed_ = true;
    resolver_.cancel();
    stream_.close();
  }
  HttpReply TakeReply() { return std::move(reply_); }

 private:
  void Fail(std::string_view step, const ErrorCode& error) {
    if (closed_) {
      reply_.error = "the receiver is stopping";
    } else if (error == beast::error::timeout) {
      reply_.error = fmt::format("{}: nothing within {} ms", step, limit_.count());
    } else if (error == http::error::end_of_stream || error == http::error::partial_message) {
      reply_.error = "the connection was closed before the answer was whole";
    } else {
      reply_.error = fmt::format("{}: {}", step, error.message());
    }
  }

  const Endpoint& address_;
  const HttpRequest& request_;
  const std::chrono::milliseconds limit_;
  tcp::resolver resolver_;
  beast::tcp_stream stream_;
  bool closed_ = false;
  HttpReply reply_;
};

}  // namespace

struct HttpClient::Impl {
  explicit Impl(const Endpoint& a) : address(a) {}
  const Endpoint address;
  asio::io_context context;
  std::optional<Exchange> exchange;  // used on the thread that runs the context only
  bool cancelled = false;            // the same
  std::atomic<bool> stopping{false};
};

HttpClient::HttpClient(const Endpoint& address) : impl_(std::make_unique<Impl>(address)) {}
HttpClient::~HttpClient() = default;

HttpReply HttpClient::Send(const HttpRequest& request, std::chrono::milliseconds limit) {
  Impl& i = *impl_;
  if (i.stopping) return {.error = "the receiver is stopping"};
  i.exchange.emplace(i.context, i.address, request, limit);
  if (i.cancelled) i.exchange->Close();
  std::exception_ptr thrown;
  asio::co_spawn(i.context, i.exchange->Run(), [&](std::exception_ptr e) { thrown = e; });
  i.context.restart();
  try {
    i.context.run();
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    HttpReply failed = i.exchange->TakeReply();
    failed.code = 0;
    failed.error = e.what();
    i.exchange.reset();
    return failed;
  }
  HttpReply reply = i.exchange->TakeReply();
  i.exchange.reset();
  return reply;
}

void HttpClient::Cancel() {
  impl_->stopping = true;
  asio::post(impl_->context, [i = impl_.get()] {
    i->cancelled = true;
    if (i->exchange) i->exchange->Close();
  });
}

}  // namespace deltawire::receiver
