// Bad input of every kind: garbage on the bulk port, offloads that cannot be, a trainer that dies,
// too little memory, options that do not work. Each must give a clear error; the other side keeps
// running, and nothing that was published is lost.
#include <grpcpp/grpcpp.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>

#include "common/wire/frame.h"
#include "common/wire/messages.h"
#include "common/wire/wire_versions.h"
#include "tests/support/daemons.h"
#include "tests/support/tcp.h"

namespace deltawire::testing::bad_input_test {
namespace {

constexpr const char* kModel = "m";

/// A control group of this test's own, of version 2 or 1, whose processes get so many bytes of
/// memory.
class ControlGroup {
 public:
  explicit ControlGroup(uint64_t bytes) {
    for (const auto& [mount, limit] :
         {std::pair{"/sys/fs/cgroup", "memory.max"},
          std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}}) {
      path_ = std::filesystem::path(mount) / fmt::format("deltawire-test-{}", getpid());
      std::error_code error;
      if (!std::filesystem::create_directory(path_, error)) continue;
      made_ = Write(limit, bytes);
      if (made_) return;
      std::filesystem::remove(path_, error);
    }
  }
  ~ControlGroup() {
    // Its processes have just been killed, and may still be in it.
    if (made_) Eventually([this] { return ::rmdir(path_.c_str()) == 0; });
  }
  bool made() const { return made_; }
  bool Take(pid_t process) const { return Write("cgroup.procs", static_cast<uint64_t>(process)); }

 private:
  bool Write(const char* file, uint64_t number) const {
    if (!std::filesystem::exists(path_ / file)) return false;
    std::ofstream out(path_ / file);
    out << number;
    return static_cast<bool>(out.flush());
  }
  std::filesystem::path path_;
  bool made_ = false;
};

// A connection to the bulk port that sends whatever a test gives it, valid or not.
class RawStream {
 public:
  explicit RawStream(uint16_t port) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    timeval timeout{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    REQUIRE(ConnectHere(fd_, port));
  }
  ~RawStream() { close(fd_); }

  void Send(Bytes bytes) { REQUIRE(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0); }
  void HalfClose() { shutdown(fd_, SHUT_WR); }

  void SendFrame(wire::FrameHeader header, const std::vector<std::byte>& payload) {
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.payload_xxh3 = Xxh3(payload);
    Send(wire::EncodeHeader(header));
    Send(payload);
  }

  // Reads the next frame, and puts its payload into `payload`.
  StatusOr<wire::FrameHeader> Receive(std::vector<std::byte>& payload) {
    wire::HeaderBytes bytes;
    if (!ReadAll(bytes)) return absl::UnavailableError("closed");
    DW_ASSIGN_OR_RETURN(wire::FrameHeader header, wire::DecodeHeader(bytes));
    payload.resize(header.payload_bytes);
    if (!ReadAll(payload)) return absl::UnavailableError("closed in a payload");
    return header;
  }

  // Reads the next frame, which must be an Error, and returns its status.
  Status ReceiveError() {
    std::vector<std::byte> payload;
    auto header = Receive(payload);
    REQUIRE(header.status() == absl::OkStatus());
    REQUIRE(header->type == wire::FrameType::kError);
    auto error = wire::DecodeWireError(payload);
    REQUIRE(error.ok());
    return wire::ToStatus(*error);
  }

 private:
  bool ReadAll(MutableBytes to) {
    for (size_t done = 0; done < to.size();) {
      const ssize_t n = recv(fd_, to.data() + done, to.size() - done, 0);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }
  int fd_ = -1;
};

wire::FrameHeader Type(wire::FrameType t) {
  wire::FrameHeader h;
  h.type = t;
  return h;
}

// Opens a pull over gRPC, and returns the Hello frame that goes with its ticket.
wire::Hello OpenPull(SenderProcess& sender, const Layout& layout, uint16_t streams = 1) {
  v1::OpenPullRequest request;
  request.set_model(kModel);
  request.set_receiver_id("raw");
  request.set_fingerprint(layout.fingerprint().Hex());
  request.set_streams(streams);
  v1::OpenPullResponse response;
  grpc::ClientContext context;
  const grpc::Status status = sender.pulls().OpenPull(&context, request, &response);
  INFO(status.error_message());
  REQUIRE(status.ok());
  wire::Hello hello;
  REQUIRE(response.ticket().size() == hello.ticket.size());
  std::memcpy(hello.ticket.data(), response.ticket().data(), hello.ticket.size());
  hello.fingerprint = layout.fingerprint();
  hello.streams = streams;
  return hello;
}

bool Mentions(const Status& status, std::string_view what) {
  INFO(status.ToString());
  return MessageOf(status).find(what) != std::string_view::npos;
}

}  // namespace

TEST_CASE("a receiver of other wire versions is refused before it opens a stream") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 31);
  REQUIRE(trainer.Publish(1).ok());
  const auto open = [&](uint32_t oldest, uint32_t newest, v1::OpenPullResponse* response) {
    v1::OpenPullRequest request;
    request.set_model(kModel);
    request.set_receiver_id("raw");
    request.set_fingerprint(trainer.layout().fingerprint().Hex());
    request.set_streams(1);
    request.set_oldest_wire_version(oldest);
    request.set_newest_wire_version(newest);
    grpc::ClientContext context;
    return sender.pulls().OpenPull(&context, request, response);
  };
  v1::OpenPullResponse response;
  const grpc::Status newer = open(wire::kWireVersion + 1, wire::kWireVersion + 2, &response);
  CHECK(newer.error_code() == grpc::StatusCode::UNIMPLEMENTED);
  CHECK(newer.error_message().find("receiver raw speaks wire version") != std::string::npos);
  CHECK(open(2, 1, &response).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  // The next release's receiver, which speaks ours, too.
  REQUIRE(open(wire::kWireVersion, wire::kWireVersion + 1, &response).ok());
  CHECK(response.wire_version() == wire::kWireVersion);
}

TEST_CASE("the bulk port refuses what is not its protocol, and goes on serving") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 31);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(1));
  RawStream stream(sender.bulk_port());

  SECTION("wrong magic") {
    auto header = wire::EncodeHeader(Type(wire::FrameType::kHello));
    header[0] = std::byte{'X'};
    stream.Send(header);
    CHECK(stream.ReceiveError().code() == StatusCode::kDataLoss);
  }
  SECTION("a frame longer than its limit is refused before its payload is awaited") {
    wire::FrameHeader header = Type(wire::FrameType::kHello);
    header.payload_bytes = wire::kMaxControlPayload + 1;
    stream.Send(wire::EncodeHeader(header));
    CHECK(stream.ReceiveError().code() == StatusCode::kResourceExhausted);
  }
  SECTION("a truncated frame") {
    const auto header = wire::EncodeHeader(Type(wire::FrameType::kHello));
    stream.Send(Bytes(header).first(20));
    stream.HalfClose();
    CHECK(stream.ReceiveError().code() == StatusCode::kUnavailable);
  }
  SECTION("a payload that does not match its checksum") {
    const auto payload = wire::Encode(wire::Hello{});
    wire::FrameHeader header = Type(wire::FrameType::kHello);
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.payload_xxh3 = Xxh3(payload) + 1;
    stream.Send(wire::EncodeHeader(header));
    stream.Send(payload);
    CHECK(stream.ReceiveError().code() == StatusCode::kDataLoss);
  }
  SECTION("a ticket that nobody granted") {
    wire::Hello hello;
    hello.fingerprint = trainer.layout().fingerprint();
    stream.SendFrame(Type(wire::FrameType::kHello), wire::Encode(hello));
    const Status error = stream.ReceiveError();
    CHECK(error.code() == StatusCode::kPermissionDenied);
    CHECK(Mentions(error, "ticket"));
  }
  SECTION("another layout") {
    wire::Hello hello = OpenPull(sender, trainer.layout());
    hello.fingerprint.lo ^= 1;
    stream.SendFrame(Type(wire::FrameType::kHello), wire::Encode(hello));
    const Status error = stream.ReceiveError();
    CHECK(error.code() == StatusCode::kFailedPrecondition);
    CHECK(Mentions(error, "layout"));
  }
  SECTION("a base newer than what is published") {
    const wire::Hello hello = OpenPull(sender, trainer.layout());
    stream.SendFrame(Type(wire::FrameType::kHello), wire::Encode(hello));
    std::vector<std::byte> payload;
    REQUIRE(stream.Receive(payload)->type == wire::FrameType::kWelcome);
    wire::Have have;
    const auto newest = sender.Status(kModel).newest().id();
    have.held = {.lineage = Hash128::FromHex(newest.lineage()).value(), .id = {1, 99}};
    have.chunks.resize(sender.Status(kModel).chunks());
    stream.SendFrame(Type(wire::FrameType::kHave), wire::Encode(have));
    const Status error = stream.ReceiveError();
    CHECK(error.code() == StatusCode::kFailedPrecondition);
    CHECK(Mentions(error, "99"));
  }
  SECTION("a base that the sender does not know is refused chunk by chunk: all come whole") {
    trainer.Step();
    REQUIRE(trainer.Publish(2).ok());
    const wire::Hello hello = OpenPull(sender, trainer.layout());
    stream.SendFrame(Type(wire::FrameType::kHello), wire::Encode(hello));
    std::vector<std::byte> payload;
    REQUIRE(stream.Receive(payload)->type == wire::FrameType::kWelcome);
    wire::Have have;
    have.held.id = {1, 1};
    have.chunks.resize(sender.Status(kModel).chunks());
    for (auto& c : have.chunks) c = {.version = 1, .digest = 0xbad};  // right number, other bytes
    stream.SendFrame(Type(wire::FrameType::kHave), wire::Encode(have));
    uint64_t full = 0;
    while (true) {
      auto frame = stream.Receive(payload);
      REQUIRE(frame.ok());
      REQUIRE(frame->type != wire::FrameType::kChunkDelta);
      if (frame->type == wire::FrameType::kEnd) break;
      full += frame->type == wire::FrameType::kChunkFull;
    }
    CHECK(full == have.chunks.size());
  }
  SECTION("a Have of another size") {
    const wire::Hello hello = OpenPull(sender, trainer.layout());
    stream.SendFrame(Type(wire::FrameType::kHello), wire::Encode(hello));
    std::vector<std::byte> payload;
    REQUIRE(stream.Receive(payload)->type == wire::FrameType::kWelcome);
    wire::Have have;
    have.chunks.resize(3);
    stream.SendFrame(Type(wire::FrameType::kHave), wire::Encode(have));
    CHECK(!stream.ReceiveError().ok());
  }

  // After each of these the sender still serves a well-behaved receiver.
  trainer.Step();
  REQUIRE(trainer.Publish(7).status() == absl::OkStatus());
  REQUIRE(receiver.WaitCommitted(7));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("impossible offloads are refused with the reason, and the published version stays") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 32);
  REQUIRE(trainer.Publish(5).ok());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(5));
  const std::vector<std::byte> fifth = trainer.content();
  trainer.Step();

  const auto older = trainer.TryPublish(4);
  CHECK(older.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Mentions(older.status(), "version 4 is not newer"));

  const auto missing = trainer.TryPublish(6, {1, 2});
  CHECK(missing.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Mentions(missing.status(), trainer.layout().tensor(1).name));
  CHECK(Mentions(missing.status(), trainer.layout().tensor(2).name));
  CHECK(sender.Status(kModel).newest().id().version() == 5);
  CHECK(receiver.Status().committed().version() == 5);

  std::swap(trainer.content(), const_cast<std::vector<std::byte>&>(fifth));
  CHECK(trainer.Compare(receiver.dir()) == "");
  std::swap(trainer.content(), const_cast<std::vector<std::byte>&>(fifth));
  REQUIRE(trainer.TryPublish(6).status() == absl::OkStatus());
  REQUIRE(receiver.WaitCommitted(6));
  CHECK(trainer.Compare(receiver.dir()) == "");

  Trainer other(sender.socket(), kModel, 5, 33);
  const auto relaid = other.TryPublish(7);
  CHECK(relaid.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Mentions(relaid.status(), "another layout"));
}

TEST_CASE("a trainer that dies in an offload leaves the sender able to begin again") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 4, 34);
  REQUIRE(trainer.Publish(1).ok());
  {
    auto begun = trainer.client().Begin(2);
    REQUIRE(begun.ok());
    std::fill((*begun)->tensor(0).begin(), (*begun)->tensor(0).end(), std::byte{0x5a});
  }
  trainer.Step();
  REQUIRE(trainer.Publish(3).status() == absl::OkStatus());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(3));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("too little memory is an error at the start, by name and number") {
  ShmDir root;
  const auto small = root.path() / "small";
  std::filesystem::create_directories(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=3m,mode=755") != 0) {
    std::puts("SKIPPED: mounting a small tmpfs needs CAP_SYS_ADMIN");
    return;
  }
  {
    SenderProcess sender(small);
    Trainer trainer(sender.socket(), kModel, 4, 35);
    const auto refused = trainer.TryPublish(1);
    CHECK(refused.status().code() == StatusCode::kResourceExhausted);
    CHECK(Mentions(refused.status(), small.string()));
    CHECK(sender.child().Running());

    // A receiver whose directory is too small says so, and its sender keeps running.
    SenderProcess roomy(root.path());
    Trainer fits(roomy.socket(), kModel, 4, 36);
    REQUIRE(fits.Publish(1).ok());
    ReceiverProcess receiver(small, "r1", roomy.control(), kModel);
    REQUIRE(Eventually(
        [&] { return receiver.Status().message().find(small.string()) != std::string::npos; }));
    CHECK(receiver.Status().phase() == "failed");
    CHECK(receiver.child().Running());
    CHECK(roomy.child().Running());
  }
  CHECK(umount2(small.c_str(), MNT_DETACH) == 0);
}

TEST_CASE("a receiver whose control group has room for one and a half models keeps one file") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 192, 37);
  const ControlGroup group(trainer.layout().total_bytes() * 3 / 2);
  if (!group.made()) {
    std::puts("SKIPPED: no control group with a limit of memory can be made here");
    return;
  }
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(group.Take(receiver.child().pid()));
  for (uint64_t v = 1; v <= 3; ++v) {
    REQUIRE(trainer.Publish(v).ok());
    REQUIRE(Eventually(
        [&] { return !receiver.child().Running() || receiver.Status().committed().version() == v; },
        std::chrono::seconds(60)));
    REQUIRE(receiver.child().Running());
    trainer.Step();
  }
  CHECK(receiver.Status().buffers() == 1);
  CHECK(receiver.Verify(false)->bad_chunks() == 0);
}

TEST_CASE("daemons that cannot start say why and exit") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 1, 37);
  REQUIRE(trainer.Publish(1).ok());
  const auto log = root.path() / "second.log";
  const auto run = [&](const std::string& program, std::vector<std::string> args) {
    std::filesystem::remove(log);
    const int code = Spawn(program, std::move(args), log)->Wait(std::chrono::seconds(20));
    return std::pair<int, std::string>(code, ReadText(log));
  };
  const auto fails_with = [&](const std::string& program, std::vector<std::string> args,
                              const std::string& text) {
    const auto [code, output] = run(program, std::move(args));
    INFO(program << " exited with " << code << ":\n" << output);
    CHECK(code > 0);
    CHECK(code < 128);
    CHECK(output.find(text) != std::string::npos);
  };
  const std::string fresh = (root.path() / "fresh").string();
  const std::string free_port = fmt::format("127.0.0.1:{}", FreePort());

  // Ports that another process listens at.
  fails_with(
      "deltawire-sender",
      {"--data-dir", fresh, "--control-listen", sender.control(), "--bulk-listen", free_port},
      sender.control());
  const std::string bulk = fmt::format("127.0.0.1:{}", sender.bulk_port());
  fails_with("deltawire-sender",
             {"--data-dir", fresh, "--control-listen", free_port, "--bulk-listen", bulk}, bulk);
  // A data directory that another sender owns; the message names that sender's pid.
  fails_with("deltawire-sender",
             {"--data-dir", sender.dir().string(), "--control-listen", free_port, "--bulk-listen",
              "127.0.0.1:0"},
             std::to_string(sender.child().pid()));
  // A configuration file that is missing or has an unknown key, and an address beyond loopback.
  fails_with("deltawire-receiver", {"--config", "/nonexistent/receiver.toml"},
             "/nonexistent/receiver.toml");
  const auto config = root.path() / "bad.toml";
  std::ofstream(config) << "no-such-option = 1\n";
  fails_with("deltawire-sender", {"--config", config.string()}, "no-such-option");
  fails_with("deltawire-sender", {"--control-listen", "0.0.0.0:0"}, "--insecure-plaintext");

  CHECK(sender.child().Running());
  trainer.Step();
  CHECK(trainer.Publish(2).status() == absl::OkStatus());
}

}  // namespace deltawire::testing::bad_input_test
