// A receiver behind a slow link commits in bounded time, however fast versions are published.
#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/daemons.h"
#include "tests/support/proxy.h"

namespace deltawire::testing::progress_test {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr const char* kModel = "m";
constexpr uint64_t kRate = 4'000'000;
constexpr std::chrono::milliseconds kStep{300};
constexpr int kCommits = 4;

}  // namespace

TEST_CASE("a slow link commits at least every second sweep, whatever the trainer does") {
  ShmDir root;
  SenderProcess sender(root.path(), {"--advertise-host", Proxy::kHost});
  Trainer trainer(sender.socket(), kModel, 8, 61);
  REQUIRE(trainer.Publish(1).ok());
  const Seconds sweep(static_cast<double>(trainer.layout().total_bytes()) / kRate);
  Proxy proxy(sender.bulk_port());
  proxy.set_rate(kRate);
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);

  uint64_t version = 1, committed = 0;
  int commits = 0;
  Seconds longest{0};
  double waited = 0;
  const auto start = Clock::now();
  auto last = start;
  while (commits < kCommits && Clock::now() - start < std::chrono::seconds(60)) {
    const auto step_ends = Clock::now() + kStep;
    trainer.Step(0.02);
    const auto published = trainer.Publish(++version);
    REQUIRE(published.status() == absl::OkStatus());
    waited = std::max(waited, published->trainer_wait_seconds);
    const auto status = receiver.Status();
    if (status.committed().version() != committed) {
      committed = status.committed().version();
      ++commits;
      longest = std::max(longest, Seconds(Clock::now() - last));
      last = Clock::now();
    }
    // Until then the trainer computes its next step.
    std::this_thread::sleep_until(step_ends);
  }
  WARN("one sweep takes " << sweep.count() << " s; longest time to a commit " << longest.count()
                          << " s with " << version << " versions; the trainer waited " << waited
                          << " s at most");
  INFO(ReadText(sender.log()) << ReadText(receiver.log()));
  CHECK(commits == kCommits);
  // The bound adds time for dialling, for applying and between two looks at the status, on a
  // machine that does other work too.
  CHECK(longest < 2 * sweep + Seconds(2.5));
  CHECK(sender.Status(kModel).pulls_cut() == 0);
  proxy.set_rate(0);
  REQUIRE(receiver.WaitCommitted(version));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

}  // namespace deltawire::testing::progress_test
