// Senders that are given by name: lookups that hang, names of several addresses, and the system's
// resolver, over loopback.
#include "common/net/host_lookup.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/net/pull_rig.h"

namespace deltawire::net::host_lookup_test {
namespace {

using Clock = std::chrono::steady_clock;
using testing::Eventually;

/// A resolver that answers when it is let go. The thread that it hangs on outlives the pull.
struct Hanging {
  std::atomic<int> asked{0};
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
};

ResolveHost ResolverOf(const std::shared_ptr<Hanging>& hanging) {
  return [hanging](const std::string&) -> StatusOr<std::vector<std::string>> {
    ++hanging->asked;
    hanging->released.wait();
    return std::vector<std::string>{"127.0.0.1"};
  };
}

PullTarget Named(const Rig& rig, std::chrono::milliseconds timeout) {
  PullTarget target = rig.Target(4, timeout);
  target.host = "sender.example";
  return target;
}

}  // namespace

TEST_CASE("a lookup that hangs ends with the pull's Cancel, or at the stream timeout") {
  const bool cancelled = GENERATE(false, true);
  CAPTURE(cancelled);
  const auto hanging = std::make_shared<Hanging>();
  Rig rig(5, Fault::kNone);
  PullClient client(rig.io, Named(rig, cancelled ? 600s : 1s), ResolverOf(hanging));
  std::thread canceller([&] {
    (void)Eventually([&] { return hanging->asked > 0; });
    if (cancelled) client.Cancel();
  });
  const auto start = Clock::now();
  const Status status = client.Run(rig.MakeHave(), rig.sink).status();
  CHECK(Clock::now() - start < 60s);
  canceller.join();
  CHECK(status.code() == (cancelled ? StatusCode::kCancelled : StatusCode::kDeadlineExceeded));
  CHECK((MessageOf(status).find("sender.example") != std::string_view::npos) == !cancelled);
  CHECK(hanging->asked == 1);  // for all four streams
  // A pull from an address in numbers asks no resolver, so it is not held up.
  PullClient numeric(rig.io, rig.Target(4), ResolverOf(hanging));
  CHECK(numeric.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
  CHECK(hanging->asked == 1);
  hanging->release.set_value();
}

TEST_CASE("each address of a name is tried in turn") {
  Rig rig(20, Fault::kNone);
  // Nobody listens at the first one, and the second is no address at all.
  PullClient client(rig.io, Named(rig, 10s), [](const std::string&) {
    return std::vector<std::string>{"127.0.0.2", "nonsense", "127.0.0.1"};
  });
  CHECK(client.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
  CHECK(rig.sink.finished == 20);
  PullClient lost(rig.io, Named(rig, 10s),
                  [](const std::string&) { return std::vector<std::string>{}; });
  const Status status = lost.Run(rig.MakeHave(), rig.sink).status();
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(MessageOf(status).find("sender.example") != std::string_view::npos);
}

TEST_CASE("the system's resolver knows this machine") {
  const auto found = AddressesOf("localhost");
  REQUIRE(found.ok());
  const auto loopback = [](const std::string& address) {
    return address == "127.0.0.1" || address == "::1";
  };
  CHECK(!found->empty());
  CHECK(std::all_of(found->begin(), found->end(), loopback));
}

}  // namespace deltawire::net::host_lookup_test
