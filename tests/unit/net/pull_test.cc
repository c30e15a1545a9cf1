// A PullServer and a PullClient over loopback, with faults on either side.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "common/base/acceptor.h"
#include "tests/support/eventually.h"
#include "tests/support/tcp.h"
#include "tests/unit/net/pull_rig.h"

namespace deltawire::net::pull_test {
namespace {

using namespace std::chrono_literals;
using testing::Eventually;

// A client that can send any bytes to the bulk port.
class RawClient {
 public:
  /// `buffer`: bytes of the socket's receive buffer; 0 leaves the kernel's default.
  explicit RawClient(uint16_t port, int buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (buffer != 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    REQUIRE(testing::ConnectHere(fd_, port));
  }
  ~RawClient() { close(fd_); }
  void SendSome(std::string_view bytes) const {
    REQUIRE(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void SendHeader(const wire::FrameHeader& header) const {
    SendSome(AsChars(wire::EncodeHeader(header)));
  }
  void SendFrame(wire::FrameType type, const std::vector<std::byte>& payload) const {
    wire::FrameHeader h;
    h.type = type;
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    h.payload_xxh3 = Xxh3(payload);
    SendHeader(h);
    SendSome(AsChars(payload));
  }
  void SendSlowly(std::string_view bytes, size_t bytes_per_s) const {
    const size_t piece = bytes_per_s / 50;
    for (size_t done = 0; done < bytes.size(); done += piece) {
      SendSome(bytes.substr(done, piece));
      std::this_thread::sleep_for(20ms);  // this is the link's speed
    }
  }
  void SendHello() const {
    wire::Hello hello;
    hello.fingerprint.lo = 42;
    SendFrame(wire::FrameType::kHello, wire::Encode(hello));
  }
  /// Returns false if the server closes the stream before `bytes` have come.
  bool ReadSlowly(size_t bytes, size_t bytes_per_s) const {
    std::vector<char> piece(bytes_per_s / 50);
    while (bytes > 0) {
      const ssize_t n = recv(fd_, piece.data(), std::min(piece.size(), bytes), 0);
      if (n <= 0) return false;
      bytes -= static_cast<size_t>(n);
      std::this_thread::sleep_for(20ms);  // this is the link's speed
    }
    return true;
  }
  bool WaitClosed() const {
    pollfd closed{fd_, POLLIN, 0};
    char byte = 0;
    return poll(&closed, 1, 20000) == 1 && recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  const int fd_;
};

}  // namespace

TEST_CASE("a limit of the server, of the pull, or of its site holds over all streams") {
  constexpr uint64_t kRate = 20'000'000;
  uint64_t bytes = 0;
  for (uint32_t chunk = 0; chunk < 60; ++chunk) bytes += Pattern(chunk).size();
  for (const std::string of : {"server", "pull", "site"}) {
    CAPTURE(of);
    Rig rig(60, Fault::kNone, 10s, nullptr, of == "server" ? kRate : 0);
    const auto bucket = std::make_shared<TokenBucket>(kRate);
    if (of == "pull") rig.source.session->limit = bucket;
    if (of == "site") rig.source.session->site_limit = bucket;
    PullClient client(rig.io, rig.Target(4));
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(client.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
    const auto took = std::chrono::steady_clock::now() - start;
    CHECK(rig.sink.finished == 60);
    // The limit lets a burst of a tenth of a second pass at the start, and no stream waits after
    // its last piece.
    const double least = static_cast<double>(bytes - 4 * 300'000) / kRate - 0.1;
    CHECK(std::chrono::duration<double>(took).count() > least);
  }
}

TEST_CASE("every chunk arrives whole over any number of streams") {
  const auto streams = static_cast<uint16_t>(GENERATE(1, 2, 5));
  Rig rig(97, Fault::kNone);
  PullClient client(rig.io, rig.Target(streams));
  wire::Have have = rig.MakeHave();
  have.held = {.lineage = {.hi = 8, .lo = 7}, .id = {3, 9}, .root = 11};
  have.chunks[5] = {.version = 8, .digest = 77};
  const auto end = client.Run(have, rig.sink);
  REQUIRE(end.status() == absl::OkStatus());
  CHECK(end->identity == kEnd.identity);
  CHECK(end->identity.attempt == kEnd.identity.attempt);
  CHECK(end->side_files_hash == kEnd.side_files_hash);
  REQUIRE(rig.sink.chunks.size() == 97);
  for (const auto& [chunk, bytes] : rig.sink.chunks) CHECK(bytes == Pattern(chunk));
  CHECK(rig.sink.finished == 97);
  CHECK(rig.sink.in_place);
  CHECK(rig.source.session->have() == have);
  for (const Status& s : rig.source.session->WaitClosed()) CHECK(s == absl::OkStatus());
}

TEST_CASE("a payload that was damaged on the way ends the pull, and its chunk is abandoned") {
  Rig rig(20, Fault::kCorrupt);
  PullClient client(rig.io, rig.Target(2));
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CHECK(end.status().code() == StatusCode::kDataLoss);
  CHECK(rig.sink.abandoned.size() >= 1);
  // The server goes on and serves the next pull.
  rig.source.session = std::make_shared<TestSession>(3, Fault::kNone);
  TestSink sink;
  PullClient again(rig.io, rig.Target(2));
  CHECK(again.Run(rig.MakeHave(), sink).ok());
}

TEST_CASE("a server that falls silent is given up after the deadline") {
  // The server's pings are further apart than the client's patience, so the silence ends the pull.
  Rig rig(5, Fault::kSilent);
  rig.server.reset();
  auto listening = PullServer::Listen(rig.io, "127.0.0.1", 0, rig.source,
                                      {.stream_timeout = 10s, .ping_interval = 5s});
  REQUIRE(listening.ok());
  rig.server = std::move(*listening);
  PullClient client(rig.io, rig.Target(1, 150ms));
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CHECK(end.status().code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("pings keep an idle stream alive beyond its deadline") {
  Rig rig(0, Fault::kIdleThenEnd);
  PullClient client(rig.io, rig.Target(1, kIdle * 3 / 4));
  CHECK(client.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
}

TEST_CASE("the least patient client stays with an idle server of any stream timeout") {
  for (const std::chrono::milliseconds server : {1000ms, 30000ms}) {
    constexpr auto kPatience = 1000ms;  // the smallest value of --stream-timeout-ms
    Rig rig(0, Fault::kIdleThenEnd);
    rig.server.reset();
    auto listening =
        PullServer::Listen(rig.io, "127.0.0.1", 0, rig.source, {.stream_timeout = server});
    REQUIRE(listening.ok());
    rig.server = std::move(*listening);
    const auto start = std::chrono::steady_clock::now();
    PullClient client(rig.io, rig.Target(1, kPatience));
    CHECK(client.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
    // The pull took longer than the client's patience, so it was the pings that kept it alive.
    CHECK(std::chrono::steady_clock::now() - start > kPatience);
  }
}

// The last chunks are the largest, and take longer than the limit of both tests at this speed.
constexpr uint32_t kFirstLarge = 32, kLarge = 38;
constexpr uint64_t kSlow = 500'000;
constexpr std::chrono::milliseconds kShort{300};

TEST_CASE("a link on which a chunk takes longer than the deadline is not silent for the client") {
  Rig rig(kLarge, Fault::kNone, 10s, nullptr, kSlow);
  rig.source.session->ServeFrom(kFirstLarge);
  PullClient client(rig.io, rig.Target(1, kShort));
  CHECK(client.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
  CHECK(rig.sink.finished == kLarge - kFirstLarge);
}

TEST_CASE("a link on which a chunk takes longer than the deadline is not stuck for the server") {
  Rig rig(kLarge, Fault::kNone, kShort);
  rig.source.session->ServeFrom(kFirstLarge);
  size_t bytes = 2 * wire::HeaderBytes().size() + wire::kEndPayload;  // Welcome and End
  for (uint32_t i = kFirstLarge; i < kLarge; ++i) {
    bytes += wire::HeaderBytes().size() + Pattern(i).size();
  }
  {
    RawClient raw(rig.server->port(), 16 << 10);
    raw.SendHello();
    raw.SendFrame(wire::FrameType::kHave, wire::Encode(rig.MakeHave()));
    CHECK(raw.ReadSlowly(bytes, kSlow));
  }
  CHECK(rig.source.session->WaitClosed() == std::vector<Status>{absl::OkStatus()});
}

TEST_CASE("a link on which a Have takes longer than the deadline is not silent for the server") {
  constexpr uint32_t kChunks = 20'000;
  Rig rig(kChunks, Fault::kNone, kShort);
  rig.source.session->ServeFrom(kChunks);
  wire::FrameHeader header;
  const std::vector<std::byte> have = wire::Encode(rig.MakeHave());
  header.type = wire::FrameType::kHave;
  header.payload_bytes = static_cast<uint32_t>(have.size());
  header.payload_xxh3 = Xxh3(have);
  RawClient raw(rig.server->port());
  raw.SendHello();
  raw.SendHeader(header);
  raw.SendSlowly(AsChars(have), have.size() / 2);  // in two seconds
  CHECK(raw.ReadSlowly(2 * wire::HeaderBytes().size() + wire::kEndPayload, kSlow));
}

TEST_CASE("a link on which a Have takes longer than the deadline is not silent for the client") {
  // A server of the test's own, behind a slow link that carries the Have.
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  constexpr int kBuffer = 16 << 10;
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &kBuffer, sizeof kBuffer);
  const uint16_t port = testing::Listen(listener, "127.0.0.1", 0);
  Rig rig(400'000, Fault::kNone);
  PullTarget target = rig.Target(1, kShort);
  target.port = port;
  const wire::Have have = rig.MakeHave();
  size_t left = wire::HeaderBytes().size() + wire::Encode(have).size();
  std::thread server([&] {
    const int peer = accept(listener, nullptr, nullptr);
    std::vector<char> piece(left / 100);
    ssize_t n = 1;
    while (left > 0 && n > 0) {
      n = recv(peer, piece.data(), std::min(piece.size(), left), 0);
      left -= static_cast<size_t>(std::max<ssize_t>(n, 0));
      std::this_thread::sleep_for(20ms);  // this is the link's speed
    }
    close(peer);
  });
  PullClient client(rig.io, target);
  const Status ended = client.Run(have, rig.sink).status();
  server.join();
  close(listener);
  CHECK(left == 0);
  CHECK(ended.code() == StatusCode::kUnavailable);  // the server has closed, and was waited for
}

TEST_CASE("a client that stops reading is cut after the server's deadline") {
  Rig rig(2000, Fault::kNone, 200ms);
  RawClient raw(rig.server->port());
  raw.SendHello();
  raw.SendFrame(wire::FrameType::kHave, wire::Encode(rig.MakeHave()));
  const auto ended = rig.source.session->WaitClosed();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("a stream that is closed under a receiver which stopped reading has moved what it has") {
  Rig rig(2000, Fault::kNone, 200ms);
  // The kernels take the first one. The session is told after that, and after the one that is
  // stuck.
  rig.source.session->ServeOf(size_t{256} << 10);
  RawClient raw(rig.server->port());
  raw.SendHello();
  raw.SendFrame(wire::FrameType::kHave, wire::Encode(rig.MakeHave()));
  REQUIRE(rig.source.session->WaitClosed().size() == 1);
  const auto [served, moved] = rig.source.session->served_and_moved();
  CHECK(moved > 0);
  CHECK(moved <= served + 2 * wire::HeaderBytes().size() * 2000);
}

TEST_CASE("a client says what it has before the server answers, and hears a refusal all the same") {
  // A server of the test's own, which says nothing before it has read the whole Have.
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const uint16_t port = testing::Listen(listener, "127.0.0.1", 0);
  std::vector<wire::FrameType> read;
  std::thread server([&] {
    const int peer = accept(listener, nullptr, nullptr);
    for (int i = 0; i < 2; ++i) {
      wire::HeaderBytes bytes;
      if (recv(peer, bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size()))
        break;
      const auto header = wire::DecodeHeader(bytes);
      if (!header.ok()) break;
      read.push_back(header->type);
      std::vector<std::byte> payload(header->payload_bytes);
      recv(peer, payload.data(), payload.size(), MSG_WAITALL);
    }
    close(peer);
  });
  Rig rig(3, Fault::kNone);
  PullTarget target = rig.Target(1, 2s);
  target.port = port;
  PullClient client(rig.io, target);
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kUnavailable);
  server.join();
  close(listener);
  CHECK(read == std::vector<wire::FrameType>{wire::FrameType::kHello, wire::FrameType::kHave});

  // A refusal is heard however large the Have is that nobody reads.
  Rig refuses(200'000, Fault::kNone);
  refuses.source.admits = [](const wire::Hello&, const StreamPeer&) {
    return absl::PermissionDeniedError("not you");
  };
  PullClient refused(refuses.io, refuses.Target(1));
  const auto end = refused.Run(refuses.MakeHave(), refuses.sink);
  CHECK(end.status().code() == StatusCode::kPermissionDenied);
}

TEST_CASE("a cut tells the receiver why") {
  Rig rig(1, Fault::kSilent);
  PullClient client(rig.io, rig.Target(3));
  std::thread cutter([&] {
    rig.source.session->WaitOpened(3);
    rig.source.session->Cut(absl::AbortedError("cut by the test"));
  });
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  cutter.join();
  CHECK(end.status().code() == StatusCode::kAborted);
  CHECK(MessageOf(end.status()).find("cut by the test") != std::string_view::npos);
}

TEST_CASE("a cut does not wait for a receiver that has stopped reading") {
  Rig rig(2000, Fault::kNone);
  RawClient raw(rig.server->port());
  raw.SendHello();
  raw.SendFrame(wire::FrameType::kHave, wire::Encode(rig.MakeHave()));
  rig.source.session->WaitOpened(1);
  const auto start = std::chrono::steady_clock::now();
  rig.source.session->Cut(absl::AbortedError("cut by the test"));
  CHECK(rig.source.session->WaitClosed().size() == 1);
  // The streams close far sooner than the stream timeout of 10 s.
  CHECK(std::chrono::steady_clock::now() - start < 3s);
}

TEST_CASE("a session that throws ends its streams, and Stop returns") {
  Rig rig(1, Fault::kThrow);
  PullClient client(rig.io, rig.Target(2));
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CHECK(end.status().code() == StatusCode::kInternal);
  CHECK(MessageOf(end.status()).find("the test throws") != std::string_view::npos);
  for (const Status& s : rig.source.session->WaitClosed()) CHECK(!s.ok());
  rig.server->Stop();
}

TEST_CASE("a sink that throws ends the pull") {
  Rig rig(10, Fault::kNone);
  rig.sink.throw_at = 5;
  PullClient client(rig.io, rig.Target(2));
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kInternal);
  rig.source.session->WaitClosed();
}

TEST_CASE("a Have that is too large for the model is refused by its header alone") {
  Rig rig(3, Fault::kNone);
  RawClient raw(rig.server->port());
  raw.SendHello();
  wire::FrameHeader claim;
  claim.type = wire::FrameType::kHave;
  claim.payload_bytes = wire::kMaxHavePayload;
  raw.SendHeader(claim);  // no payload follows, and the server must not wait for it
  const auto ended = rig.source.session->WaitClosed();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].code() == StatusCode::kDataLoss);
  CHECK(MessageOf(ended[0]).find("3 chunks") != std::string_view::npos);
}

TEST_CASE("a connection that does not say Hello is closed long before the stream timeout") {
  Rig rig(1, Fault::kNone);
  rig.server.reset();
  auto listening = PullServer::Listen(rig.io, "127.0.0.1", 0, rig.source,
                                      {.stream_timeout = 600s,
                                       .ping_interval = 50ms,
                                       .first_byte_timeout = 100ms,
                                       .hello_timeout = 300ms});
  REQUIRE(listening.ok());
  rig.server = std::move(*listening);
  RawClient silent(rig.server->port());
  CHECK(silent.WaitClosed());
  RawClient slow(rig.server->port());
  slow.SendSome("D");
  CHECK(slow.WaitClosed());
}

TEST_CASE("connections have a limit, in all and per address") {
  Rig rig(1, Fault::kSilent);
  rig.server.reset();
  const bool per_address = GENERATE(false, true);
  PullServer::Options options{.stream_timeout = 10s, .ping_interval = 50ms};
  (per_address ? options.max_connections_per_address : options.max_connections) = 2;
  auto listening = PullServer::Listen(rig.io, "127.0.0.1", 0, rig.source, options);
  REQUIRE(listening.ok());
  rig.server = std::move(*listening);
  PullClient three(rig.io, rig.Target(3));
  const auto end = three.Run(rig.MakeHave(), rig.sink);
  CHECK(end.status().code() == StatusCode::kResourceExhausted);
  CHECK(MessageOf(end.status()).find("2 bulk connections") != std::string_view::npos);
  CHECK(rig.server->refused() == 1);
  rig.source.session->WaitClosed();
  // Connections that are closed do not count against the limit.
  REQUIRE(Eventually([&] { return rig.server->connections() == 0; }));
  rig.source.session = std::make_shared<TestSession>(1, Fault::kNone);
  PullClient two(rig.io, rig.Target(2));
  CHECK(two.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
}

TEST_CASE("streams that name different ends are refused") {
  Rig rig(1, GENERATE(Fault::kSplitEnd, Fault::kSplitRoot));
  PullClient client(rig.io, rig.Target(2));
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kDataLoss);
}

TEST_CASE("the server's error reaches the client with its code and text") {
  Rig rig(1, Fault::kError);
  PullClient client(rig.io, rig.Target(2));
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CHECK(end.status().code() == StatusCode::kAborted);
  CHECK(MessageOf(end.status()).find("the test says so") != std::string_view::npos);

  PullTarget wrong = rig.Target(1);
  wrong.fingerprint.lo = 41;
  PullClient other(rig.io, wrong);
  CHECK(other.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("a refusal is heard by a client whose long Have nobody reads") {
  Rig rig(1, Fault::kNone);
  PullTarget wrong = rig.Target(1);
  wrong.fingerprint.lo = 41;
  wire::Have have;
  have.chunks.resize(1'000'000);  // more than both kernels take
  PullClient client(rig.io, wrong);
  const Status refused = client.Run(have, rig.sink).status();
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(MessageOf(refused).find("another layout") != std::string_view::npos);
}

TEST_CASE("an error whose checksum is wrong is not believed") {
  const bool damaged = GENERATE(false, true);
  CAPTURE(damaged);
  const auto listener = ListenTcp("127.0.0.1", 0);
  REQUIRE(listener.ok());
  std::thread server([&] {
    pollfd ready{listener->get(), POLLIN, 0};
    if (poll(&ready, 1, 20000) != 1) return;
    const UniqueFd peer(accept(listener->get(), nullptr, nullptr));
    const auto payload = wire::Encode(wire::FromStatus(absl::AbortedError("the test says so")));
    wire::FrameHeader h;
    h.type = wire::FrameType::kError;
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    h.payload_xxh3 = Xxh3(payload) ^ (damaged ? 1 : 0);
    const std::string frame =
        std::string(AsChars(wire::EncodeHeader(h))) + std::string(AsChars(payload));
    (void)send(peer.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
    char ignored[256];
    while (recv(peer.get(), ignored, sizeof ignored, 0) > 0) continue;  // until the client closes
  });
  IoThreads io{1};
  PullTarget target;
  target.host = "127.0.0.1";
  target.port = PortOf(*listener);
  target.streams = 1;
  target.stream_timeout = 10s;
  PullClient client(io, target);
  TestSink sink;
  const Status status = client.Run({}, sink).status();
  server.join();
  CHECK(status.code() == (damaged ? StatusCode::kDataLoss : StatusCode::kAborted));
}

TEST_CASE("a sink that refuses a chunk ends the pull with its own words") {
  Rig rig(30, Fault::kNone);
  rig.sink.refuse = 13;
  PullClient client(rig.io, rig.Target(3));
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CHECK(end.status().code() == StatusCode::kDataLoss);
  CHECK(MessageOf(end.status()) == "not this one");
  CHECK(rig.sink.chunks.count(13) == 0);
  rig.source.session->WaitClosed();
}

TEST_CASE("Cancel from another thread ends a pull that waits") {
  Rig rig(1, Fault::kSilent);
  PullClient client(rig.io, rig.Target(2));
  std::thread canceller([&] { client.Cancel(); });
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kCancelled);
  canceller.join();
}

TEST_CASE("a port that is taken and a port where nobody listens are different errors") {
  Rig rig(1, Fault::kNone);
  auto taken = PullServer::Listen(rig.io, "127.0.0.1", rig.server->port(), rig.source, {});
  CHECK(taken.status().code() == StatusCode::kAlreadyExists);
  CHECK(MessageOf(taken.status()).find(std::to_string(rig.server->port())) !=
        std::string_view::npos);
  const PullTarget target = rig.Target(1);
  rig.server->Stop();
  rig.server.reset();
  PullClient client(rig.io, target);
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kUnavailable);
}

TEST_CASE("stopping the server ends pulls that run") {
  Rig rig(1, Fault::kSilent);
  PullClient client(rig.io, rig.Target(2));
  std::thread stopper([&] {
    // The server is stopped only once the pull runs.
    while (rig.source.session->have().chunks.empty()) std::this_thread::yield();
    rig.server->Stop();
  });
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kUnavailable);
  stopper.join();
}

// A frame that waits for its turn has an error to pass on. gcc 12 freed that error twice, which a
// sanitizer sees.
TEST_CASE("stopping the server ends streams that wait for their turn in the middle of a frame") {
  Rig rig(40, Fault::kNone, 10s, nullptr, 400'000);
  PullClient client(rig.io, rig.Target(2));
  // The client has a frame's header, and not all of its bytes: how many of them it has read depends
  // on when the kernel wakes it.
  const auto in_the_middle = [&] {
    std::lock_guard lock(rig.sink.mu);
    return std::ranges::any_of(rig.sink.chunks, [&](const auto& chunk) {
      return chunk.second.size() > 80'000 && rig.sink.arrived[chunk.first] < chunk.second.size();
    });
  };
  std::thread stopper([&] {
    while (!in_the_middle()) std::this_thread::yield();
    rig.server->Stop();
  });
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kUnavailable);
  stopper.join();
  for (const Status& why : rig.source.session->WaitClosed()) CHECK(absl::IsCancelled(why));
}

}  // namespace deltawire::net::pull_test
