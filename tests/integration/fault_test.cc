// Seeded faults on the way between a sender and a receiver, one after the other: wrong bytes are
// never committed, and within a bound after each fault the receiver is at the newest version.
// The environment's DELTAWIRE_FAULTS is the number of faults, and DELTAWIRE_SEED draws others. For
// a hundred thousand faults, a hundred processes cause 1,000 each, with a seed of their own.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "tests/support/daemons.h"
#include "tests/support/fault_proxy.h"

namespace deltawire::testing::fault_test {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr const char* kModel = "m";
constexpr auto kStale = 5s;

#ifdef DELTAWIRE_LONG
constexpr uint64_t kFaults = 1000;
#else
constexpr uint64_t kFaults = 40;
#endif

/// The number in the environment's variable `name`, if it is set.
uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const said = std::getenv(name);
  return said == nullptr ? otherwise : std::stoull(said);
}

uint16_t PortIn(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

struct Tally {
  uint64_t happened = 0, armed = 0;
  std::chrono::duration<double> longest{};
};

/// Publishes a version per fault, with the fault armed, until kFaults have happened, or as many as
/// the environment says. Some are armed for a place that the traffic of a version does not reach.
/// After each the receiver must be at that version within kStale, byte for byte.
Tally Torture(FaultProxy& proxy, SenderProcess& sender, ReceiverProcess& receiver, Trainer& trainer,
              uint64_t span, std::mt19937_64& random) {
  const uint64_t wanted = FromEnvironment("DELTAWIRE_FAULTS", kFaults);
  Tally tally;
  for (uint64_t i = 0; tally.happened < wanted; ++i) {
    REQUIRE(i < 2 * wanted);
    const Fault fault = Fault::Draw(random, span);
    const uint64_t version = i + 2;
    INFO("fault " << i << ": " << ToString(fault));
    proxy.Arm(fault);
    ++tally.armed;
    trainer.Step(0.001);
    REQUIRE(trainer.Publish(version).status() == absl::OkStatus());
    // Waits until the fault has happened, or until the version is committed without meeting it.
    const auto committed = [&] { return receiver.Status().committed().version() >= version; };
    CHECK(Eventually([&] { return proxy.happened() || committed(); }, 30s));
    tally.happened += proxy.Disarm();
    const auto ended = Clock::now();
    const bool in_time = Eventually(committed, kStale);
    INFO(ReadText(receiver.log()) << ReadText(sender.log()));
    INFO("the receiver says: " << receiver.Status().ShortDebugString());
    REQUIRE(in_time);
    tally.longest = std::max<std::chrono::duration<double>>(tally.longest, Clock::now() - ended);
    REQUIRE(trainer.Compare(receiver.dir()) == "");
  }
  CHECK(sender.child().Running());
  CHECK(receiver.child().Running());
  return tally;
}

}  // namespace

TEST_CASE("faults on the bulk port never commit wrong bytes nor leave a receiver behind") {
  const uint64_t seed = FromEnvironment("DELTAWIRE_SEED", 0xB01C);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  ShmDir root;
  SenderProcess sender(root.path(),
                       {"--advertise-host", FaultProxy::kHost, "--stream-timeout-ms", "2000"});
  FaultProxy proxy(sender.bulk_port());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel,
                           {"--stream-timeout-ms", "2000"});
  Trainer trainer(sender.socket(), kModel, 1, seed);
  REQUIRE(trainer.Publish(1).status() == absl::OkStatus());
  REQUIRE(receiver.WaitCommitted(1));
  const Tally tally = Torture(proxy, sender, receiver, trainer, 16 << 10, random);
  WARN("bulk port: " << tally.happened << " faults of " << tally.armed << ", committed at most "
                     << tally.longest.count() << " s after one");
}

TEST_CASE("faults on the control port never commit wrong bytes nor leave a receiver behind") {
  const uint64_t seed = FromEnvironment("DELTAWIRE_SEED", 0xC041);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  ShmDir root;
  SenderProcess sender(root.path(), {"--advertise-host", "127.0.0.1"});
  const uint16_t port = PortIn(sender.control());
  FaultProxy proxy(port);
  ReceiverProcess receiver(root.path(), "r1", fmt::format("{}:{}", FaultProxy::kHost, port), kModel,
                           {"--insecure-plaintext"});
  Trainer trainer(sender.socket(), kModel, 1, seed);
  REQUIRE(trainer.Publish(1).status() == absl::OkStatus());
  REQUIRE(receiver.WaitCommitted(1));
  const Tally tally = Torture(proxy, sender, receiver, trainer, 1 << 10, random);
  WARN("control port: " << tally.happened << " faults of " << tally.armed << ", committed at most "
                        << tally.longest.count() << " s after one");
}

}  // namespace deltawire::testing::fault_test
