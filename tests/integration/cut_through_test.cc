// Relays that pass a version on while it is still coming to themselves: real daemons, real sockets,
// real SIGKILLs. That a leaf is ahead of its relay's commit is told by their own counters.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/support/fault_proxy.h"
#include "tests/support/http_get.h"
#include "tests/support/relays.h"

namespace deltawire::testing::cut_through_test {
namespace {

/// A sender whose link is slow, a relay, and a leaf whose second upstream is the sender.
struct Scene {
  explicit Scene(uint64_t seed, std::vector<std::string> of_sender = {"--rate-limit", "10MB"},
                 std::vector<std::string> of_relay = {}, size_t megabytes = 24)
      : metrics(FreePort()),
        sender(root.path(), std::move(of_sender)),
        trainer(sender.socket(), kModel, megabytes, seed),
        relay(root.path(), "relay", sender.control(), kModel, ShownServing(std::move(of_relay))),
        leaf(root.path(), "leaf", relay.control() + "," + sender.control(), kModel) {}

  /// A relay's arguments, with its metrics.
  std::vector<std::string> ShownServing(std::vector<std::string> more) const {
    more.insert(more.end(), {"--metrics-listen", fmt::format("127.0.0.1:{}", metrics)});
    return Serving(more);
  }
  uint32_t chunks() const { return ChunksOf(trainer); }
  /// Waits until the leaf holds some chunks of `version`, which its relay has not committed.
  void LeafIsAhead(uint64_t version, uint32_t at_least) {
    bool ahead = false;
    REQUIRE(Eventually([&] {
      if (Arrived(leaf, version) < at_least) return false;
      ahead = relay.Status().committed().version() < version;
      return true;
    }));
    REQUIRE(ahead);
    REQUIRE(Arrived(leaf, version) < chunks());
  }
  bool Follows(ReceiverProcess& receiver) { return testing::Follows(sender, receiver); }
  /// Both hold what was published, and the leaf has never left its relay.
  void BothFollow() {
    REQUIRE(Follows(relay));
    REQUIRE(Follows(leaf));
    CHECK(trainer.Compare(relay.dir()) == "");
    CHECK(trainer.Compare(leaf.dir()) == "");
    INFO(leaf.log());
    CHECK_FALSE(Says(leaf, "from " + relay.control() + " to "));
  }
  uint64_t ahead() const {
    const std::string name = "\ndeltawire_receiver_relay_bytes_ahead_total{model=\"m\"} ";
    const std::string all = HttpGet(metrics, "/metrics");
    const size_t at = all.find(name);
    REQUIRE(at != std::string::npos);
    return static_cast<uint64_t>(std::stod(all.substr(at + name.size())));
  }

  ShmDir root;
  const uint16_t metrics;
  SenderProcess sender;
  Trainer trainer;
  ReceiverProcess relay, leaf;
};

}  // namespace

TEST_CASE("a whole model goes on while the relay's own pull of it runs") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(201, {"--rate-limit", "10MB"}, {"--buffers", buffers});
  REQUIRE(s.trainer.Publish(1).ok());
  s.LeafIsAhead(1, 3);
  s.BothFollow();
  CHECK(s.ahead() > 0);
  // The sender's link was crossed once.
  CHECK(s.sender.Status(kModel).bytes_sent() == s.trainer.layout().total_bytes());
  CHECK(ReadText(s.leaf.dir() / "config.json") == ReadText(s.relay.dir() / "config.json"));
  CHECK_FALSE(Says(s.leaf, "did not come"));
}

TEST_CASE("deltas go on as they came, before the relay has committed them") {
  const std::string codec = GENERATE("fast", "tight");
  CAPTURE(codec);
  // A leaf brings its hidden file up before it takes what is still being written, so that it may
  // come to that when the relay has committed it.
  Scene s(202, {"--rate-limit", "20MB", "--codec", codec, "--early", "diff"}, {"--buffers", "2"});
  REQUIRE(s.trainer.Publish(1).ok());
  s.BothFollow();
  for (uint64_t version = 2; version <= 5; ++version) {
    const uint64_t before = s.ahead();
    s.trainer.Step(0.05);
    REQUIRE(s.trainer.Publish(version).ok());
    s.BothFollow();
    const auto pull = s.leaf.Status().last_pull();
    const auto of_relay = s.relay.Status().last_pull();
    CHECK(pull.chunks_full() == of_relay.chunks_full());
    CHECK(pull.chunks_delta() == of_relay.chunks_delta());
    CHECK(pull.chunks_tight() == of_relay.chunks_tight());
    CHECK(pull.history_chunks() == of_relay.history_chunks());
    // Byte by byte the payloads that the sender has encoded.
    CHECK(pull.payload_bytes() == of_relay.payload_bytes());
    CHECK(s.ahead() - before == pull.payload_bytes());
  }
  CHECK_FALSE(Says(s.leaf, "did not come"));
}

TEST_CASE("a version goes on through a chain of relays while it comes to the first of them") {
  Scene s(203);
  ReceiverProcess second(s.root.path(), "second", s.relay.control(), kModel, Serving());
  ReceiverProcess end(s.root.path(), "end", second.control(), kModel);
  REQUIRE(s.trainer.Publish(1).ok());
  bool ahead = false;
  REQUIRE(Eventually([&] {
    if (Arrived(end, 1) < 2) return false;
    ahead = s.relay.Status().committed().version() == 0;
    return true;
  }));
  CHECK(ahead);
  REQUIRE(s.Follows(end));
  CHECK(s.trainer.Compare(end.dir()) == "");
  s.BothFollow();
}

TEST_CASE("the sender dies in the middle of the relay's pull, and the leaf stays at its relay") {
  Scene s(204);
  REQUIRE(s.trainer.Publish(1).ok());
  s.LeafIsAhead(1, 3);
  s.sender.Restart();
  s.BothFollow();
  // What had come to the leaf was not fetched again.
  CHECK(s.leaf.Status().last_pull().chunks_full() <= s.chunks() - 3);
}

TEST_CASE("the relay dies while it passes a version on, and the leaf goes on where it was") {
  Scene s(205);
  REQUIRE(s.trainer.Publish(1).ok());
  s.LeafIsAhead(1, 3);
  s.relay.Restart();
  REQUIRE(s.Follows(s.relay));
  REQUIRE(s.Follows(s.leaf));
  CHECK(s.trainer.Compare(s.leaf.dir()) == "");
  CHECK(s.leaf.Status().last_pull().chunks_full() <= s.chunks() - 3);
}

TEST_CASE("a publish overtakes what the relay passes on, and all end in the newer version") {
  const uint64_t seed = GENERATE(206u, 207u, 208u);
  Scene s(seed);
  REQUIRE(s.trainer.Publish(1).ok());
  s.LeafIsAhead(1, 3);
  for (uint64_t version = 2; version <= 4; ++version) {
    s.trainer.Step();
    REQUIRE(s.trainer.Publish(version).ok());
  }
  s.BothFollow();
}

TEST_CASE("bytes that were damaged on the way to the relay do not reach its leaves") {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Scene s(210 + seed, {"--advertise-host", FaultProxy::kHost, "--rate-limit", "20MB"});
    FaultProxy proxy(s.sender.bulk_port());
    proxy.Arm({.kind = Fault::Kind::kFlip, .offset = 100'000 + random() % 15'000'000});
    REQUIRE(s.trainer.Publish(1).ok());
    REQUIRE(s.Follows(s.relay));
    REQUIRE(s.Follows(s.leaf));
    CHECK(proxy.Disarm());
    CHECK(s.trainer.Compare(s.leaf.dir()) == "");
    CHECK_FALSE(Says(s.leaf, "came whole with other bytes"));
    CHECK_FALSE(Says(s.leaf, "do not make up"));
  }
}

TEST_CASE("a relay that is stopped in the middle of its pull leaves its leaf to the sender") {
  Scene s(220);
  REQUIRE(s.trainer.Publish(1).ok());
  s.LeafIsAhead(1, 3);
  s.relay.child().Signal(SIGTERM);
  CHECK(s.relay.child().Wait(std::chrono::seconds(10)) == 0);
  REQUIRE(s.Follows(s.leaf));
  CHECK(s.trainer.Compare(s.leaf.dir()) == "");
  CHECK(s.leaf.Status().last_pull().chunks_full() <= s.chunks() - 3);
}

}  // namespace deltawire::testing::cut_through_test
