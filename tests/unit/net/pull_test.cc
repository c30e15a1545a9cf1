// A PullServer and a PullClient over loopback, with faults on either side.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "common/net/pull_client.h"
#include "common/net/pull_server.h"
#include "tests/support/eventually.h"

namespace deltawire::net {
namespace {

using namespace std::chrono_literals;
using testing::Eventually;

std::vector<std::byte> Pattern(uint32_t chunk) {
  std::vector<std::byte> out(1 + (chunk * 7919) % 300'000);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(chunk + i * 31);
  return out;
}

/// How long a session with Fault::kIdleThenEnd has no frame to send.
constexpr std::chrono::milliseconds kIdle{2000};

enum class Fault { kNone, kCorrupt, kSilent, kSplitEnd, kSplitRoot, kIdleThenEnd, kError, kThrow };

constexpr PullEnd kEnd{
    .identity = {.lineage = {.hi = 3, .lo = 4}, .id = {1, 10}, .root = 5, .attempt = 6},
    .side_files_hash = 7};

// Serves chunks 0 to n-1 of Pattern to whichever stream asks, or does what the fault says.
class TestSession : public PullSession {
 public:
  TestSession(uint32_t chunks, Fault fault) : n_(chunks), fault_(fault) {}

  uint32_t chunks() const override { return n_; }
  Status Start(const wire::Have& have) override {
    std::lock_guard lock(mu_);
    started_ = true;
    have_ = have;
    if (wake_) std::exchange(wake_, nullptr)();
    cv_.notify_all();
    return absl::OkStatus();
  }

  StatusOr<std::optional<OutFrame>> Next(uint16_t stream, std::function<void()> wake) override {
    std::lock_guard lock(mu_);
    if (fault_ == Fault::kThrow) throw std::runtime_error("the test throws");
    if (!failed_.ok()) return failed_;
    if (fault_ == Fault::kError) return absl::AbortedError("the test says so");
    if (!started_ || fault_ == Fault::kSilent) {
      wake_ = std::move(wake);
      return std::optional<OutFrame>();
    }
    if (fault_ == Fault::kIdleThenEnd && Idle()) return std::optional<OutFrame>();
    OutFrame frame;
    if (next_ == n_) {
      PullEnd end = kEnd;
      if (fault_ == Fault::kSplitEnd) end.identity.id.version += stream;
      if (fault_ == Fault::kSplitRoot) end.identity.root += stream;
      return EndFrame(end);
    }
    auto payload = std::make_shared<std::vector<std::byte>>(Pattern(next_));
    // Whole chunks and deltas take turns, since only a delta has a checksum of its own.
    frame.header.type = next_ % 2 == 0 ? wire::FrameType::kChunkFull : wire::FrameType::kChunkDelta;
    frame.header.chunk = next_++;
    frame.header.epoch = 1;
    frame.header.version = 10;
    frame.header.payload_bytes = static_cast<uint32_t>(payload->size());
    frame.header.payload_xxh3 = Xxh3(*payload);
    if (fault_ == Fault::kCorrupt && frame.header.chunk == n_ / 2 + 1)
      (*payload)[0] ^= std::byte{1};
    frame.payload = *payload;
    frame.keep = payload;
    return frame;
  }

  void StreamOpened(uint16_t, std::function<void()> cut) override {
    std::lock_guard lock(mu_);
    ++opened_;
    cuts_.push_back(std::move(cut));
    cv_.notify_all();
  }
  void Cut(const Status& why) {
    std::lock_guard lock(mu_);
    failed_ = why;
    for (const auto& cut : cuts_) cut();
  }
  void WaitOpened(size_t n) {
    std::unique_lock lock(mu_);
    REQUIRE(cv_.wait_for(lock, 20s, [&] { return opened_ >= n && started_; }));
  }
  void StreamClosed(uint16_t, const Status& why) override {
    std::lock_guard lock(mu_);
    closed_.push_back(why);
    cv_.notify_all();
  }

  // Waits until every stream that was opened is closed, and returns how each one ended.
  std::vector<Status> WaitClosed() {
    std::unique_lock lock(mu_);
    REQUIRE(cv_.wait_for(lock, 20s, [this] { return opened_ > 0 && closed_.size() == opened_; }));
    return closed_;
  }
  wire::Have have() {
    std::lock_guard lock(mu_);
    return have_;
  }

 private:
  bool Idle() {
    const auto now = std::chrono::steady_clock::now();
    if (!idle_until_) idle_until_ = now + kIdle;
    return now < *idle_until_;
  }

  const uint32_t n_;
  const Fault fault_;
  std::mutex mu_;
  std::condition_variable cv_;
  std::function<void()> wake_;
  std::vector<std::function<void()>> cuts_;
  Status failed_;
  bool started_ = false;
  uint32_t next_ = 0;
  std::optional<std::chrono::steady_clock::time_point> idle_until_;
  size_t opened_ = 0;
  std::vector<Status> closed_;
  wire::Have have_;
};

class TestSource : public PullSource {
 public:
  StatusOr<std::shared_ptr<PullSession>> Join(const wire::Hello& hello,
                                              const std::string&) override {
    if (hello.fingerprint.lo != 42) return absl::FailedPreconditionError("another layout");
    return std::static_pointer_cast<PullSession>(session);
  }
  std::shared_ptr<TestSession> session;
};

// Keeps each chunk's bytes in memory of their own.
class TestSink : public ChunkSink {
 public:
  StatusOr<MutableBytes> Begin(const wire::FrameHeader& h) override {
    if (h.chunk == throw_at) throw std::runtime_error("the sink throws");
    if (h.chunk == refuse) return absl::DataLossError("not this one");
    std::lock_guard lock(mu);
    auto& to = chunks[h.chunk];
    to.resize(h.payload_bytes);
    return MutableBytes(to);
  }
  void Arrived(const wire::FrameHeader& h, size_t bytes) override {
    std::lock_guard lock(mu);
    size_t& before = arrived[h.chunk];
    // Arrived must never announce bytes that are not in place yet, since the sink works on them at
    // once.
    const auto want = Pattern(h.chunk);
    in_place &= bytes > before && bytes <= want.size() &&
                std::equal(want.begin(), want.begin() + static_cast<ptrdiff_t>(bytes),
                           chunks[h.chunk].begin());
    before = bytes;
  }
  Status Finish(const wire::FrameHeader& h) override {
    std::lock_guard lock(mu);
    in_place &= arrived[h.chunk] == h.payload_bytes;
    ++finished;
    return absl::OkStatus();
  }
  void Abandon(const wire::FrameHeader& h) override {
    std::lock_guard lock(mu);
    abandoned.push_back(h.chunk);
  }
  std::mutex mu;
  std::map<uint32_t, std::vector<std::byte>> chunks;
  std::vector<uint32_t> abandoned;
  std::map<uint32_t, size_t> arrived;
  bool in_place = true;
  size_t finished = 0;
  uint32_t refuse = ~0u;
  uint32_t throw_at = ~0u;
};

struct Rig {
  explicit Rig(uint32_t chunks, Fault fault, std::chrono::milliseconds server_timeout = 10s) {
    source.session = std::make_shared<TestSession>(chunks, fault);
    auto listening = PullServer::Listen(io, "127.0.0.1", 0, source,
                                        {.stream_timeout = server_timeout, .ping_interval = 50ms});
    REQUIRE(listening.ok());
    server = std::move(*listening);
  }
  PullTarget Target(uint16_t streams, std::chrono::milliseconds timeout = 10s) const {
    PullTarget t;
    t.host = "127.0.0.1";
    t.port = server->port();
    t.fingerprint.lo = 42;
    t.streams = streams;
    t.stream_timeout = timeout;
    return t;
  }
  wire::Have MakeHave() const {
    wire::Have have;
    have.chunks.resize(source.session->chunks());
    return have;
  }

  IoThreads io{3};
  TestSource source;
  std::unique_ptr<PullServer> server;
  TestSink sink;
};

// A client that can send any bytes to the bulk port.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
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
  void SendHello() const {
    wire::Hello hello;
    hello.fingerprint.lo = 42;
    SendFrame(wire::FrameType::kHello, wire::Encode(hello));
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

TEST_CASE("a client that stops reading is cut after the server's deadline") {
  Rig rig(2000, Fault::kNone, 200ms);
  RawClient raw(rig.server->port());
  raw.SendHello();
  raw.SendFrame(wire::FrameType::kHave, wire::Encode(rig.MakeHave()));
  const auto ended = rig.source.session->WaitClosed();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].code() == StatusCode::kDeadlineExceeded);
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

}  // namespace deltawire::net
