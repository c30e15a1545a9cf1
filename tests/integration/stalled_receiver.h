// A receiver that is stopped while a stream's send of the sender waits for it, and a trainer that
// publishes all the same. Owner: the test case. Threads: one.
#pragma once

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/daemons.h"

namespace deltawire::testing {

class StalledReceiver {
 public:
  static constexpr double kGrace = 0.25;  // seconds

  explicit StalledReceiver(uint64_t seed) : trainer_(sender_.socket(), kModel, 128, seed) {
    REQUIRE(trainer_.Publish(1).status() == absl::OkStatus());
    receiver_.emplace(root_.path(), "r1", sender_.control(), kModel,
                      std::vector<std::string>{"--streams", "1"});
    // The rate leaves half a second to stop it within the pull. So much has come in time by then
    // that frames are sent straight from the half: those of a slow link are copies, and hold up
    // nobody.
    REQUIRE(Eventually([&] { return receiver_->Status().bytes_done() > 32 << 20; }));
    receiver_->child().Signal(SIGSTOP);
    // The kernel's buffers fill, and then nothing is sent for far longer than a frame takes.
    auto sent = sender_.Status(kModel).bytes_sent();
    auto since = std::chrono::steady_clock::now();
    REQUIRE(Eventually([&] {
      const auto now = std::chrono::steady_clock::now();
      if (const auto s = sender_.Status(kModel).bytes_sent(); s != sent) {
        sent = s;
        since = now;
      }
      return now - since > std::chrono::seconds(1);
    }));
    REQUIRE(sent < sender_.Status(kModel).model_bytes());
  }

  void Publish() {
    trainer_.Step();
    const auto published = trainer_.Publish(++version_);
    REQUIRE(published.status() == absl::OkStatus());
    longest_ = std::max(longest_, published->trainer_wait_seconds);
  }

  /// Whether the trainer met the stopped stream. A frame that was late, on a busy machine, makes
  /// the next ones copies.
  bool was_cut() { return sender_.Status(kModel).pulls_cut() > 0; }

  /// Checks what the trainer waited, lets the receiver go on, and checks what it commits. `slack`:
  /// seconds beyond the grace, for scheduling.
  void Check(double slack) {
    WARN("longest trainer's wait with a stopped receiver: " << longest_ << " s over " << version_
                                                            << " versions, grace " << kGrace);
    CHECK(was_cut());
    CHECK(longest_ > kGrace / 2);  // it did wait for the stopped stream
    CHECK(longest_ <= kGrace + slack);
    receiver_->child().Signal(SIGCONT);
    INFO(ReadText(receiver_->log()));
    REQUIRE(receiver_->WaitCommitted(version_));
    CHECK(trainer_.Compare(receiver_->dir()) == "");
  }

 private:
  static constexpr const char* kModel = "m";
  ShmDir root_;
  SenderProcess sender_{root_.path(), {"--rate-limit", "receiver:160MiB"}};
  Trainer trainer_;
  std::optional<ReceiverProcess> receiver_;
  uint64_t version_ = 1;
  double longest_ = 0;
};

}  // namespace deltawire::testing
