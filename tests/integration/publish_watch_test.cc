// `deltawire publish --watch` against a real sender: checkpoints that change while they are read or
// after they were published, and versions that were rolled back from.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/integration/tool_run.h"

namespace deltawire::testing::publish_watch_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "m";

struct Scene {
  Scene() {
    fs::create_directories(parent);
    AwaitSender();
  }
  // The tool would give up at once if the sender did not listen yet.
  void AwaitSender() {
    REQUIRE(Eventually(
        [&] { return fs::exists(sender.socket()) && Has(ReadText(sender.log()), "trainers at"); }));
  }
  std::unique_ptr<Tool> Watch(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"publish", parent.string(), "--watch",      "--model",
                                     kModel,    "--socket",      sender.socket()};
    args.insert(args.end(), more.begin(), more.end());
    return std::make_unique<Tool>(root.path(), args);
  }
  fs::path Step(uint64_t step) const { return parent / fmt::format("step-{}", step); }
  v1::SenderModelStatus Model() {
    v1::SenderStatusResponse response;
    grpc::ClientContext context;
    (void)sender.orchestrator().GetStatus(&context, v1::SenderStatusRequest(), &response);
    return response.models_size() == 0 ? v1::SenderModelStatus() : response.models(0);
  }
  bool Published(uint64_t epoch, uint64_t version) {
    return Eventually([&] {
      const v1::Identity id = Model().newest().id();
      return id.epoch() == epoch && id.version() == version;
    });
  }

  ShmDir root;
  SenderProcess sender{root.path()};
  const fs::path parent = root.path() / "checkpoints";
};

}  // namespace

TEST_CASE("publish --watch: a restart does not undo a rollback, and --again does") {
  Scene s;
  const Checkpoint one(s.Step(1), 2, 1 << 20, 'a');
  auto watch = s.Watch();
  REQUIRE(s.Published(1, 1));
  const Checkpoint two(s.Step(2), 2, 1 << 20, 'b');
  REQUIRE(s.Published(1, 2));
  watch->child().Kill();
  REQUIRE(s.sender.Rollback(kModel, 1).ok());
  // The sender knows it after a restart too.
  s.sender.Restart();
  REQUIRE(s.Published(2, 1));
  watch = s.Watch();
  const bool said =
      Eventually([&] { return Has(watch->Said(), "step-2: skipped: the sender rolled back"); });
  INFO(watch->Said());
  REQUIRE(said);
  CHECK(Has(watch->Said(), "from version 2 to version 1 (epoch 2); --again publishes it again"));
  const Checkpoint three(s.Step(3), 2, 1 << 20, 'c');
  REQUIRE(s.Published(2, 3));
  watch->child().Kill();
  REQUIRE(s.sender.Rollback(kModel, 1).ok());
  watch = s.Watch({"--again"});
  INFO(watch->Said());
  REQUIRE(s.Published(3, 3));
}

TEST_CASE("publish --watch: a checkpoint that changes after its publish is published again") {
  Scene s;
  ReceiverProcess receiver(s.root.path(), "r", s.sender.control(), kModel);
  const Checkpoint one(s.Step(1), 2, 1 << 20, 'a');
  const auto watch = s.Watch();
  REQUIRE(s.Published(1, 1));
  // The writer had allocated its file, and goes on to fill it after a pause.
  REQUIRE(one.Overwrite('b') == 0);
  const bool corrected = s.Published(2, 1);
  INFO(watch->Said());
  REQUIRE(corrected);
  CHECK(Has(watch->Said(), "its files have changed since version 1 was published"));
  CHECK(Eventually([&] { return Fills(receiver.dir()) == "b"; }));
  // The small files come last.
  WriteFile(one.dir / "config.json", "{}");
  REQUIRE(s.Published(3, 1));
  CHECK(Eventually([&] { return ReadText(receiver.dir() / "config.json") == "{}"; }));
  // Files that no receiver gets are no change.
  WriteFile(one.dir / "optimizer.pt", "o");
  const Checkpoint two(s.Step(2), 2, 1 << 20, 'c');
  REQUIRE(s.Published(3, 2));
}

TEST_CASE("publish --watch: a checkpoint that changed while it was read is tried again") {
  Scene s;
  const auto watch = s.Watch();
  bool caught = false;
  for (uint64_t step = 1; step < 20 && !caught; ++step) {
    CAPTURE(step);
    const Checkpoint next(s.Step(step), 64, 2 << 20);
    REQUIRE(Eventually([&] {
      return s.Model().offloading_version() == step || s.Model().newest().id().version() == step;
    }));
    REQUIRE(next.Overwrite('b') == 0);
    const bool published = Eventually([&] { return s.Model().newest().id().version() == step; });
    INFO(watch->Said());
    REQUIRE(published);
    caught = Has(watch->Said(), "not published yet");
  }
  CHECK(caught);
}

}  // namespace deltawire::testing::publish_watch_test
