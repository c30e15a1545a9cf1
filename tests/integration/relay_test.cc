// Receivers that serve other receivers: real daemons, real sockets, real SIGKILLs. Every leaf's
// bytes are compared with the trainer's, and its names with the sender's.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <random>

#include "common/layout/model_dir.h"
#include "tests/support/bad_memory.h"
#include "tests/support/certificates.h"
#include "tests/support/http_get.h"
#include "tests/support/relays.h"

namespace deltawire::testing {
namespace {

void Pause(ReceiverProcess& receiver) {
  v1::PauseRequest request;
  request.set_model(kModel);
  v1::PauseResponse response;
  grpc::ClientContext context;
  REQUIRE(receiver.stub().Pause(&context, request, &response).ok());
}

void Resume(ReceiverProcess& receiver) {
  v1::ResumeRequest request;
  request.set_model(kModel);
  v1::ResumeResponse response;
  grpc::ClientContext context;
  REQUIRE(receiver.stub().Resume(&context, request, &response).ok());
}

Status Rollback(SenderProcess& sender, uint64_t version) {
  v1::RollbackRequest request;
  request.set_model(kModel);
  request.set_version(version);
  v1::RollbackResponse response;
  grpc::ClientContext context;
  const grpc::Status status = sender.orchestrator().Rollback(&context, request, &response);
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.error_message());
}

/// A leaf in the middle of its first pull from a relay; its second upstream is the sender.
struct MidPull {
  MidPull(uint64_t seed, const std::vector<std::string>& of_relay)
      : sender(root.path()),
        trainer(sender.socket(), kModel, 24, seed),
        relay(root.path(), "relay", sender.control(), kModel, Serving(of_relay)),
        leaf(root.path(), "leaf", UpstreamsOnceServed(), kModel) {
    REQUIRE(Eventually([&] { return Arrived(leaf, 1) >= 4; }));
    REQUIRE(Arrived(leaf, 1) < ChunksOf(trainer));
  }
  /// The leaf's, when the relay has a version for it.
  std::string UpstreamsOnceServed() {
    REQUIRE(trainer.Publish(1).ok());
    REQUIRE(Follows(sender, relay));
    return relay.control() + "," + sender.control();
  }

  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  ReceiverProcess relay, leaf;
};

}  // namespace

TEST_CASE("leaves of a relay get whole models, deltas, a rollback and a new lineage") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 24, 101);
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel,
                        Serving({"--buffers", buffers}));
  ReceiverProcess a(root.path(), "a", relay.control(), kModel);
  ReceiverProcess b(root.path(), "b", relay.control(), kModel);
  const auto all_follow = [&] {
    for (ReceiverProcess* leaf : {&relay, &a, &b}) {
      REQUIRE(Follows(sender, *leaf));
      REQUIRE(trainer.Compare(leaf->dir()) == "");
    }
  };
  REQUIRE(trainer.Publish(1).ok());
  all_follow();
  CHECK(ReadText(a.dir() / "config.json") == ReadText(relay.dir() / "config.json"));
  // The sender has been pulled once, and knows of one receiver.
  CHECK(sender.Status(kModel).receivers() == 1);
  CHECK(sender.Status(kModel).bytes_sent() == trainer.layout().total_bytes());

  for (uint64_t v = 2; v <= 6; ++v) {
    trainer.Step();
    REQUIRE(trainer.Publish(v).ok());
    all_follow();
    // What the relay got as deltas goes on as deltas.
    CHECK(a.Status().last_pull().chunks_full() == 0);
    CHECK(a.Status().last_pull().chunks_delta() > 0);
  }
  CHECK(sender.Status(kModel).bytes_sent() == relay.Status().bytes_received());

  const auto before = trainer.content();
  trainer.Step();
  REQUIRE(trainer.Publish(7).ok());
  all_follow();
  trainer.content() = before;
  REQUIRE(Rollback(sender, 6) == absl::OkStatus());
  all_follow();
  CHECK(a.Status().committed().epoch() == 2);
  CHECK(b.Status().last_pull().chunks_full() == 0);

  // A sender without its files begins a new lineage.
  const std::string lineage = a.Status().committed().lineage();
  sender.child().Kill();
  std::filesystem::remove_all(sender.dir());
  std::filesystem::create_directories(sender.dir());
  sender.Start();
  trainer.Step();
  REQUIRE(trainer.Publish(3).ok());
  all_follow();
  CHECK(a.Status().committed().lineage() != lineage);
}

TEST_CASE("a leaf keeps its deltas when it falls several versions behind a relay") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 12, 102);
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel, Serving());
  ReceiverProcess leaf(root.path(), "leaf", relay.control(), kModel);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(Follows(sender, leaf));
  leaf.child().Kill();
  for (uint64_t v = 2; v <= 5; ++v) {
    trainer.Step();
    REQUIRE(trainer.Publish(v).ok());
    REQUIRE(Follows(sender, relay));
  }
  leaf.Start();
  REQUIRE(Follows(sender, leaf));
  CHECK(trainer.Compare(leaf.dir()) == "");
  CHECK(leaf.Status().last_pull().chunks_full() == 0);  // folded from four deltas
  CHECK(leaf.Status().last_pull().chunks_delta() > 0);
}

TEST_CASE("a relay serves what it holds while its sender is away, also after a restart") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 12, 103);
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel, Serving());
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(Follows(sender, relay));
  const std::string published = Published(sender);
  sender.child().Kill();
  relay.Restart();
  ReceiverProcess leaf(root.path(), "leaf", relay.control(), kModel);
  REQUIRE(leaf.WaitCommitted(1));
  CHECK(NameOf(leaf.Status().committed()) == published);
  CHECK(trainer.Compare(leaf.dir()) == "");
  CHECK(ReadText(leaf.dir() / "config.json") == ReadText(relay.dir() / "config.json"));
}

TEST_CASE("a relay is killed in the middle of a pull, and the leaf resumes when it is back") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    ShmDir root;
    SenderProcess sender(root.path());
    Trainer trainer(sender.socket(), kModel, 24, seed);
    ReceiverProcess relay(root.path(), "relay", sender.control(), kModel,
                          Serving({"--rate-limit", "20MB"}));
    REQUIRE(trainer.Publish(1).ok());
    REQUIRE(Follows(sender, relay));
    ReceiverProcess leaf(root.path(), "leaf", relay.control(), kModel);
    REQUIRE(Eventually([&] { return Arrived(leaf, 1) >= 2 * seed; }));
    REQUIRE(Arrived(leaf, 1) < ChunksOf(trainer));
    relay.Restart();
    REQUIRE(Follows(sender, leaf));
    CHECK(trainer.Compare(leaf.dir()) == "");
    // What had arrived was not fetched again.
    CHECK(leaf.Status().last_pull().chunks_full() <= ChunksOf(trainer) - 2 * seed);
  }
}

TEST_CASE("a leaf goes on at its second upstream with the chunks that are missing, and returns") {
  MidPull s(104, {"--rate-limit", "20MB"});
  const uint64_t before = s.sender.Status(kModel).bytes_sent();
  s.relay.child().Kill();
  REQUIRE(Follows(s.sender, s.leaf));
  CHECK(s.trainer.Compare(s.leaf.dir()) == "");
  const uint64_t fetched = s.sender.Status(kModel).bytes_sent() - before;
  CHECK(fetched > 0);
  CHECK(fetched < s.trainer.layout().total_bytes());
  // With the relay away, versions come from the sender.
  s.trainer.Step();
  REQUIRE(s.trainer.Publish(2).ok());
  REQUIRE(Follows(s.sender, s.leaf));
  // The relay is back, and has caught up: the leaf attaches to it again.
  s.relay.Start();
  REQUIRE(Follows(s.sender, s.relay));
  REQUIRE(Eventually([&] { return s.sender.Status(kModel).receivers() == 1; }));
  const uint64_t sent = s.sender.Status(kModel).bytes_sent();
  const uint64_t received = s.relay.Status().bytes_received();
  s.trainer.Step();
  REQUIRE(s.trainer.Publish(3).ok());
  REQUIRE(Follows(s.sender, s.leaf));
  CHECK(s.trainer.Compare(s.leaf.dir()) == "");
  CHECK(s.sender.Status(kModel).bytes_sent() - sent ==
        s.relay.Status().bytes_received() - received);
}

TEST_CASE("a leaf leaves a relay that tells of nothing new, and returns when it has caught up") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 108);
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel, Serving());
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(Follows(sender, relay));
  ReceiverProcess leaf(root.path(), "leaf", relay.control() + "," + sender.control(), kModel);
  REQUIRE(Follows(sender, leaf));
  REQUIRE(sender.Status(kModel).receivers() == 1);
  Pause(relay);
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  REQUIRE(Follows(sender, leaf));
  CHECK(relay.Status().committed().version() == 1);
  Resume(relay);
  REQUIRE(Follows(sender, relay));
  REQUIRE(Eventually([&] { return Says(leaf, "which is well again"); }));
  REQUIRE(Eventually([&] { return sender.Status(kModel).receivers() == 1; }));
}

TEST_CASE("a leaf does not go back to a lineage that was left when the new one's sender is gone") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 109);
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel, Serving());
  REQUIRE(trainer.Publish(100).ok());
  REQUIRE(Follows(sender, relay));
  ReceiverProcess leaf(root.path(), "leaf", relay.control() + "," + sender.control(), kModel);
  REQUIRE(Follows(sender, leaf));
  const std::string old = leaf.Status().committed().lineage();
  Pause(relay);
  // The trainer begins anew, and only the leaf hears of it.
  sender.child().Kill();
  std::filesystem::remove_all(sender.dir());
  std::filesystem::create_directories(sender.dir());
  sender.Start();
  trainer.Step();
  REQUIRE(trainer.Publish(3).ok());
  REQUIRE(Follows(sender, leaf));
  const std::string now = leaf.Status().committed().lineage();
  REQUIRE(now != old);
  REQUIRE(relay.Status().committed().lineage() == old);
  sender.child().Kill();
  REQUIRE(Eventually([&] {
    return leaf.Status().message().find("which was left for lineage " + now) != std::string::npos;
  }));
  CHECK(leaf.Status().committed().lineage() == now);
  CHECK(trainer.Compare(leaf.dir()) == "");
}

TEST_CASE("a relay that is stopped while a leaf pulls ends well, and the leaf goes on elsewhere") {
  MidPull s(112, {"--rate-limit", "10MB"});
  s.relay.child().Signal(SIGTERM);
  CHECK(s.relay.child().Wait(std::chrono::seconds(10)) == 0);
  REQUIRE(Follows(s.sender, s.leaf));
  CHECK(s.trainer.Compare(s.leaf.dir()) == "");
}

TEST_CASE("a relay with one buffer keeps its leaves while it changes the file") {
  MidPull s(111, {"--buffers", "1", "--rate-limit", "20MB"});
  s.trainer.Step();
  REQUIRE(s.trainer.Publish(2).ok());
  REQUIRE(Follows(s.sender, s.relay));
  REQUIRE(Follows(s.sender, s.leaf));
  CHECK(s.trainer.Compare(s.leaf.dir()) == "");
  // Nothing but the relay's pulls has crossed the link to the sender.
  CHECK(s.sender.Status(kModel).bytes_sent() == s.relay.Status().bytes_received());
}

TEST_CASE("a relay whose memory went bad is found out by digest, and repairs itself") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 12, 105);
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel,
                        Serving({"--scrub-bytes-per-s", "0"}));
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(Follows(sender, relay));
  Flip(relay.dir() / "model.safetensors", trainer.layout(), 300'000);
  REQUIRE(trainer.Compare(relay.dir()) != "");
  ReceiverProcess leaf(root.path(), "leaf", relay.control(), kModel);
  REQUIRE(Follows(sender, leaf));
  CHECK(trainer.Compare(leaf.dir()) == "");
  CHECK(Says(relay, "is not served until it was fetched anew"));
  REQUIRE(Eventually([&] { return trainer.Compare(relay.dir()) == ""; }));
  CHECK(relay.Status().repaired_chunks() == 1);
}

TEST_CASE("seeded SIGKILLs of sender, relay and leaf end in the newest version") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    ShmDir root;
    SenderProcess sender(root.path());
    Trainer trainer(sender.socket(), kModel, 12, seed);
    ReceiverProcess relay(root.path(), "relay", sender.control(), kModel,
                          Serving({"--buffers", random() % 2 == 0 ? "1" : "2"}));
    const bool failover = random() % 2 == 0;
    ReceiverProcess leaf(root.path(), "leaf",
                         relay.control() + (failover ? "," + sender.control() : ""), kModel);
    for (uint64_t version = 1; version <= 6; ++version) {
      CAPTURE(version);
      trainer.Step();
      REQUIRE(trainer.Publish(version).status() == absl::OkStatus());
      // A moment somewhere in the pulls, after the leaf has begun to say what it is doing.
      const uint32_t chunks = static_cast<uint32_t>(random() % 8);
      (void)Eventually([&] { return Arrived(leaf, version) >= chunks; },
                       std::chrono::milliseconds(random() % 300));
      const uint64_t who = random() % 4;
      if (who == 0) sender.Restart();
      if (who == 1) relay.Restart();
      if (who == 2) leaf.Restart();
    }
    REQUIRE(Follows(sender, leaf));
    CHECK(trainer.Compare(leaf.dir()) == "");
    INFO(ReadText(leaf.log()) << ReadText(relay.log()) << ReadText(sender.log()));
    // The counter begins anew with each process; the log does not.
    CHECK_FALSE(Says(leaf, "what it sent does not make up"));
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
  CHECK(says(bare, "the connection to sender"));
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
}

}  // namespace deltawire::testing
