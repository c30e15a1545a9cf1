// Receivers that stop reading or fall behind: the trainer waits no longer than the grace, and the
// receivers catch up.
#include <catch2/catch.hpp>

#include "tests/integration/stalled_receiver.h"
#include "tests/support/daemons.h"

namespace deltawire::testing::stall_test {
namespace {

constexpr const char* kModel = "m";

}  // namespace

TEST_CASE("a receiver stopped in the middle of a full pull does not hold up the trainer") {
  for (uint64_t seed = 21; seed < 51; ++seed) {
    StalledReceiver stalled(seed);
    for (int n = 0; n < 5; ++n) stalled.Publish();
    if (!stalled.was_cut()) continue;
    // Other tests run beside it; the long form keeps to the promise.
    return stalled.Check(2);
  }
  FAIL("none of thirty receivers was stopped in the middle of a frame");
}

TEST_CASE("a pull that publishes keep overtaking ends at the newest version") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 64, 22);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  for (uint64_t v = 2; v <= 8; ++v) {
    trainer.Step(0.002);
    REQUIRE(trainer.Publish(v).status() == absl::OkStatus());
  }
  REQUIRE(receiver.WaitCommitted(8));
  CHECK(trainer.Compare(receiver.dir()) == "");
  CHECK(sender.Status(kModel).active_pulls() == 0);
}

}  // namespace deltawire::testing::stall_test
