// PullServer and PullClient against one another over loopback, with faults on either side.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "common/net/pull_client.h"
#include "common/net/pull_server.h"

namespace deltawire::net {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> Pattern(uint32_t chunk) {
  std::vector<std::byte> out(1 + (chunk * 7919) % 300'000);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(chunk + i * 31);
  return out;
}

enum class Fault { kNone, kCorrupt, kSilent, kSplitEnd, kIdleThenEnd, kError };

// Serves chunks 0..n-1 of Pattern to whichever stream asks, or does what the fault says.
class TestSession : public PullSession {
 public:
  TestSession(uint32_t chunks, Fault fault) : n_(chunks), fault_(fault) {}

  uint32_t chunks() const override { return n_; }
  Status Start(const wire::Have& have) override {
    std::lock_guard lock(mu_);
    started_ = true;
    have_ = have;
    if (wake_) std::exchange(wake_, nullptr)();
    return absl::OkStatus();
  }

  StatusOr<std::optional<OutFrame>> Next(uint16_t stream, std::function<void()> wake) override {
    std::lock_guard lock(mu_);
    if (fault_ == Fault::kError) return absl::AbortedError("the test says so");
    if (!started_ || fault_ == Fault::kSilent) {
      wake_ = std::move(wake);
      return std::optional<OutFrame>();
    }
    if (fault_ == Fault::kIdleThenEnd && pings_++ < 8) return std::optional<OutFrame>();
    OutFrame frame;
    if (next_ == n_) {
      frame.header.type = wire::FrameType::kEnd;
      frame.header.epoch = 1;
      frame.header.version = fault_ == Fault::kSplitEnd ? 10 + stream : 10;
      frame.header.payload_xxh3 = Xxh3({});
      return frame;
    }
    auto payload = std::make_shared<std::vector<std::byte>>(Pattern(next_));
    frame.header.type = wire::FrameType::kChunkFull;
    frame.header.chunk = next_++;
    frame.header.epoch = 1;
    frame.header.version = 10;
    frame.header.payload_bytes = static_cast<uint32_t>(payload->size());
    frame.header.payload_xxh3 = Xxh3(*payload);
    if (fault_ == Fault::kCorrupt && frame.header.chunk == n_ / 2) (*payload)[0] ^= std::byte{1};
    frame.payload = *payload;
    frame.keep = payload;
    return frame;
  }

  void StreamOpened(uint16_t, std::function<void()>) override {
    std::lock_guard lock(mu_);
    ++opened_;
  }
  void StreamClosed(uint16_t, const Status& why) override {
    std::lock_guard lock(mu_);
    closed_.push_back(why);
    cv_.notify_all();
  }

  // Waits until every stream that was opened is closed; returns how each ended.
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
  const uint32_t n_;
  const Fault fault_;
  std::mutex mu_;
  std::condition_variable cv_;
  std::function<void()> wake_;
  bool started_ = false;
  uint32_t next_ = 0;
  int pings_ = 0;
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

// Keeps every chunk, whole and separate.
class TestSink : public ChunkSink {
 public:
  StatusOr<MutableBytes> Begin(const wire::FrameHeader& h) override {
    if (h.chunk == refuse) return absl::DataLossError("not this one");
    std::lock_guard lock(mu);
    auto& to = chunks[h.chunk];
    to.resize(h.payload_bytes);
    return MutableBytes(to);
  }
  Status Finish(const wire::FrameHeader&) override {
    std::lock_guard lock(mu);
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
  size_t finished = 0;
  uint32_t refuse = ~0u;
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

}  // namespace

TEST_CASE("every chunk arrives whole over any number of streams") {
  const auto streams = static_cast<uint16_t>(GENERATE(1, 2, 5));
  Rig rig(97, Fault::kNone);
  PullClient client(rig.io, rig.Target(streams));
  wire::Have have = rig.MakeHave();
  have.epoch = 3;
  have.version = 9;
  have.chunks[5] = {.version = 8, .digest = 77};
  const auto end = client.Run(have, rig.sink);
  REQUIRE(end.status() == absl::OkStatus());
  CHECK(*end == StateId{1, 10});
  REQUIRE(rig.sink.chunks.size() == 97);
  for (const auto& [chunk, bytes] : rig.sink.chunks) CHECK(bytes == Pattern(chunk));
  CHECK(rig.sink.finished == 97);
  CHECK(rig.source.session->have() == have);
  for (const Status& s : rig.source.session->WaitClosed()) CHECK(s == absl::OkStatus());
}

TEST_CASE("a payload that was damaged on the way ends the pull and is given up") {
  Rig rig(20, Fault::kCorrupt);
  PullClient client(rig.io, rig.Target(2));
  const auto end = client.Run(rig.MakeHave(), rig.sink);
  CHECK(end.status().code() == StatusCode::kDataLoss);
  CHECK(rig.sink.abandoned.size() >= 1);
  // The server goes on: the next pull is served.
  rig.source.session = std::make_shared<TestSession>(3, Fault::kNone);
  TestSink sink;
  PullClient again(rig.io, rig.Target(2));
  CHECK(again.Run(rig.MakeHave(), sink).ok());
}

TEST_CASE("a server that falls silent is given up after the deadline") {
  // Its pings are further apart than the client's patience.
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
  PullClient client(rig.io, rig.Target(1, 300ms));  // idle for 8 pings of 50 ms
  CHECK(client.Run(rig.MakeHave(), rig.sink).status() == absl::OkStatus());
}

TEST_CASE("a client that stops reading is cut after the server's deadline") {
  Rig rig(2000, Fault::kNone, 200ms);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(rig.server->port());
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  const auto send_frame = [&](wire::FrameType type, const std::vector<std::byte>& payload) {
    wire::FrameHeader h;
    h.type = type;
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    h.payload_xxh3 = Xxh3(payload);
    const auto header = wire::EncodeHeader(h);
    REQUIRE(send(fd, header.data(), header.size(), MSG_NOSIGNAL) > 0);
    REQUIRE(send(fd, payload.data(), payload.size(), MSG_NOSIGNAL) > 0);
  };
  wire::Hello hello;
  hello.fingerprint.lo = 42;
  send_frame(wire::FrameType::kHello, wire::Encode(hello));
  send_frame(wire::FrameType::kHave, wire::Encode(rig.MakeHave()));
  const auto ended = rig.source.session->WaitClosed();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].code() == StatusCode::kDeadlineExceeded);
  close(fd);
}

TEST_CASE("streams that name different ends are refused") {
  Rig rig(1, Fault::kSplitEnd);
  PullClient client(rig.io, rig.Target(2));
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kDataLoss);
}

TEST_CASE("the server's error arrives as it was said") {
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

TEST_CASE("nobody listening, or a port that is taken, is said plainly") {
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
    // Once the streams are there.
    while (rig.source.session->have().chunks.empty()) std::this_thread::yield();
    rig.server->Stop();
  });
  CHECK(client.Run(rig.MakeHave(), rig.sink).status().code() == StatusCode::kUnavailable);
  stopper.join();
}

}  // namespace deltawire::net
