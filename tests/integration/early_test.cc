// Receivers that take a version while the trainer still writes it: real daemons, real sockets, real
// SIGKILLs. The trainer marks half of its tensors and keeps the offload open until the receiver has
// what could be diffed.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "common/layout/chunks.h"
#include "common/shm/state_file.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "tests/support/daemons.h"

namespace deltawire::testing {
namespace {

constexpr const char* kModel = "m";

/// An offload by the plain calls, which says of each tensor at once that it is written.
class Offload {
 public:
  Offload(const SenderProcess& sender, const Trainer& trainer, uint64_t version)
      : trainer_(trainer),
        version_(version),
        stub_(v1::TrainerService::NewStub(
            grpc::CreateChannel("unix:" + sender.socket(), grpc::InsecureChannelCredentials()))) {
    v1::BeginOffloadRequest request;
    request.set_model(kModel);
    request.set_version(version);
    request.set_client(4711);
    grpc::ClientContext context;
    const grpc::Status begun = stub_->BeginOffload(&context, request, &grant_);
    INFO(begun.error_message());
    REQUIRE(begun.ok());
  }
  uint64_t attempt() const { return grant_.attempt(); }
  /// Writes and marks the tensors from `first` to the one before `last`.
  void Write(const std::vector<std::byte>& content, size_t first, size_t last) {
    const Layout& layout = trainer_.layout();
    v1::MarkWrittenRequest request;
    request.set_model(kModel);
    request.set_lease(grant_.lease());
    std::fstream file(grant_.half_path(), std::ios::binary | std::ios::in | std::ios::out);
    for (size_t t = first; t < last; ++t) {
      file.seekp(static_cast<std::streamoff>(grant_.data_offset() + layout.offset(t)));
      file.write(reinterpret_cast<const char*>(content.data() + layout.offset(t)),
                 static_cast<std::streamsize>(layout.bytes(t)));
      request.add_tensors(static_cast<uint32_t>(t));
    }
    file.close();
    REQUIRE(file.good());
    v1::MarkWrittenResponse response;
    grpc::ClientContext context;
    const grpc::Status marked = stub_->MarkWritten(&context, request, &response);
    INFO(marked.error_message());
    REQUIRE(marked.ok());
  }
  void Abandon() {
    v1::AbandonOffloadRequest request;
    request.set_model(kModel);
    request.set_lease(grant_.lease());
    request.set_reason("loss is not a number");
    v1::AbandonOffloadResponse response;
    grpc::ClientContext context;
    REQUIRE(stub_->AbandonOffload(&context, request, &response).ok());
  }
  void Ready() {
    v1::NotifyBufferReadyRequest request;
    request.set_model(kModel);
    request.set_version(version_);
    request.set_world(1);
    request.set_lease(grant_.lease());
    request.set_wrote_all(true);
    v1::NotifyBufferReadyResponse response;
    grpc::ClientContext context;
    const grpc::Status ready = stub_->NotifyBufferReady(&context, request, &response);
    INFO(ready.error_message());
    REQUIRE(ready.ok());
  }

 private:
  const Trainer& trainer_;
  uint64_t version_;
  std::unique_ptr<v1::TrainerService::Stub> stub_;
  v1::BeginOffloadResponse grant_;
};

/// How many chunks of the receiver's files, the named one and the hidden one, hold `version`.
uint32_t Holding(const ReceiverProcess& receiver, uint64_t version) {
  const auto state = StateFile::Open(receiver.dir() / ".deltawire.state");
  if (!state.ok()) return 0;
  uint32_t n = 0;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    for (uint32_t c = 0; c < state->shape().chunks; ++c) {
      n += state->chunk_version(slot, c) == version;
    }
  }
  return n;
}

/// A model that sender and receiver have at version 1, whose content then has changed.
struct Scene {
  explicit Scene(const std::string& number_of_buffers, uint64_t seed,
                 std::vector<std::string> of_receiver = {}, double change = 0.01)
      : buffers(number_of_buffers),
        sender(root.path()),
        trainer(sender.socket(), kModel, 24, seed),
        receiver(root.path(), "r", sender.control(), kModel, With(std::move(of_receiver))) {
    REQUIRE(trainer.Publish(1).ok());
    REQUIRE(receiver.WaitCommitted(1));
    old = trainer.content();
    trainer.Step(change);
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
  /// it. With one buffer only the receiver itself knows how much that is.
  void AwaitEarly(uint64_t version) {
    const bool came = Eventually([&] {
      const auto status = receiver.Status();
      return status.phase() == "pulling" && status.bytes_done() > 0 &&
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
  CHECK_FALSE(s.Says("is dropped"));
}

TEST_CASE("nothing of a version that the trainer gives up stays at a receiver") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Scene s(buffers, 302);
  auto offload = s.HalfWay();
  offload.Abandon();
  REQUIRE(
      Eventually([&] { return s.Says("came of version 2 before it was published is dropped"); }));
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
  REQUIRE(Eventually([&] { return s.Says("is dropped"); }));
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
  REQUIRE(Eventually([&] { return s.Says("is dropped"); }));
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
  s.AwaitEarly(2);
  CHECK(s.receiver.SetPaused(true) == absl::OkStatus());
  s.ReadersSeeTheOld();
  CHECK(s.receiver.SetPaused(false) == absl::OkStatus());
  s.AwaitEarly(2);
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
  Scene s("2", 309, {"--serve", "--bulk-listen", fmt::format("127.0.0.1:{}", FreePort())});
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
    return ReadText(leaf.log()).find("before it was published is dropped") != std::string::npos;
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

TEST_CASE("without --send-early a version comes when it is published") {
  ShmDir root;
  SenderProcess sender(root.path(), {"--no-send-early"});
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

}  // namespace deltawire::testing
