// Receivers that serve other receivers: real daemons, real sockets, real SIGKILLs. Every leaf's
// bytes are compared with the trainer's, and its names with the sender's.
#include <signal.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/bad_memory.h"
#include "tests/support/certificates.h"
#include "tests/support/http_get.h"
#include "tests/support/relays.h"

namespace deltawire::testing::relay_test {
namespace {

/// A sender and its trainer, and a relay, which has the sender's first version once it is
/// published.
struct Relayed {
  Relayed(uint64_t seed, size_t megabytes, const std::vector<std::string>& of_relay = {})
      : sender(root.path()),
        trainer(sender.socket(), kModel, megabytes, seed),
        relay(root.path(), "relay", sender.control(), kModel, Serving(of_relay)) {}
  void Publish(uint64_t version) { REQUIRE(trainer.Publish(version).ok()); }
  void Step(uint64_t version) {
    trainer.Step();
    Publish(version);
  }
  /// The first version, until the relay has it.
  void Begin(uint64_t version = 1) {
    Publish(version);
    REQUIRE(Follows(sender, relay));
  }
  /// A sender without its files begins a new lineage.
  void BeginAnew() {
    sender.child().Kill();
    std::filesystem::remove_all(sender.dir());
    std::filesystem::create_directories(sender.dir());
    sender.Start();
    Step(3);
  }
  /// The receiver has what was published, byte for byte.
  void Reaches(ReceiverProcess& receiver) {
    REQUIRE(Follows(sender, receiver));
    CHECK(trainer.Compare(receiver.dir()) == "");
  }
  uint64_t sent() { return sender.Status(kModel).bytes_sent(); }
  /// The upstreams of a leaf that prefers the relay.
  std::string either() const { return relay.control() + "," + sender.control(); }

  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  ReceiverProcess relay;
};

/// A leaf in the middle of its first pull from a relay; its second upstream is the sender.
struct MidPull : Relayed {
  MidPull(uint64_t seed, const std::vector<std::string>& of_relay)
      : Relayed(seed, 24, of_relay), leaf(root.path(), "leaf", OnceServed(), kModel) {
    REQUIRE(Eventually([&] { return Arrived(leaf, 1) >= 4; }));
    REQUIRE(Arrived(leaf, 1) < ChunksOf(trainer));
  }
  std::string OnceServed() {
    Begin();
    return either();
  }

  ReceiverProcess leaf;
};

}  // namespace

TEST_CASE("leaves of a relay get whole models, deltas, a rollback and a new lineage") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Relayed s(101, 24, {"--buffers", buffers});
  ReceiverProcess a(s.root.path(), "a", s.relay.control(), kModel);
  ReceiverProcess b(s.root.path(), "b", s.relay.control(), kModel);
  const auto all_follow = [&] {
    for (ReceiverProcess* receiver : {&s.relay, &a, &b}) s.Reaches(*receiver);
  };
  s.Publish(1);
  all_follow();
  CHECK(ReadText(a.dir() / "config.json") == ReadText(s.relay.dir() / "config.json"));
  // The sender has been pulled once, and knows of one receiver.
  CHECK(s.sender.Status(kModel).receivers() == 1);
  CHECK(s.sent() == s.trainer.layout().total_bytes());

  for (uint64_t v = 2; v <= 6; ++v) {
    s.Step(v);
    all_follow();
    // What the relay got as deltas goes on as deltas.
    CHECK(a.Status().last_pull().chunks_full() == 0);
    CHECK(a.Status().last_pull().chunks_delta() > 0);
  }
  CHECK(s.sent() == s.relay.Status().bytes_received());

  const auto before = s.trainer.content();
  s.Step(7);
  all_follow();
  s.trainer.content() = before;
  REQUIRE(s.sender.Rollback(kModel, 6).status() == absl::OkStatus());
  all_follow();
  CHECK(a.Status().committed().epoch() == 2);
  CHECK(b.Status().last_pull().chunks_full() == 0);

  const std::string lineage = a.Status().committed().lineage();
  s.BeginAnew();
  all_follow();
  CHECK(a.Status().committed().lineage() != lineage);
}

TEST_CASE("a leaf keeps its deltas when it falls several versions behind a relay") {
  Relayed s(102, 12);
  ReceiverProcess leaf(s.root.path(), "leaf", s.relay.control(), kModel);
  s.Publish(1);
  REQUIRE(Follows(s.sender, leaf));
  leaf.child().Kill();
  for (uint64_t v = 2; v <= 5; ++v) {
    s.Step(v);
    REQUIRE(Follows(s.sender, s.relay));
  }
  leaf.Start();
  s.Reaches(leaf);
  CHECK(leaf.Status().last_pull().chunks_full() == 0);  // folded from four deltas
  CHECK(leaf.Status().last_pull().chunks_delta() > 0);
}

TEST_CASE("a relay serves what it holds while its sender is away, also after a restart") {
  Relayed s(103, 12);
  s.Begin();
  const std::string published = Published(s.sender);
  s.sender.child().Kill();
  s.relay.Restart();
  ReceiverProcess leaf(s.root.path(), "leaf", s.relay.control(), kModel);
  REQUIRE(leaf.WaitCommitted(1));
  CHECK(NameOf(leaf.Status().committed()) == published);
  CHECK(s.trainer.Compare(leaf.dir()) == "");
  CHECK(ReadText(leaf.dir() / "config.json") == ReadText(s.relay.dir() / "config.json"));
}

TEST_CASE("a relay is killed in the middle of a pull, and the leaf resumes when it is back") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    Relayed s(seed, 24, {"--rate-limit", "20MB"});
    s.Begin();
    ReceiverProcess leaf(s.root.path(), "leaf", s.relay.control(), kModel);
    REQUIRE(Eventually([&] { return Arrived(leaf, 1) >= 2 * seed; }));
    REQUIRE(Arrived(leaf, 1) < ChunksOf(s.trainer));
    s.relay.Restart();
    s.Reaches(leaf);
    // What had arrived was not fetched again.
    CHECK(leaf.Status().last_pull().chunks_full() <= ChunksOf(s.trainer) - 2 * seed);
  }
}

TEST_CASE("a leaf goes on at its second upstream with the chunks that are missing, and returns") {
  MidPull s(104, {"--rate-limit", "20MB"});
  const uint64_t before = s.sent();
  s.relay.child().Kill();
  s.Reaches(s.leaf);
  const uint64_t fetched = s.sent() - before;
  CHECK(fetched > 0);
  CHECK(fetched < s.trainer.layout().total_bytes());
  // With the relay away, versions come from the sender.
  s.Step(2);
  REQUIRE(Follows(s.sender, s.leaf));
  // The relay is back, and has caught up: the leaf attaches to it again.
  s.relay.Start();
  REQUIRE(Follows(s.sender, s.relay));
  REQUIRE(Eventually([&] { return s.sender.Status(kModel).receivers() == 1; }));
  const uint64_t sent = s.sent(), received = s.relay.Status().bytes_received();
  s.Step(3);
  s.Reaches(s.leaf);
  CHECK(s.sent() - sent == s.relay.Status().bytes_received() - received);
}

TEST_CASE("a leaf leaves a relay that tells of nothing new, and returns when it has caught up") {
  Relayed s(108, 4);
  s.Begin();
  ReceiverProcess leaf(s.root.path(), "leaf", s.either(), kModel);
  REQUIRE(Follows(s.sender, leaf));
  REQUIRE(s.sender.Status(kModel).receivers() == 1);
  REQUIRE(s.relay.SetPaused(true) == absl::OkStatus());
  s.Step(2);
  REQUIRE(Follows(s.sender, leaf));
  CHECK(s.relay.Status().committed().version() == 1);
  REQUIRE(s.relay.SetPaused(false) == absl::OkStatus());
  REQUIRE(Follows(s.sender, s.relay));
  REQUIRE(Eventually([&] { return Says(leaf, "which works again"); }));
  REQUIRE(Eventually([&] { return s.sender.Status(kModel).receivers() == 1; }));
}

TEST_CASE("a leaf does not go back to a lineage that was left when the new one's sender is gone") {
  Relayed s(109, 4);
  s.Begin(100);
  ReceiverProcess leaf(s.root.path(), "leaf", s.either(), kModel);
  REQUIRE(Follows(s.sender, leaf));
  const std::string old = leaf.Status().committed().lineage();
  REQUIRE(s.relay.SetPaused(true) == absl::OkStatus());
  s.BeginAnew();  // only the leaf hears of it
  REQUIRE(Follows(s.sender, leaf));
  const std::string now = leaf.Status().committed().lineage();
  REQUIRE(now != old);
  REQUIRE(s.relay.Status().committed().lineage() == old);
  s.sender.child().Kill();
  REQUIRE(Eventually([&] {
    return leaf.Status().message().find("which was left for lineage " + now) != std::string::npos;
  }));
  CHECK(leaf.Status().committed().lineage() == now);
  CHECK(s.trainer.Compare(leaf.dir()) == "");
}

TEST_CASE("a relay that is stopped while a leaf pulls ends well, and the leaf goes on elsewhere") {
  MidPull s(112, {"--rate-limit", "10MB"});
  s.relay.child().Signal(SIGTERM);
  CHECK(s.relay.child().Wait(std::chrono::seconds(10)) == 0);
  s.Reaches(s.leaf);
}

TEST_CASE("a relay with one buffer keeps its leaves while it changes the file") {
  MidPull s(111, {"--buffers", "1", "--rate-limit", "20MB"});
  s.Step(2);
  REQUIRE(Follows(s.sender, s.relay));
  s.Reaches(s.leaf);
  // Nothing but the relay's pulls has crossed the link to the sender.
  CHECK(s.sent() == s.relay.Status().bytes_received());
}

TEST_CASE("a relay whose memory went bad is found out by digest, and repairs itself") {
  Relayed s(105, 12, {"--scrub-bytes-per-s", "0"});
  s.Begin();
  Flip(s.relay.dir() / "model.safetensors", s.trainer.layout(), 300'000);
  REQUIRE(s.trainer.Compare(s.relay.dir()) != "");
  ReceiverProcess leaf(s.root.path(), "leaf", s.relay.control(), kModel);
  s.Reaches(leaf);
  CHECK(Says(s.relay, "is not served until it was fetched anew"));
  REQUIRE(Eventually([&] { return s.trainer.Compare(s.relay.dir()) == ""; }));
  CHECK(s.relay.Status().repaired_chunks() == 1);
}

TEST_CASE("seeded SIGKILLs of sender, relay and leaf end in the newest version") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Relayed s(seed, 12, {"--buffers", random() % 2 == 0 ? "1" : "2"});
    const bool failover = random() % 2 == 0;
    ReceiverProcess leaf(s.root.path(), "leaf", failover ? s.either() : s.relay.control(), kModel);
    for (uint64_t version = 1; version <= 6; ++version) {
      CAPTURE(version);
      s.trainer.Step();
      REQUIRE(s.trainer.Publish(version).status() == absl::OkStatus());
      // A moment somewhere in the pulls, after the leaf has begun to say what it is doing.
      const uint32_t chunks = static_cast<uint32_t>(random() % 8);
      (void)Eventually([&] { return Arrived(leaf, version) >= chunks; },
                       std::chrono::milliseconds(random() % 300));
      const uint64_t who = random() % 4;
      if (who == 0) s.sender.Restart();
      if (who == 1) s.relay.Restart();
      if (who == 2) leaf.Restart();
    }
    s.Reaches(leaf);
    INFO(ReadText(leaf.log()) << ReadText(s.relay.log()) << ReadText(s.sender.log()));
    // The counter begins anew with each process; the log does not.
    CHECK_FALSE(Says(leaf, "do not make up"));
  }
}

TEST_CASE("a relay's ports ask who calls: TLS, roles and models hold there as at the sender") {
  ShmDir root;
  const TestAuthority authority(root.path() / "keys");
  const std::string principals = authority.Principals(
      "[[principal]]\nname = 'relay'\nroles = ['receiver']\ncertificate = 'relay'\n"
      "[[principal]]\nname = 'leaf'\nroles = ['receiver']\nmodels = ['m']\ncertificate = 'leaf'\n"
      "[[principal]]\nname = 'cloud'\nroles = ['receiver']\ntoken-file = 'cloud/token'\n"
      "[[principal]]\nname = 'elsewhere'\nroles = ['receiver']\nmodels = ['other']\n"
      "certificate = 'elsewhere'\n"
      "[[principal]]\nname = 'operator'\nroles = ['operator']\ncertificate = 'operator'\n");
  const std::string cloud = authority.TokenOnly("cloud", "the-token-of-the-cloud's-leaves", true);
  const auto with = [&](const std::string& credentials) -> std::vector<std::string> {
    return {"--credentials", credentials, "--principals", principals};
  };
  ShowAs(authority.Node("operator"));
  SenderProcess sender(root.path(), with(authority.Node("sender")));
  Trainer trainer(sender.socket(), kModel, 4, 106);
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel,
                        Serving(with(authority.Node("relay"))));
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(Follows(sender, relay));
  ReceiverProcess leaf(root.path(), "leaf", relay.control(), kModel, with(authority.Node("leaf")));
  ReceiverProcess token(root.path(), "token", relay.control(), kModel, {"--credentials", cloud});
  ReceiverProcess other(root.path(), "other", relay.control(), kModel,
                        with(authority.Node("elsewhere")));
  ReceiverProcess bare(root.path(), "bare", relay.control(), kModel);
  REQUIRE(Follows(sender, leaf));
  CHECK(trainer.Compare(leaf.dir()) == "");
  const auto says = [](ReceiverProcess& receiver, const std::string& text) {
    return Eventually([&] { return Says(receiver, text); });
  };
  // A daemon without a certificate answers in plaintext.
  ShowAs("");
  REQUIRE(Eventually([&] { return trainer.Compare(token.dir()) == ""; }));
  CHECK(says(other, "may not"));
  CHECK(says(bare, "cannot attach to sender"));
  CHECK_FALSE(std::filesystem::exists(other.dir() / "model.safetensors"));
  CHECK_FALSE(std::filesystem::exists(bare.dir() / "model.safetensors"));
}

TEST_CASE("a relay shows what it serves as metrics") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 107);
  const uint16_t metrics = FreePort();
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel,
                        Serving({"--metrics-listen", fmt::format("127.0.0.1:{}", metrics)}));
  ReceiverProcess leaf(root.path(), "leaf", relay.control(), kModel);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(Follows(sender, leaf));
  const auto shows = [&](const std::string& sample) {
    return Eventually([&] {
      return HttpGet(metrics, "/metrics").find("\n" + sample + "\n") != std::string::npos;
    });
  };
  CHECK(shows("deltawire_receiver_relay_receivers{model=\"m\"} 1"));
  CHECK(shows(fmt::format("deltawire_receiver_relay_bytes_sent_total{{model=\"m\"}} {}",
                          trainer.layout().total_bytes())));
  CHECK(shows("deltawire_receiver_relay_active_pulls{model=\"m\"} 0"));
  CHECK(shows("deltawire_receiver_relay_encoded_cache_bytes{model=\"m\"} 0"));
  CHECK(shows("deltawire_receiver_relay_encoded_cache_evictions_total{model=\"m\"} 0"));
  CHECK(shows("deltawire_receiver_relay_early_encoded_bytes{model=\"m\"} 0"));
}

}  // namespace deltawire::testing::relay_test
