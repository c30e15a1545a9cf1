// Streams that connect before the pull is granted: the ticket comes later, or not at all.
#include <atomic>
#include <catch2/catch.hpp>

#include "tests/support/eventually.h"
#include "tests/unit/net/pull_rig.h"

namespace deltawire::net::connect_ahead_test {
namespace {

using namespace std::chrono_literals;
using testing::Eventually;

wire::Ticket Granted() {
  wire::Ticket ticket{};
  ticket.fill(std::byte{7});
  return ticket;
}

TEST_CASE("connecting ahead: the streams are there before the ticket, and show it then") {
  Rig rig(20, Fault::kNone);
  std::atomic<int> right{0};
  rig.source.admits = [&](const wire::Hello& hello, const StreamPeer&) -> Status {
    right += hello.ticket == Granted();
    return {};
  };
  PullClient client(rig.io, rig.Target(4));
  client.Connect();
  REQUIRE(Eventually([&] { return rig.server->connections() == 4; }));
  CHECK(right == 0);
  client.SetTicket(Granted());
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CAPTURE(end.status().ToString());
  REQUIRE(end.ok());
  CHECK(right == 4);
  CHECK(rig.sink.finished == 20);
}

TEST_CASE("connecting ahead: a pull that is not granted leaves no connection") {
  Rig rig(20, Fault::kNone);
  {
    PullClient client(rig.io, rig.Target(4));
    client.Connect();
    REQUIRE(Eventually([&] { return rig.server->connections() == 4; }));
  }
  CHECK(Eventually([&] { return rig.server->connections() == 0; }));
  PullClient cancelled(rig.io, rig.Target(4));
  cancelled.Connect();
  cancelled.Cancel();
  CHECK(absl::IsCancelled(cancelled.Run(rig.MakeHave(), rig.sink).status()));
  CHECK(Eventually([&] { return rig.server->connections() == 0; }));
}

TEST_CASE("connecting ahead: what failed is dialled again") {
  Rig rig(20, Fault::kNone);
  PullTarget target = rig.Target(2);
  rig.server->Stop();
  rig.server.reset();
  IoThreads one{1};
  PullClient client(one, target);
  client.Connect();
  // On the only thread the refusals of these streams come before those of a second pull.
  PullClient later(one, target);
  REQUIRE_FALSE(later.Run(rig.MakeHave(), rig.sink).ok());
  auto again = PullServer::Listen(rig.io, "127.0.0.1", target.port, rig.source, {});
  REQUIRE(again.ok());
  rig.server = std::move(*again);
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CAPTURE(end.status().ToString());
  CHECK(end.ok());
  CHECK(rig.sink.finished == 20);
}

TEST_CASE("connecting ahead: a host that is a name waits for Run") {
  Rig rig(5, Fault::kNone);
  PullTarget target = rig.Target(2);
  target.host = "localhost";
  PullClient client(rig.io, target, [](const std::string&) -> StatusOr<std::vector<std::string>> {
    return std::vector<std::string>{"127.0.0.1"};
  });
  client.Connect();
  CHECK(client.Run(rig.MakeHave(), rig.sink).ok());
  CHECK(rig.sink.finished == 5);
}

}  // namespace
}  // namespace deltawire::net::connect_ahead_test
