// Receivers that take a version while the trainer still writes it: real daemons, real sockets, real
// SIGKILLs. The trainer marks half of its tensors and keeps the offload open until the receiver has
// what could be diffed.
#include <cstring>

#include "common/layout/chunks.h"
#include "tests/integration/early_offload.h"

namespace deltawire::testing::early_test {
namespace {

/// A model that sender and receiver have at version 1, whose content then has changed.
struct Scene {
  explicit Scene(const std::string& number_of_buffers, uint64_t seed,
                 std::vector<std::string> of_receiver = {}, double change = 0.01,
                 const std::vector<std::string>& of_sender = {})
      : buffers(number_of_buffers),
        sender(root.path(), of_sender),
        trainer(sender.socket(), kModel, 24, seed),
        receiver(root.path(), "r", sender.control(), kModel, With(std::move(of_receiver))) {
    REQUIRE(trainer.Publish(1).ok());
    if (of_sender == std::vector<std::string>{"--group", "g=r"}) {
      REQUIRE(Eventually([&] { return sender.Status(kModel).receivers() == 1; }));
      REQUIRE(GroupRound());
    }
    REQUIRE(receiver.WaitCommitted(1));
    old = trainer.content();
    trainer.Step(change);
  }
  /// Brings group g to the newest version.
  bool GroupRound() {
    grpc::ClientContext context;
    v1::TriggerSyncRequest request;
    request.set_model(kModel);
    request.set_group("g");
    const auto stream = sender.orchestrator().TriggerSync(&context, request);
    v1::SyncProgress update;
    while (stream->Read(&update)) continue;
    return stream->Finish().ok();
  }
  std::vector<std::string> With(std::vector<std::string> more) const {
    more.insert(more.end(), {"--buffers", buffers});
    return more;
  }
  Offload Begin(uint64_t version) { return {sender, trainer, version}; }
  /// The first half of the tensors, or the second.
  void WriteFirst(Offload& offload) { offload.Write(trainer.content(), 0, half()); }
  void WriteRest(Offload& offload) { offload.Write(trainer.content(), half(), tensors()); }
  /// An offload of version 2 whose first half is written, and has come to the receiver.
  Offload HalfWay() {
    Offload offload = Begin(2);
    WriteFirst(offload);
    AwaitEarly(2);
    return offload;
  }
  /// The trainer writes the rest of version 2 and is ready, and the receiver commits it.
  void Finish(Offload& offload) {
    WriteRest(offload);
    offload.Ready();
    Follows(2);
  }
  /// The trainer changes its content again and publishes version 2 at once.
  void PublishAnew() {
    trainer.Step(0.02);
    REQUIRE(trainer.Publish(2).ok());
    Follows(2);
    CHECK(receiver.Status().last_pull().chunks_full() == 0);
  }
  size_t tensors() const { return trainer.layout().size(); }
  size_t half() const { return tensors() / 2; }
  /// Chunks of the first half of the tensors that have changed since version 1.
  uint32_t changed() {
    const ChunkTable chunks = *ChunkTable::Create(trainer.layout());
    uint32_t n = 0;
    for (uint32_t c = 0; c < chunks.first_of_tensor(half()); ++c) {
      n += std::memcmp(&old[chunks[c].offset], &trainer.content()[chunks[c].offset],
                       chunks[c].bytes) != 0;
    }
    return n;
  }
  /// Waits until the receiver pulls `version`, which is not published, and has what was written of
  /// it. With one buffer only the receiver itself knows how much that is. `kept`: from an earlier
  /// pull.
  void AwaitEarly(uint64_t version, bool kept = false) {
    const bool came = Eventually([&] {
      const auto status = receiver.Status();
      return status.phase() == "pulling" && (status.bytes_done() > 0 || kept) &&
             (buffers == "1" || Holding(receiver, version) == changed());
    });
    INFO(ReadText(sender.log()) << ReadText(receiver.log()));
    REQUIRE(came);
    CHECK(sender.Status(kModel).newest().id().version() < version);
    CHECK(receiver.Status().committed().version() < version);
  }
  /// A reader who opens the directory finds version 1.
  void ReadersSeeTheOld() {
    trainer.content().swap(old);
    CHECK(trainer.Compare(receiver.dir()) == "");
    trainer.content().swap(old);
  }
  void Follows(uint64_t version) {
    const bool committed = receiver.WaitCommitted(version);
    INFO(ReadText(sender.log()) << ReadText(receiver.log()));
    REQUIRE(committed);
    CHECK(trainer.Compare(receiver.dir()) == "");
  }
  bool Says(const std::string& text) {
    return ReadText(receiver.log()).find(text) != std::string::npos;
  }

  const std::string buffers;
  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  ReceiverProcess receiver;
  std::vector<std::byte> old;
};

}  // namespace

TEST_CASE("a receiver has what is written while the trainer writes the rest") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(buffers, 301);
  auto offload = s.HalfWay();
  s.ReadersSeeTheOld();
  s.Finish(offload);
  const auto pull = s.receiver.Status().last_pull();
  CHECK(pull.ahead_bytes() > 0);
  CHECK(pull.ahead_bytes() <= pull.payload_bytes());
  CHECK(pull.ahead_seconds() > 0);
  CHECK(pull.chunks_full() == 0);
  CHECK(s.receiver.Status().commits() == 2);
  CHECK_FALSE(s.Says("discarding the chunks of"));
}

TEST_CASE("nothing of a version that the trainer gives up stays at a receiver") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(buffers, 302);
  auto offload = s.HalfWay();
  offload.Abandon();
  REQUIRE(Eventually([&] { return s.Says("discarding the chunks of version 2"); }));
  REQUIRE(Eventually([&] { return s.receiver.Status().phase() == "idle"; }));
  CHECK(Holding(s.receiver, 2) == 0);
  CHECK(s.receiver.Status().committed().version() == 1);
  CHECK(s.receiver.Status().message().empty());  // that is no failure of a pull
  s.ReadersSeeTheOld();
  // The same number with other bytes comes as deltas from what the receiver has committed.
  s.trainer.content() = s.old;
  s.PublishAnew();
  CHECK(s.receiver.Status().commits() == 2);
}

TEST_CASE("a tensor that is written again in another attempt arrives as it was written last") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(buffers, 303);
  auto offload = s.HalfWay();
  s.trainer.Step(0.02);
  auto again = s.Begin(2);
  CHECK(again.attempt() != offload.attempt());
  s.WriteFirst(again);
  REQUIRE(Eventually([&] { return s.Says("discarding the chunks of"); }));
  s.AwaitEarly(2);
  s.ReadersSeeTheOld();
  s.Finish(again);
  CHECK(s.receiver.Status().last_pull().chunks_full() == 0);
}

TEST_CASE(
    "a sender that is killed while receivers take what is written leaves them where they were") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(buffers, 304);
  auto offload = s.HalfWay();
  s.sender.Restart();
  REQUIRE(Eventually([&] { return s.Says("discarding the chunks of"); }));
  CHECK(Holding(s.receiver, 2) == 0);
  s.ReadersSeeTheOld();
  s.PublishAnew();
}

TEST_CASE("a receiver that is killed with a part of a version commits the whole of it") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(buffers, 305);
  auto offload = s.HalfWay();
  s.receiver.Restart();
  s.Finish(offload);
  CHECK(s.receiver.Status().last_pull().chunks_full() == 0);
}

TEST_CASE("callers of sync, verify and pause need not wait for the trainer") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(buffers, 306);
  auto offload = s.HalfWay();
  const auto synced = s.receiver.Sync();
  REQUIRE(synced.status() == absl::OkStatus());
  CHECK(synced->back().phase() == "committed");
  s.AwaitEarly(2);
  const auto verified = s.receiver.Verify(false);
  REQUIRE(verified.status() == absl::OkStatus());
  CHECK(verified->committed().version() == 1);
  s.AwaitEarly(2, /*kept=*/true);
  CHECK(s.receiver.SetPaused(true) == absl::OkStatus());
  s.ReadersSeeTheOld();
  CHECK(s.receiver.SetPaused(false) == absl::OkStatus());
  s.AwaitEarly(2, /*kept=*/true);
  s.Finish(offload);
}

TEST_CASE("the only file keeps its name until what outgrows staging is published") {
  // Chunks that change nearly everywhere come whole, and others exceed what may be staged.
  const double change = GENERATE(0.01, 2.0);
  CAPTURE(change);
  Scene s("1", 307, {"--staging", "64KiB"}, change);
  auto offload = s.Begin(2);
  s.WriteFirst(offload);
  REQUIRE(Eventually([&] { return s.receiver.Status().phase() == "pulling"; }));
  if (change < 1) s.AwaitEarly(2);
  s.ReadersSeeTheOld();
  CHECK(s.receiver.Status().bytes_done() <= 64 << 10);
  s.WriteRest(offload);
  CHECK(s.receiver.Status().committed().version() == 1);
  offload.Ready();
  s.Follows(2);
}

TEST_CASE("a relay passes on what is written, and what is given up") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s("2", 309, {"--bulk-listen", fmt::format("127.0.0.1:{}", FreePort())});
  ReceiverProcess leaf(s.root.path(), "leaf", s.receiver.control(), kModel, {"--buffers", buffers});
  REQUIRE(leaf.WaitCommitted(1));
  const auto leaf_has_some = [&] {
    const bool has = Eventually([&] {
      const auto status = leaf.Status();
      return status.phase() == "pulling" && status.bytes_done() > 0;
    });
    INFO(ReadText(s.receiver.log()) << ReadText(leaf.log()));
    CHECK(s.sender.Status(kModel).newest().id().version() == 1);
    CHECK(leaf.Status().committed().version() == 1);
    return has;
  };
  const auto dropped = [&] {
    return ReadText(leaf.log()).find("which is not published") != std::string::npos;
  };
  auto given_up = s.Begin(2);
  s.WriteFirst(given_up);
  REQUIRE(leaf_has_some());
  given_up.Abandon();
  REQUIRE(Eventually(dropped));
  CHECK(Holding(leaf, 2) == 0);
  s.trainer.Step(0.02);
  auto offload = s.Begin(2);
  s.WriteFirst(offload);
  REQUIRE(leaf_has_some());
  s.WriteRest(offload);
  offload.Ready();
  s.Follows(2);
  REQUIRE(leaf.WaitCommitted(2));
  CHECK(s.trainer.Compare(leaf.dir()) == "");
  CHECK(leaf.Status().last_pull().ahead_bytes() > 0);
  CHECK(leaf.Status().last_pull().chunks_full() == 0);
}

TEST_CASE("a member of a group has what is written, and commits it on the word") {
  const std::string buffers = GENERATE("1", "2");
  const bool given_up = GENERATE(false, true);
  CAPTURE(buffers, given_up);
  Scene s(buffers, 310, {"--no-follow"}, 0.01, {"--group", "g=r", "--group-commits"});
  if (given_up) {
    auto offload = s.HalfWay();
    offload.Abandon();
    REQUIRE(Eventually([&] { return s.Says("discarding the chunks of version 2"); }));
    s.ReadersSeeTheOld();
    s.trainer.Step();
  }
  auto offload = s.HalfWay();
  s.ReadersSeeTheOld();
  s.Finish(offload);
  const auto pull = s.receiver.Status().last_pull();
  CHECK(pull.ahead_bytes() > 0);
  CHECK(pull.chunks_full() == 0);
  CHECK(s.receiver.Status().commits() == 2);
  const auto status = s.sender.Status(kModel);
  REQUIRE(status.groups_size() == 1);
  CHECK(status.groups(0).commits() == 2);
  CHECK(status.groups(0).last().late() == 0);
}

TEST_CASE("a version that has come to a member stays there until its group asks for it") {
  const std::string buffers = GENERATE("1", "2");
  const bool third = GENERATE(false, true);
  CAPTURE(buffers, third);
  Scene s(buffers, 315, {}, 0.01, {"--group", "g=r"});
  auto offload = s.HalfWay();
  s.WriteRest(offload);
  offload.Ready();
  const bool ready = Eventually([&] { return s.receiver.Status().phase() == "prepared"; });
  INFO(ReadText(s.sender.log()) << ReadText(s.receiver.log()));
  REQUIRE(ready);
  CHECK(s.receiver.Status().committed().version() == 1);
  s.ReadersSeeTheOld();
  if (third) {
    s.trainer.Step();
    REQUIRE(s.trainer.Publish(3).ok());
  }
  REQUIRE(s.GroupRound());
  s.Follows(third ? 3 : 2);
  CHECK(s.receiver.Status().last_pull().chunks_full() == 0);
}

TEST_CASE("with --early diff a version comes when it is published") {
  ShmDir root;
  SenderProcess sender(root.path(), {"--early", "diff"});
  Trainer trainer(sender.socket(), kModel, 24, 308);
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(trainer.Compare(receiver.dir()) == "");
  CHECK(receiver.Status().last_pull().ahead_seconds() == 0);
}

}  // namespace deltawire::testing::early_test
