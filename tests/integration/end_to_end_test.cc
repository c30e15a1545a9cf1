// The main job: a receiver gets the whole model first and deltas after that, and its bytes are
// compared with the trainer's. Also what an operator may ask for: sync, rollback, verify, pause,
// SIGTERM, a restart.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/bad_memory.h"
#include "tests/support/daemons.h"

namespace deltawire::testing::end_to_end_test {
namespace {

constexpr const char* kModel = "m";

v1::VerifyResponse Verify(ReceiverProcess& receiver, bool repair) {
  const auto verified = receiver.Verify(repair);
  REQUIRE(verified.status() == absl::OkStatus());
  return *verified;
}

}  // namespace

TEST_CASE("a receiver follows: full first, then deltas, byte for byte") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 16, 1);
  REQUIRE(trainer.Publish(1).status() == absl::OkStatus());
  INFO(ReadText(receiver.log()));
  REQUIRE(receiver.WaitCommitted(1));
  CHECK(trainer.Compare(receiver.dir()) == "");
  CHECK(ReadText(receiver.dir() / "config.json") == "{\"model_type\": \"test\"}");
  const auto full = receiver.Status().last_pull();
  CHECK(full.payload_bytes() == trainer.layout().total_bytes());

  for (uint64_t v = 2; v <= 6; ++v) {
    trainer.Step(0.01);
    const auto published = trainer.Publish(v);
    REQUIRE(published.status() == absl::OkStatus());
    REQUIRE(receiver.WaitCommitted(v));
    CHECK(trainer.Compare(receiver.dir()) == "");
    const auto pull = receiver.Status().last_pull();
    CHECK(pull.chunks_full() == 0);
    CHECK(pull.payload_bytes() == published->delta_bytes);
    CHECK(pull.payload_bytes() * 20 < trainer.layout().total_bytes());
  }
  CHECK(Verify(receiver, false).bad_chunks() == 0);
}

TEST_CASE("a version that changes nothing, or everything, arrives") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 2);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  REQUIRE(trainer.Publish(2).ok());
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(receiver.Status().last_pull().payload_bytes() == 0);
  CHECK(trainer.Compare(receiver.dir()) == "");
  for (std::byte& b : trainer.content()) b = ~b;
  REQUIRE(trainer.Publish(3).ok());
  REQUIRE(receiver.WaitCommitted(3));
  CHECK(trainer.Compare(receiver.dir()) == "");
  CHECK(receiver.Status().last_pull().payload_bytes() <=
        trainer.layout().total_bytes() + trainer.layout().total_bytes() / 100);
}

TEST_CASE("a receiver that lags gets one folded delta, one that joins late the whole model") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 8, 3);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess laggard(root.path(), "laggard", sender.control(), kModel, {"--no-follow"});
  REQUIRE(Eventually([&] { return laggard.Status().attached(); }));
  REQUIRE(laggard.Sync().ok());
  uint64_t sum = 0;
  for (uint64_t v = 2; v <= 9; ++v) {
    trainer.Step(0.01);
    const auto published = trainer.Publish(v);
    REQUIRE(published.ok());
    sum += published->delta_bytes;
  }
  CHECK(laggard.Status().committed().version() == 1);
  REQUIRE(laggard.Sync().ok());
  CHECK(laggard.Status().committed().version() == 9);
  CHECK(trainer.Compare(laggard.dir()) == "");
  const auto pull = laggard.Status().last_pull();
  CHECK(pull.chunks_full() == 0);
  CHECK(pull.payload_bytes() < sum);

  ReceiverProcess late(root.path(), "late", sender.control(), kModel);
  REQUIRE(late.WaitCommitted(9));
  CHECK(trainer.Compare(late.dir()) == "");
}

TEST_CASE("an orchestrator syncs all receivers through the sender") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 4);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess a(root.path(), "a", sender.control(), kModel, {"--no-follow"});
  ReceiverProcess b(root.path(), "b", sender.control(), kModel, {"--no-follow"});
  REQUIRE(Eventually([&] { return sender.Status(kModel).receivers() == 2; }));
  v1::TriggerSyncRequest request;
  request.set_model(kModel);
  grpc::ClientContext context;
  auto stream = sender.orchestrator().TriggerSync(&context, request);
  std::map<std::string, std::string> last;
  for (v1::SyncProgress p; stream->Read(&p);) last[p.receiver_id()] = p.phase();
  const grpc::Status status = stream->Finish();
  INFO(status.error_message());
  REQUIRE(status.ok());
  CHECK(last == std::map<std::string, std::string>{{"a", "committed"}, {"b", "committed"}});
  CHECK(trainer.Compare(a.dir()) == "");
  CHECK(trainer.Compare(b.dir()) == "");

  v1::TriggerSyncRequest unknown;
  unknown.set_model(kModel);
  unknown.add_receiver_ids("nobody");
  grpc::ClientContext unknown_context;
  auto refused = sender.orchestrator().TriggerSync(&unknown_context, unknown);
  v1::SyncProgress none;
  CHECK(!refused->Read(&none));
  CHECK(refused->Finish().error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("rollback publishes the earlier bytes as the next epoch") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 5);
  REQUIRE(trainer.Publish(1).ok());
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  const std::vector<std::byte> second = trainer.content();
  for (uint64_t v = 3; v <= 4; ++v) {
    trainer.Step();
    REQUIRE(trainer.Publish(v).ok());
  }
  REQUIRE(receiver.WaitCommitted(4));
  const auto back = sender.Rollback(kModel, 2);
  REQUIRE(back.status() == absl::OkStatus());
  CHECK(back->id().epoch() == 2);
  REQUIRE(Eventually([&] { return receiver.Status().committed().epoch() == 2; }));
  CHECK(receiver.Status().committed().version() == 2);
  CHECK(receiver.Status().last_pull().chunks_full() == 0);
  trainer.content() = second;
  CHECK(trainer.Compare(receiver.dir()) == "");

  // Version 3 is published again, with other bytes. They must not be mixed up with those that the
  // log had as version 3 before the rollback.
  trainer.Step();
  REQUIRE(trainer.Publish(3).ok());
  REQUIRE(Eventually([&] { return receiver.Status().committed().version() == 3; }));
  CHECK(trainer.Compare(receiver.dir()) == "");

  CHECK(sender.Rollback(kModel, 77).status().code() == StatusCode::kNotFound);
}

TEST_CASE("tensors declared unchanged are carried over") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 6);
  REQUIRE(trainer.Publish(1).ok());
  for (uint64_t v = 2; v <= 4; ++v) {
    // Tensor 0 stays as it is, the other tensors change.
    const std::vector<std::byte> before = trainer.content();
    trainer.Step();
    std::copy_n(before.begin(), trainer.layout().bytes(0), trainer.content().begin());
    const auto published = trainer.TryPublish(v, {}, {0});
    REQUIRE(published.status() == absl::OkStatus());
    REQUIRE(receiver.WaitCommitted(v));
    CHECK(trainer.Compare(receiver.dir()) == "");
  }
}

TEST_CASE("memory that went bad is found by verify and repaired alone") {
  ShmDir root;
  SenderProcess sender(root.path());
  // With two files the receiver would copy the chunk from the other one, and while it scrubs it
  // could repair the chunk before verify is asked to.
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel,
                           {"--buffers", "1", "--scrub-bytes-per-s", "0"});
  Trainer trainer(sender.socket(), kModel, 16, 7);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  const auto file = receiver.dir() / "model.safetensors";
  FlipByte(file, 4096 + 3'000'000);
  const auto found = Verify(receiver, false);
  CHECK(found.bad_chunks() == 1);
  REQUIRE(found.bad_tensors_size() == 1);
  CHECK(found.bad_tensors(0) == "model.embed_tokens.weight");
  const auto repaired = Verify(receiver, true);
  CHECK(repaired.repaired());
  CHECK(Verify(receiver, false).bad_chunks() == 0);
  CHECK(trainer.Compare(receiver.dir()) == "");
  // This counts over all pulls. The last pull may have been empty, if the receiver, which follows,
  // fetched the chunk before verify's own sync began.
  CHECK(receiver.Status().repaired_chunks() == 1);

  // Applying a delta does not read the bytes that the delta leaves unchanged, so it does not notice
  // a bad one among them. Verify does.
  FlipByte(file, 4096 + 9'000'000);
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(Verify(receiver, true).committed().version() == 2);
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("one sender serves several models, a paused receiver stays where it is") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer one(sender.socket(), "one", 4, 8);
  Trainer two(sender.socket(), "two", 2, 9);
  ReceiverProcess r1(root.path(), "r1", sender.control(), "one");
  ReceiverProcess r2(root.path(), "r2", sender.control(), "two");
  REQUIRE(one.Publish(1).ok());
  REQUIRE(two.Publish(10).ok());
  REQUIRE(r1.WaitCommitted(1));
  REQUIRE(r2.WaitCommitted(10));
  CHECK(one.Compare(r1.dir()) == "");
  CHECK(two.Compare(r2.dir()) == "");

  REQUIRE(r1.SetPaused(true) == absl::OkStatus());
  one.Step();
  REQUIRE(one.Publish(2).ok());
  REQUIRE(Eventually([&] { return r1.Status().newest().version() == 2; }));
  CHECK(r1.Status().committed().version() == 1);
  CHECK(r1.Status().phase() == "paused");
  REQUIRE(r1.SetPaused(false) == absl::OkStatus());
  REQUIRE(r1.WaitCommitted(2));
  CHECK(one.Compare(r1.dir()) == "");
}

TEST_CASE("SIGTERM ends either daemon within two seconds, also in the middle of work") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 64, 10);
  REQUIRE(trainer.Publish(1).ok());
  SECTION("receiver first, pulling") {
    receiver.child().Signal(SIGTERM);
    CHECK(receiver.child().Wait(std::chrono::seconds(2)) == 0);
    sender.child().Signal(SIGTERM);
    CHECK(sender.child().Wait(std::chrono::seconds(2)) == 0);
  }
  SECTION("sender first, with an attached receiver") {
    REQUIRE(receiver.WaitCommitted(1));
    sender.child().Signal(SIGTERM);
    CHECK(sender.child().Wait(std::chrono::seconds(2)) == 0);
    receiver.child().Signal(SIGTERM);
    CHECK(receiver.child().Wait(std::chrono::seconds(2)) == 0);
    CHECK(trainer.Compare(receiver.dir()) == "");
  }
}

TEST_CASE("after a restart the receiver's directory is whole without a sender") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 11);
  REQUIRE(trainer.Publish(5).ok());
  REQUIRE(receiver.WaitCommitted(5));
  sender.child().Kill();
  receiver.Restart();
  CHECK(receiver.WaitCommitted(5));
  CHECK(trainer.Compare(receiver.dir()) == "");
  sender.Start();
  trainer.Step();
  REQUIRE(trainer.Publish(6).status() == absl::OkStatus());
  REQUIRE(receiver.WaitCommitted(6));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

}  // namespace deltawire::testing::end_to_end_test
