// Memory that goes bad behind the daemons' backs is found when they are idle.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>

#include "common/layout/model_dir.h"
#include "tests/support/bad_memory.h"
#include "tests/support/daemons.h"

namespace deltawire::testing::scrub_test {
namespace {

constexpr const char* kModel = "m";
const std::vector<std::string> kScrub = {"--scrub-bytes-per-s", "10GB"};

std::filesystem::path ActiveHalf(SenderProcess& sender, bool other = false) {
  const auto dir = sender.dir() / kModel;
  const auto state = StateReader::Open(dir / ".deltawire.state");
  REQUIRE(state.ok());
  return dir / fmt::format("half-{}.safetensors", other ? 1 - state->active() : state->active());
}

bool HalfIs(SenderProcess& sender, const Trainer& trainer, Bytes content) {
  const auto half = ModelDir::Open(ActiveHalf(sender));
  REQUIRE(half.ok());
  const Bytes first = half->data(0);
  return std::memcmp(first.data(), content.data() + trainer.layout().offset(0), first.size()) == 0;
}

}  // namespace

TEST_CASE("a receiver finds and repairs memory that went bad by itself") {
  ShmDir root;
  SenderProcess sender(root.path());
  // With two files the receiver would copy the chunk from the other one.
  auto args = kScrub;
  args.insert(args.end(), {"--buffers", "1"});
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel, args);
  Trainer trainer(sender.socket(), kModel, 4, 71);
  for (uint64_t v = 1; v <= 2; ++v) {
    trainer.Step();
    REQUIRE(trainer.Publish(v).ok());
    REQUIRE(receiver.WaitCommitted(v));
  }
  Flip(receiver.dir() / "model.safetensors", trainer.layout(), 300'000);
  REQUIRE(Eventually([&] { return receiver.Status().scrub_mismatches() == 1; }));
  REQUIRE(Eventually([&] { return trainer.Compare(receiver.dir()) == ""; }));
  REQUIRE(receiver.WaitCommitted(2));
  const auto status = receiver.Status();
  CHECK(status.repaired_chunks() == 1);
  CHECK(status.last_pull().chunks_full() == 1);
  CHECK(status.scrubbed_bytes() > 0);
  CHECK(ReadText(receiver.log()).find("has lost its digest") != std::string::npos);
  trainer.Step();
  REQUIRE(trainer.Publish(3).ok());
  REQUIRE(receiver.WaitCommitted(3));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("a receiver that does not follow keeps its weights until it is told to sync") {
  ShmDir root;
  SenderProcess sender(root.path());
  auto args = kScrub;
  args.insert(args.end(), {"--no-follow", "--buffers", "1"});
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel, args);
  Trainer trainer(sender.socket(), kModel, 4, 72);
  REQUIRE(trainer.Publish(1).ok());
  const auto sync = [&] { return receiver.Sync().ok(); };
  REQUIRE(Eventually(sync));
  Flip(receiver.dir() / "model.safetensors", trainer.layout(), 300'000);
  REQUIRE(Eventually([&] { return receiver.Status().scrub_mismatches() == 1; }));
  CHECK(receiver.Status().committed().version() == 1);
  CHECK(trainer.Compare(receiver.dir()) != "");
  REQUIRE(sync());
  CHECK(trainer.Compare(receiver.dir()) == "");
  CHECK(receiver.Status().last_pull().chunks_full() == 1);
}

TEST_CASE("a sender rebuilds a chunk from the version before") {
  ShmDir root;
  SenderProcess sender(root.path(), kScrub);
  Trainer trainer(sender.socket(), kModel, 4, 73);
  for (uint64_t v = 1; v <= 2; ++v) {
    trainer.Step();
    REQUIRE(trainer.Publish(v).ok());
  }
  REQUIRE(HalfIs(sender, trainer, trainer.content()));
  Flip(ActiveHalf(sender), trainer.layout(), 300'000);
  REQUIRE(Eventually([&] { return sender.Status(kModel).scrub_repaired() == 1; }));
  CHECK(sender.Status(kModel).scrub_mismatches() == 1);
  CHECK(sender.Status(kModel).damaged_chunks() == 0);
  CHECK(HalfIs(sender, trainer, trainer.content()));
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("bytes that lost their digest are never sent, and the next version brings them whole") {
  ShmDir root;
  SenderProcess sender(root.path(), kScrub);
  ReceiverProcess there(root.path(), "there", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 74);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(there.WaitCommitted(1));
  // No delta leads to the first version, so its chunk cannot be rebuilt.
  Flip(ActiveHalf(sender), trainer.layout(), 300'000);
  REQUIRE(Eventually([&] { return sender.Status(kModel).damaged_chunks() == 1; }));
  CHECK(trainer.Compare(there.dir()) == "");

  ReceiverProcess late(root.path(), "late", sender.control(), kModel);
  REQUIRE(Eventually([&] {
    return late.Status().message().find("no longer has its digest") != std::string::npos;
  }));
  CHECK(late.Status().committed().version() == 0);

  // The next version changes nothing, and yet brings the damaged chunk whole.
  REQUIRE(trainer.Publish(2).status() == absl::OkStatus());
  REQUIRE(there.WaitCommitted(2));
  REQUIRE(late.WaitCommitted(2));
  CHECK(sender.Status(kModel).damaged_chunks() == 0);
  CHECK(HalfIs(sender, trainer, trainer.content()));
  CHECK(trainer.Compare(there.dir()) == "");
  CHECK(trainer.Compare(late.dir()) == "");
  trainer.Step();
  REQUIRE(trainer.Publish(3).status() == absl::OkStatus());
  REQUIRE(there.WaitCommitted(3));
  REQUIRE(late.WaitCommitted(3));
  CHECK(there.Status().last_pull().chunks_full() == 0);
  CHECK(trainer.Compare(there.dir()) == "");
  CHECK(trainer.Compare(late.dir()) == "");
}

TEST_CASE("a publish over a half that went bad unseen gives every receiver right bytes") {
  ShmDir root;
  SenderProcess sender(root.path());  // scrubs at the default rate, mostly later than the publish
  ReceiverProcess first(root.path(), "r1", sender.control(), kModel);
  ReceiverProcess second(root.path(), "r2", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 75);
  for (uint64_t v = 1; v <= 4; ++v) {
    if (v > 1) Flip(ActiveHalf(sender), trainer.layout(), 300'000 * v);
    trainer.Step();
    REQUIRE(trainer.Publish(v).ok());
    for (ReceiverProcess* receiver : {&first, &second}) {
      REQUIRE(receiver->WaitCommitted(v));
      CHECK(trainer.Compare(receiver->dir()) == "");
    }
    CHECK(sender.Status(kModel).scrub_mismatches() == v - 1);
    CHECK(HalfIs(sender, trainer, trainer.content()));
  }
  CHECK(ReadText(sender.log()).find("had lost its digest when the next version") !=
        std::string::npos);
}

}  // namespace deltawire::testing::scrub_test
