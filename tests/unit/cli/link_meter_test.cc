// Measurements between real sockets on loopback.
#include "cli/link_meter.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <thread>

#include "proto/client/tcp.h"
#include "tests/support/eventually.h"

namespace deltawire::cli::link_meter_test {
namespace {

using namespace std::chrono_literals;
using testing::Eventually;
constexpr auto kPatience = 30s;

std::string AddressOf(const LinkListener& listener) {
  return fmt::format("127.0.0.1:{}", listener.port());
}
/// Of a socket that listens.
std::string AddressOf(int fd) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  return fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
}

std::unique_ptr<LinkListener> Listen(LinkListener::Limits limits = {}) {
  auto listener = LinkListener::Listen("127.0.0.1:0", limits);
  REQUIRE(listener.ok());
  return std::move(*listener);
}

/// Sends `bytes`, and returns what comes back before the other end closes.
std::string Exchange(const std::string& address, const std::string& bytes) {
  auto fd = ConnectTcp(address, kPatience);
  REQUIRE(fd.ok());
  SetTimeout(fd->get(), kPatience);
  (void)::send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::string said;
  char block[4096];
  for (ssize_t n = 0; (n = ::recv(fd->get(), block, sizeof block, 0)) > 0;) {
    said.append(block, static_cast<size_t>(n));
  }
  return said;
}

TEST_CASE("bench-link: a round trip and rates are measured, and every byte of them was sent") {
  const auto listener = Listen();
  const auto round_trip = MeasureRoundTrip(AddressOf(*listener), 5, kPatience);
  REQUIRE(round_trip.ok());
  CHECK(*round_trip > 0);
  CHECK(*round_trip < 30);
  CHECK(listener->bytes_sent() == 0);
  for (const size_t streams : {1, 3}) {
    const uint64_t before = listener->bytes_sent();
    const auto rate = MeasureRate(AddressOf(*listener), streams, 0.2, kPatience);
    REQUIRE(rate.ok());
    CHECK(rate->streams == streams);
    CHECK(rate->bytes_per_s > 0);
    // The listener counts a block when all of it has gone, and some of it may be here before.
    CHECK(Eventually([&] {
      const auto sent = static_cast<double>(listener->bytes_sent() - before);
      return rate->bytes_per_s * 0.2 * 0.8 <= sent;
    }));
  }
  CHECK(listener->refused() == 0);
}

TEST_CASE("bench-link: what came early counts where nothing came later") {
  const auto listening = ListenTcp("127.0.0.1:0");
  REQUIRE(listening.ok());
  std::thread peer([&] {
    const UniqueFd fd(::accept(listening->get(), nullptr, nullptr));
    char ask[64] = {};
    (void)::recv(fd.get(), ask, sizeof ask, 0);
    (void)::send(fd.get(), ask, sizeof ask, MSG_NOSIGNAL);
  });
  const auto rate = MeasureRate(AddressOf(listening->get()), 1, 1, kPatience);
  peer.join();
  REQUIRE(rate.ok());
  CHECK(rate->bytes_per_s > 0);
}

TEST_CASE("bench-link: a listener sends no byte to what does not ask in its words") {
  const auto listener = Listen({.connections = 64, .first_word = 200ms});
  const std::string magic(kLinkMagic);
  for (const std::string& ask :
       {std::string("GET / HTTP/1.1\r\n\r\n"), magic + std::string("\x03\0\0\0\0", 5),
        magic + std::string("\x02\xff\xff\xff\xff", 5), magic, std::string()}) {
    CHECK(Exchange(AddressOf(*listener), ask).empty());
  }
  CHECK(listener->refused() == 5);
  CHECK(listener->bytes_sent() == 0);
}

TEST_CASE("bench-link: connections above the limit are closed") {
  const auto listener = Listen({.connections = 2, .first_word = 600s});
  const auto first = ConnectTcp(AddressOf(*listener), kPatience);
  const auto second = ConnectTcp(AddressOf(*listener), kPatience);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(Exchange(AddressOf(*listener), "").empty());
  CHECK(listener->refused() == 1);
}

TEST_CASE("bench-link: nobody there, or somebody who says nothing, is an error with the address") {
  std::string gone;
  {
    const auto listener = Listen();
    gone = AddressOf(*listener);
  }
  CHECK(MessageOf(MeasureRoundTrip(gone, 1, kPatience).status()).find(gone) != std::string::npos);
  const auto rate = MeasureRate(gone, 3, 0.1, kPatience);
  REQUIRE_FALSE(rate.ok());
  CHECK(MessageOf(rate.status()).find(gone) != std::string::npos);

  auto mute = ListenTcp("127.0.0.1:0");
  REQUIRE(mute.ok());
  const std::string silent = AddressOf(mute->get());
  const Status status = MeasureRoundTrip(silent, 1, 200ms).status();
  CHECK(MessageOf(status).find(silent) != std::string::npos);
}

TEST_CASE("bench-link: the fewest streams that come near the best rate are the advice") {
  const std::vector<LinkRate> rates = {{1, 40}, {2, 80}, {4, 97}, {8, 100}, {16, 99}};
  CHECK(FewestStreams(rates).streams == 4);
  const std::vector<LinkRate> one = {{8, 0}};
  CHECK(FewestStreams(one).streams == 8);
}

}  // namespace
}  // namespace deltawire::cli::link_meter_test
