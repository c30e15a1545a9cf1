#include "tests/support/stand_in_server.h"

#include <fmt/format.h>

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace deltawire::testing {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr int kThreads = 6;  // so many connections are answered at once

}  // namespace

struct StandInServer::Impl {
  explicit Impl(Handler h)
      : handler(std::move(h)), accepting(asio::make_strand(context)), acceptor(accepting) {
    acceptor.open(tcp::v4());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    acceptor.bind({asio::ip::address_v4::loopback(), 0});
    port = acceptor.local_endpoint().port();
    acceptor.close();
  }

  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(std::shared_ptr<beast::tcp_stream> stream);
  template <typename Stream>
  asio::awaitable<void> Talk(Stream& stream);

  const Handler handler;
  uint16_t port = 0;
  std::optional<asio::ssl::context> tls;  // none: plaintext
  asio::io_context context;
  const asio::strand<asio::io_context::executor_type> accepting;
  tcp::acceptor acceptor;
  std::mutex mu;
  std::list<std::weak_ptr<beast::tcp_stream>> streams;
  std::vector<std::thread> threads;
};

asio::awaitable<void> StandInServer::Impl::Serve(std::shared_ptr<beast::tcp_stream> stream) {
  if (!tls) co_return co_await Talk(*stream);
  asio::ssl::stream<beast::tcp_stream&> secret(*stream, *tls);
  const auto [error] = co_await secret.async_handshake(asio::ssl::stream_base::server, kAwait);
  if (!error) co_await Talk(secret);
}

template <typename Stream>
asio::awaitable<void> StandInServer::Impl::Talk(Stream& stream) {
  beast::flat_buffer buffer;
  http::request<http::string_body> request;
  const auto [read_error, n] = co_await http::async_read(stream, buffer, request, kAwait);
  if (read_error) co_return;
  const StandInReply reply =
      handler({.post = request.method() == http::verb::post,
               .target = std::string(request.target()),
               .content_type = std::string(request[http::field::content_type]),
               .authorization = std::string(request[http::field::authorization]),
               .body = request.body()});
  if (reply.how == StandInReply::How::kHang) {
    char end = 0;
    co_await stream.async_read_some(asio::buffer(&end, 1), kAwait);  // until the caller goes
    co_return;
  }
  if (reply.how == StandInReply::How::kCut) co_return;
  http::response<http::string_body> response;
  response.result(static_cast<unsigned>(reply.code));
  response.body() = reply.body;
  response.set(http::field::content_type, "application/json");
  response.keep_alive(false);
  response.prepare_payload();
  co_await http::async_write(stream, response, kAwait);
}

asio::awaitable<void> StandInServer::Impl::Accept() {
  while (true) {
    auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(context), kAwait);
    if (error) co_return;
    auto stream = std::make_shared<beast::tcp_stream>(std::move(socket));
    {
      std::lock_guard lock(mu);
      if (!acceptor.is_open()) co_return;  // it ends
      streams.push_back(stream);
    }
    asio::co_spawn(stream->get_executor(), Serve(stream), asio::detached);
  }
}

StandInServer::StandInServer(Handler handler) : impl_(std::make_unique<Impl>(std::move(handler))) {}

StandInServer::~StandInServer() { Stop(); }

void StandInServer::Start() {
  Impl& i = *impl_;
  i.context.restart();
  i.acceptor.open(tcp::v4());
  i.acceptor.set_option(asio::socket_base::reuse_address(true));
  i.acceptor.bind({asio::ip::address_v4::loopback(), i.port});
  i.acceptor.listen();
  asio::co_spawn(i.accepting, i.Accept(), asio::detached);
  for (int n = 0; n < kThreads; ++n) i.threads.emplace_back([&i] { i.context.run(); });
}

void StandInServer::Stop() {
  Impl& i = *impl_;
  if (i.threads.empty()) return;
  asio::post(i.accepting, [&i] {
    std::lock_guard lock(i.mu);
    i.acceptor.close();
    for (const auto& weak : i.streams) {
      const auto stream = weak.lock();
      if (stream) asio::post(stream->get_executor(), [stream] { stream->close(); });
    }
    i.streams.clear();
  });
  for (std::thread& thread : i.threads) thread.join();
  i.threads.clear();
}

bool StandInServer::started() const { return !impl_->threads.empty(); }

std::string StandInServer::url() const {
  return fmt::format("{}://127.0.0.1:{}", impl_->tls ? "https" : "http", impl_->port);
}

void StandInServer::SpeakTls(const std::string& certificate, const std::string& key) {
  impl_->tls.emplace(asio::ssl::context::tls_server);
  impl_->tls->use_certificate_chain(asio::buffer(certificate));
  impl_->tls->use_private_key(asio::buffer(key), asio::ssl::context::pem);
}

}  // namespace deltawire::testing
