// For tests of the bulk protocol over loopback: a sender's session that serves patterned chunks or
// misbehaves, a sink that keeps them, and a server in front. Owner: a test case. Threads: the
// server's, and the test's.
#pragma once

#include <catch2/catch.hpp>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "common/net/pull_client.h"
#include "common/net/pull_server.h"

namespace deltawire::net {

using namespace std::chrono_literals;

inline std::vector<std::byte> Pattern(uint32_t chunk) {
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
class TestSession : public PullSession, public Pacing {
 public:
  TestSession(uint32_t chunks, Fault fault) : n_(chunks), fault_(fault) {}

  uint32_t chunks() const override { return n_; }
  /// Serves no chunk before this one; before the pull.
  void ServeFrom(uint32_t chunk) { next_ = chunk; }
  /// Each payload has so many bytes, not those of Pattern; before the pull.
  void ServeOf(size_t bytes) { payload_bytes_ = bytes; }
  std::array<TokenBucket*, 2> rates() override { return {limit.get(), site_limit.get()}; }
  std::shared_ptr<TokenBucket> limit, site_limit;  ///< null: none; set before the pull
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
    if (payload_bytes_ > 0) payload->resize(payload_bytes_);
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
    served_ += frame.payload.size();
    return frame;
  }
  Pacing* pacing() override { return this; }
  void AddSent(uint64_t bytes) override {
    std::lock_guard lock(mu_);
    most_moved_ = std::max(most_moved_, bytes);
  }
  /// The payloads that were handed out, and the most that AddSent was told at once.
  std::pair<uint64_t, uint64_t> served_and_moved() {
    std::lock_guard lock(mu_);
    return {served_, most_moved_};
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
  size_t payload_bytes_ = 0;  // 0: those of Pattern
  uint64_t served_ = 0, most_moved_ = 0;
  std::optional<std::chrono::steady_clock::time_point> idle_until_;
  size_t opened_ = 0;
  std::vector<Status> closed_;
  wire::Have have_;
};

class TestSource : public PullSource {
 public:
  StatusOr<std::shared_ptr<PullSession>> Join(const wire::Hello& hello,
                                              const StreamPeer& from) override {
    const Status admitted = admits ? admits(hello, from) : absl::OkStatus();
    if (!admitted.ok()) return admitted;
    if (hello.fingerprint.lo != 42) return absl::FailedPreconditionError("another layout");
    return std::static_pointer_cast<PullSession>(session);
  }
  std::shared_ptr<TestSession> session;
  std::function<Status(const wire::Hello&, const StreamPeer&)> admits;
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
  explicit Rig(uint32_t chunks, Fault fault, std::chrono::milliseconds server_timeout = 10s,
               std::shared_ptr<Tls> tls = nullptr, uint64_t bytes_per_s = 0) {
    source.session = std::make_shared<TestSession>(chunks, fault);
    auto listening = PullServer::Listen(io, "127.0.0.1", 0, source,
                                        {.stream_timeout = server_timeout,
                                         .ping_interval = 50ms,
                                         .tls = std::move(tls),
                                         .bytes_per_s = bytes_per_s});
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

}  // namespace deltawire::net
