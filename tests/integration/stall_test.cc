// Receivers that stop reading or fall behind: the trainer waits no longer than the grace, and the
// receivers catch up.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/support/daemons.h"

namespace deltawire::testing::stall_test {
namespace {

constexpr const char* kModel = "m";
constexpr double kGrace = 0.25;
// The daemon enforces the grace itself; the slack is for scheduling on a loaded machine.
constexpr double kSlack = 0.05;

// Publishes versions first..last while the receiver is stopped; returns the trainer's longest wait.
double LongestWait(Trainer& trainer, uint64_t first, uint64_t last) {
  double longest = 0;
  for (uint64_t v = first; v <= last; ++v) {
    trainer.Step();
    const auto published = trainer.Publish(v);
    REQUIRE(published.status() == absl::OkStatus());
    longest = std::max(longest, published->trainer_wait_seconds);
  }
  return longest;
}

}  // namespace

TEST_CASE("a receiver stopped in the middle of a full pull does not hold up the trainer") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 128, 21);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  REQUIRE(Eventually([&] { return receiver.Status().bytes_done() > 0; }));
  receiver.child().Signal(SIGSTOP);
  const double longest = LongestWait(trainer, 2, 6);
  CHECK(longest <= kGrace + kSlack);
  WARN("longest trainer's wait with a stopped receiver: " << longest << " s, grace " << kGrace);
  receiver.child().Signal(SIGCONT);
  INFO(ReadText(receiver.log()));
  REQUIRE(receiver.WaitCommitted(6));
  CHECK(trainer.Compare(receiver.dir()) == "");
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
