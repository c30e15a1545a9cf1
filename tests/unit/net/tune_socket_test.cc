// The options that TuneSocket sets on a bulk socket, read back from the kernel.
#include <catch2/catch.hpp>
#include <string>

#include "common/net/io_impl.h"

namespace deltawire::net {
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
    TuneSocket(*socket);
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
    TuneSocket(*socket);
    const Options now = OptionsOf(*socket);
    CHECK(now.window_clamp == before.window_clamp);
    CHECK(now.not_sent == before.not_sent);
    CHECK(now.no_delay != 0);
    CHECK(now.keep_alive != 0);
  }
}

TEST_CASE("a socket whose peer is gone is tuned without harm") {
  asio::io_context context;
  tcp::socket socket(context);
  TuneSocket(socket);
  socket.open(tcp::v4());
  TuneSocket(socket);
  CHECK(OptionsOf(socket).not_sent != kNotSent);
}

}  // namespace
}  // namespace deltawire::net
