// Limits of a control port's connections: how many, and how much each may send before a message is
// whole; over plain sockets, and with gRPC between.
#include "proto/control_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <deque>

#include "proto/control_server.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/tcp.h"

namespace deltawire::testing::control_connections_test {
namespace {

using Catch::Matchers::Contains;

/// A listening port, and connections to it whose other ends somebody else owns.
struct Port {
  Port() : listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    port = Listen(listener.get(), "127.0.0.1", 0);
  }
  struct Pair {
    UniqueFd client, server;
    /// Sends until the server's end has been cut, or so much is sent; returns whether it was cut.
    bool SendUntilCut(size_t bytes) const {
      const std::string block(64 << 10, 'x');
      std::string taken(1 << 20, '\0');
      for (size_t sent = 0; sent < bytes;) {
        const ssize_t n =
            send(client.get(), block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) return true;
        sent += n < 0 ? 0 : static_cast<size_t>(n);
        // Whoever serves the connection reads what comes.
        while (recv(server.get(), taken.data(), taken.size(), MSG_DONTWAIT) > 0) {
        }
      }
      return Cut();
    }
    bool Cut(int wait_ms = 0) const {
      pollfd at{client.get(), POLLRDHUP, 0};
      return poll(&at, 1, wait_ms) == 1;
    }
  };
  Pair Connect() const {
    Pair pair{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), UniqueFd()};
    if (!ConnectHere(pair.client.get(), port)) throw std::runtime_error("connect");
    pair.server.Reset(accept(listener.get(), nullptr, nullptr));
    return pair;
  }
  UniqueFd listener;
  uint16_t port = 0;
};

std::shared_ptr<ControlConnections> Started(const ControlLimits& limits) {
  return Made(ControlConnections::Start("a test", limits));
}

constexpr size_t kMega = size_t{1} << 20;

// Answers with the number of bytes that it got.
class SizeOf final : public v1::SenderService::Service {
  grpc::Status GetStatus(grpc::ServerContext*, const v1::SenderStatusRequest* request,
                         v1::SenderStatusResponse* response) override {
    response->set_program_version(std::to_string(request->model().size()));
    return grpc::Status::OK;
  }
};

std::shared_ptr<grpc::Channel> Dial(int port, const std::string& host = "127.0.0.1") {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(fmt::format("{}:{}", host, port),
                                   grpc::InsecureChannelCredentials(), args);
}

grpc::Status Ask(v1::SenderService::Stub& stub, size_t bytes,
                 grpc_compression_algorithm compressed = GRPC_COMPRESS_NONE) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context.set_compression_algorithm(compressed);
  v1::SenderStatusRequest request;
  request.set_model(std::string(bytes, 'm'));
  v1::SenderStatusResponse response;
  const grpc::Status status = stub.GetStatus(&context, request, &response);
  const bool whole = response.program_version() == std::to_string(bytes);
  return !status.ok() || whole ? status : grpc::Status(grpc::StatusCode::DATA_LOSS, "");
}

}  // namespace

TEST_CASE("control connections: an address and all have a limit, and one that ends makes place") {
  const Port port;
  const auto two = Started({.connections = 100, .connections_per_address = 2});
  std::deque<Port::Pair> pairs;
  for (int i = 0; i < 4; ++i) pairs.push_back(port.Connect());
  CHECK(two->Take(pairs[0].server.get()));
  CHECK(two->Take(pairs[1].server.get()));
  CHECK_FALSE(two->Take(pairs[2].server.get()));
  CHECK(two->refused() == 1);
  // The server closes one, which the kernel announces to nobody.
  pairs[1].server.Reset();
  CHECK(Eventually([&] { return two->Take(pairs[2].server.get()); }));
  CHECK(two->count() == 2);
  // The peer goes, and the server after it.
  pairs[2].client.Reset();
  pairs[2].server.Reset();
  CHECK(Eventually([&] { return two->Take(pairs[3].server.get()); }));

  const auto one = Started({.connections = 1, .connections_per_address = 100});
  CHECK(one->Take(pairs[0].server.get()));
  CHECK_FALSE(one->Take(pairs[3].server.get()));
  // The number of a descriptor is used again.
  const Port::Pair next = port.Connect();
  const int number = pairs[0].server.get();
  pairs[0].server.Reset();
  const UniqueFd same(fcntl(next.server.get(), F_DUPFD_CLOEXEC, number));
  REQUIRE(same.get() == number);
  CHECK(one->Take(number));
}

TEST_CASE("control connections: a second one from the same port does not hide the first") {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const uint16_t port = Listen(listener.get(), "0.0.0.0", 0);
  const auto connect_from = [&](uint16_t from, const std::string& to) {
    Port::Pair pair{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), UniqueFd()};
    const int yes = 1;
    setsockopt(pair.client.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(from);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    REQUIRE(bind(pair.client.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    at.sin_port = htons(port);
    inet_pton(AF_INET, to.c_str(), &at.sin_addr);
    REQUIRE(connect(pair.client.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    pair.server.Reset(accept(listener.get(), nullptr, nullptr));
    return pair;
  };
  const auto limited = Started({.bytes_per_connection = 2 * kMega});
  const Port::Pair first = connect_from(0, "127.0.0.2");
  sockaddr_in own{};
  socklen_t size = sizeof own;
  REQUIRE(getsockname(first.client.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0);
  REQUIRE(limited->Take(first.server.get()));
  {
    const Port::Pair second = connect_from(ntohs(own.sin_port), "127.0.0.3");
    REQUIRE(PeerOf(second.server.get()) == PeerOf(first.server.get()));
    CHECK_FALSE(limited->Take(second.server.get()));
  }
  CHECK(limited->refused() == 1);
  CHECK(first.SendUntilCut(4096 * kMega));
}

TEST_CASE("control connections: without end is cut, with whole messages not") {
  const Port port;
  const auto limited = Started({.bytes_per_connection = 4 * kMega});
  const Port::Pair greedy = port.Connect(), busy = port.Connect(), quiet = port.Connect();
  for (const Port::Pair* pair : {&greedy, &busy, &quiet})
    REQUIRE(limited->Take(pair->server.get()));
  const std::string name = PeerOf(busy.server.get());
  for (int i = 0; i < 64; ++i) {
    REQUIRE_FALSE(busy.SendUntilCut(kMega));
    limited->Whole(name, kMega);
  }
  CHECK_FALSE(quiet.SendUntilCut(2 * kMega));
  CHECK(greedy.SendUntilCut(1024 * kMega));
  CHECK(limited->refused() == 1);
  CHECK_FALSE(busy.Cut(100));
  CHECK_FALSE(quiet.Cut());
  CHECK(limited->count() == 2);
  CHECK(busy.SendUntilCut(1024 * kMega));
}

TEST_CASE("control connections: of one address or of all, the one with the most is cut first") {
  const Port port;
  const bool of_address = GENERATE(true, false);
  ControlLimits limits{.bytes_per_connection = 64 * kMega};
  (of_address ? limits.bytes_per_address : limits.bytes) = 8 * kMega;
  const auto limited = Started(limits);
  std::deque<Port::Pair> pairs;
  for (int i = 0; i < 4; ++i) {
    pairs.push_back(port.Connect());
    REQUIRE(limited->Take(pairs.back().server.get()));
  }
  for (int i = 0; i < 3; ++i) CHECK_FALSE(pairs[static_cast<size_t>(i)].SendUntilCut(kMega));
  CHECK(pairs[3].SendUntilCut(1024 * kMega));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(pairs[static_cast<size_t>(i)].Cut(50));
}

TEST_CASE("control connections: a request that does not come whole in time is cut") {
  const Port port;
  const auto limited = Started({.until_whole = std::chrono::milliseconds(500)});
  const Port::Pair slow = port.Connect(), whole = port.Connect(), small = port.Connect();
  for (const Port::Pair* pair : {&slow, &whole, &small}) REQUIRE(limited->Take(pair->server.get()));
  for (const Port::Pair* pair : {&slow, &whole}) CHECK_FALSE(pair->SendUntilCut(kMega));
  CHECK_FALSE(small.SendUntilCut(kMega / 8));
  limited->Whole(PeerOf(whole.server.get()), kMega);
  CHECK(slow.Cut(60000));
  CHECK_FALSE(whole.Cut(1000));
  CHECK_FALSE(small.Cut());
  CHECK(limited->refused() == 1);
}

TEST_CASE("control connections: peers have the names that gRPC gives them") {
  const Port port;
  const Port::Pair pair = port.Connect();
  CHECK_THAT(PeerOf(pair.server.get()), Contains("ipv4:127.0.0.1:"));
  CHECK(PeerOf(port.listener.get()) == "");
  CHECK(Unescaped("ipv6:%5B::1%5D:80") == "ipv6:[::1]:80");
  CHECK(Unescaped("ipv6:%5Bfe80::1%252%5D:80") == "ipv6:[fe80::1%2]:80");
  CHECK(Unescaped("ipv4:1.2.3.4:80%") == "ipv4:1.2.3.4:80%");
}

TEST_CASE("control connections: calls go on without end on one connection, and giants do not") {
  // gRPC names the peers of these in three ways. A name that was not found would count whole
  // messages as if they never were.
  const auto [listen, host] = GENERATE(table<std::string, std::string>(
      {{"127.0.0.1:0", "127.0.0.1"}, {"[::1]:0", "[::1]"}, {"[::]:0", "127.0.0.1"}}));
  CAPTURE(listen);
  SizeOf service;
  const auto access = Access::Open();
  auto started =
      ControlServer::Start(listen, {&service}, *access, {.bytes_per_connection = 4 * kMega});
  if (!started.ok() && listen.front() == '[') {
    std::puts("SKIPPED: no IPv6 here");
    return;
  }
  const auto server = Made(std::move(started));
  const auto stub = v1::SenderService::NewStub(Dial(server->port(), host));
  for (int i = 0; i < 40; ++i) REQUIRE(Ask(*stub, kMega / 2).ok());  // 20 MiB
  CHECK(Ask(*stub, 2 * kMega).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(server->refused() == 0);
  // gRPC itself would take all of it into memory first.
  const grpc::Status giant = Ask(*stub, 512 * kMega);
  CHECK(giant.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(server->refused() == 1);
  const auto again = v1::SenderService::NewStub(Dial(server->port(), host));
  CHECK(Ask(*again, kMega / 2).ok());
}

TEST_CASE("control connections: a compressed request, which could be a bomb, is refused") {
  SizeOf service;
  const auto access = Access::Open();
  const auto server = Made(ControlServer::Start("127.0.0.1:0", {&service}, *access));
  const auto stub = v1::SenderService::NewStub(Dial(server->port()));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    CHECK(Ask(*stub, 256 * kMega, algorithm).error_code() == grpc::StatusCode::UNIMPLEMENTED);
  }
  CHECK(Ask(*stub, kMega / 2).ok());
}

}  // namespace deltawire::testing::control_connections_test
