// The long form of stall_test.cc: a receiver that stops reading for thirty seconds.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/support/daemons.h"

namespace deltawire::testing::stall_long_test {

TEST_CASE("thirty seconds of SIGSTOP cost the trainer no more than the grace") {
  constexpr const char* kModel = "m";
  constexpr double kGrace = 0.25;
  constexpr double kSlack = 0.05;  // scheduling on a loaded machine
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 64, 23);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  REQUIRE(Eventually([&] { return receiver.Status().bytes_done() > 0; }));
  receiver.child().Signal(SIGSTOP);
  const auto start = std::chrono::steady_clock::now();
  uint64_t version = 1;
  double longest = 0;
  while (std::chrono::steady_clock::now() - start < std::chrono::seconds(30)) {
    trainer.Step();
    const auto published = trainer.Publish(++version);
    REQUIRE(published.status() == absl::OkStatus());
    longest = std::max(longest, published->trainer_wait_seconds);
  }
  CHECK(longest <= kGrace + kSlack);
  WARN("longest trainer's wait in 30 s of SIGSTOP: " << longest << " s over " << version
                                                     << " versions, grace " << kGrace << " s");
  receiver.child().Signal(SIGCONT);
  REQUIRE(receiver.WaitCommitted(version));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

}  // namespace deltawire::testing::stall_long_test
