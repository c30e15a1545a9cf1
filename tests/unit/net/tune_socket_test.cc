// The options that TuneSocket sets on a bulk socket, read back from the kernel.
#include "common/net/tune_socket.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/net/io_impl.h"
#include "common/net/tcp_facts.h"

namespace deltawire::net::tune_socket_test {
namespace {

struct Options {
  int no_delay = 0, keep_alive = 0, window_clamp = 0, not_sent = 0;
};

int Read(tcp::socket& socket, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  REQUIRE(getsockopt(socket.native_handle(), level, name, &value, &size) == 0);
  return value;
}

Options OptionsOf(tcp::socket& socket) {
  return {Read(socket, IPPROTO_TCP, TCP_NODELAY), Read(socket, SOL_SOCKET, SO_KEEPALIVE),
          Read(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP),
          Read(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT)};
}

struct Connection {
  Connection(const std::string& from, const std::string& to)
      : acceptor(context, {asio::ip::make_address(to), 0}), near(context), far(context) {
    near.open(tcp::v4());
    near.bind({asio::ip::make_address(from), 0});
    near.connect(acceptor.local_endpoint());
    acceptor.accept(far);
  }
  asio::io_context context;
  tcp::acceptor acceptor;
  tcp::socket near, far;
};

constexpr int kWindow = 768 << 10, kNotSent = 256 << 10;

TEST_CASE("both ends of a connection within one address have a small window") {
  Connection c("127.0.0.1", "127.0.0.1");
  for (tcp::socket* socket : {&c.near, &c.far}) {
    TuneSocket(socket->native_handle(), {});
    const Options now = OptionsOf(*socket);
    CHECK(now.window_clamp == kWindow);
    CHECK(now.not_sent == kNotSent);
    CHECK(now.no_delay != 0);
    CHECK(now.keep_alive != 0);
  }
}

TEST_CASE("a connection between two addresses keeps the kernel's window") {
  Connection c("127.0.0.1", "127.0.0.2");
  for (tcp::socket* socket : {&c.near, &c.far}) {
    const Options before = OptionsOf(*socket);
    REQUIRE(before.window_clamp != kWindow);
    REQUIRE(before.not_sent != kNotSent);
    TuneSocket(socket->native_handle(), {});
    const Options now = OptionsOf(*socket);
    CHECK(now.window_clamp == before.window_clamp);
    CHECK(now.not_sent == before.not_sent);
    CHECK(now.no_delay != 0);
    CHECK(now.keep_alive != 0);
  }
}

TEST_CASE("a named congestion control is set, auto keeps the kernel's where the peer is near") {
  Connection c("127.0.0.1", "127.0.0.2");
  const std::string before = TcpFactsOf(c.far.native_handle()).congestion_control;
  TuneSocket(c.far.native_handle(), {.congestion_control = "auto"});
  CHECK(TcpFactsOf(c.far.native_handle()).congestion_control == before);
  TuneSocket(c.far.native_handle(), {.congestion_control = "no_such_one"});
  CHECK(TcpFactsOf(c.far.native_handle()).congestion_control == before);
  TuneSocket(c.far.native_handle(), {.congestion_control = "reno"});  // every kernel has it
  CHECK(TcpFactsOf(c.far.native_handle()).congestion_control == "reno");
}

TEST_CASE("a near socket keeps the kernel's memory") {
  Connection c("127.0.0.1", "127.0.0.2");
  const LinkFigures near{.round_trip_seconds = 1e-4, .bytes_per_s = 1e9};
  const int before = Read(c.far, SOL_SOCKET, SO_SNDBUF);
  FitSocket(c.far.native_handle(), SocketEnd::kSender, near, 4);
  CHECK(Read(c.far, SOL_SOCKET, SO_SNDBUF) == before);
}

TEST_CASE("a far sender's socket queues no more than it sends in a moment") {
  Connection c("127.0.0.1", "127.0.0.2");
  const LinkFigures far{.round_trip_seconds = 0.2, .bytes_per_s = 125e6};
  FitSocket(c.far.native_handle(), SocketEnd::kSender, far, 32);
  CHECK(OptionsOf(c.far).not_sent == static_cast<int>(ChooseUnsent(far, 32)));
  FitSocket(c.near.native_handle(), SocketEnd::kReceiver, far, 32);
  CHECK(OptionsOf(c.near).not_sent == 0);
}

TEST_CASE("what waits in a socket within one host stays as it was tuned") {
  Connection c("127.0.0.1", "127.0.0.1");
  TuneSocket(c.far.native_handle(), {});
  FitSocket(c.far.native_handle(), SocketEnd::kSender, {5e-5, 4e9}, 4);
  CHECK(OptionsOf(c.far).not_sent == kNotSent);
}

TEST_CASE("what the kernel tells of a connection") {
  Connection c("127.0.0.1", "127.0.0.2");
  const std::string text(1000, 'x');
  asio::write(c.near, asio::buffer(text));
  std::string got(text.size(), ' ');
  asio::read(c.far, asio::buffer(got));
  const TcpFacts facts = TcpFactsOf(c.near.native_handle());
  CHECK(facts.round_trip_seconds > 0);
  CHECK(facts.round_trip_seconds < 1);
  CHECK(facts.sent_bytes >= text.size());
  CHECK_FALSE(facts.congestion_control.empty());
  CHECK(TcpFactsOf(-1).sent_bytes == 0);
}

TEST_CASE("a socket whose peer is gone is tuned without harm") {
  asio::io_context context;
  tcp::socket socket(context);
  TuneSocket(socket.native_handle(), {});
  socket.open(tcp::v4());
  TuneSocket(socket.native_handle(), {});
  CHECK(OptionsOf(socket).not_sent != kNotSent);
}

}  // namespace
}  // namespace deltawire::net::tune_socket_test
