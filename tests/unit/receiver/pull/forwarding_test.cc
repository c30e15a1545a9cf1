// A relay without sockets: a pull round with a sender in memory, what it passes on to the Relay
// while the pull runs, and the pull rounds of leaves that take it from there.
#include "receiver/pull/forwarding.h"

#include <catch2/catch.hpp>
#include <thread>

#include "receiver/relay/relay.h"
#include "tests/support/eventually.h"
#include "tests/unit/receiver/pull/round_rig.h"

namespace deltawire::receiver::forwarding_test {
namespace {

using testing::Eventually;

/// Carries a pull of a Relay's to a sink in the same process.
class LocalTransport : public net::PullTransport {
 public:
  LocalTransport(Relay& relay, net::PullTarget target)
      : relay_(relay), target_(std::move(target)) {}

  StatusOr<net::PullEnd> Run(const wire::Have& have, net::ChunkSink& sink) override {
    std::vector<std::shared_ptr<net::PullSession>> streams;
    for (uint16_t i = 0; i < target_.streams; ++i) {
      const wire::Hello hello{.ticket = target_.ticket,
                              .fingerprint = target_.fingerprint,
                              .stream = i,
                              .streams = target_.streams};
      DW_ASSIGN_OR_RETURN(streams.emplace_back(), relay_.Join(hello, {.address = "leaf"}));
      streams.back()->StreamOpened(i, [this] { Wake(); });
    }
    DW_RETURN_IF_ERROR(streams.front()->Start(have));
    std::optional<net::PullEnd> end;
    Status failed;
    for (uint16_t i = 0; i < target_.streams; ++i) {
      while (failed.ok()) {
        auto next = streams[i]->Next(i, [this] { Wake(); });
        if (!next.ok()) {
          failed = next.status();
        } else if (!next->has_value()) {
          failed = Sleep();
        } else if ((*next)->header.type == wire::FrameType::kEnd) {
          end = EndOf(**next);
          break;
        } else {
          failed = Take(**next, sink);
        }
      }
      streams[i]->StreamClosed(i, failed);
    }
    if (!failed.ok()) return failed;
    return *end;
  }

  void Cancel() override {
    cancelled_ = true;
    Wake();
  }

 private:
  static net::PullEnd EndOf(const net::OutFrame& frame) {
    const auto end = wire::DecodeEnd(frame.payload);
    REQUIRE(end.ok());
    return {.identity = {.lineage = end->lineage,
                         .id = {frame.header.epoch, frame.header.version},
                         .root = end->root,
                         .attempt = end->attempt},
            .side_files_hash = end->side_files_hash};
  }
  static Status Take(const net::OutFrame& frame, net::ChunkSink& sink) {
    DW_ASSIGN_OR_RETURN(const MutableBytes to, sink.Begin(frame.header));
    REQUIRE(to.size() == frame.payload.size());
    std::memcpy(to.data(), frame.payload.data(), to.size());
    if (frame.header.type == wire::FrameType::kChunkDelta) {
      CHECK(Xxh3(frame.payload) == frame.header.payload_xxh3);
    }
    sink.Arrived(frame.header, to.size());
    return sink.Finish(frame.header);
  }
  void Wake() {
    std::lock_guard lock(mu_);
    woken_ = true;
    cv_.notify_all();
  }
  Status Sleep() {
    std::unique_lock lock(mu_);
    cv_.wait(lock, [this] { return woken_ || cancelled_; });
    woken_ = false;
    return cancelled_ ? absl::CancelledError("cancelled") : absl::OkStatus();
  }

  Relay& relay_;
  const net::PullTarget target_;
  std::mutex mu_;
  std::condition_variable cv_;
  bool woken_ = false;
  std::atomic<bool> cancelled_{false};
};

/// The relay as a leaf's upstream.
class LocalUpstream : public RoundUpstream {
 public:
  LocalUpstream(Relay& relay, std::string leaf) : relay_(relay), leaf_(std::move(leaf)) {}
  const std::string& address() const override { return leaf_; }
  StatusOr<ModelDescription> Describe(const std::string&) override {
    return absl::UnimplementedError("a round describes nothing");
  }
  StatusOr<Identity> Newest(const std::string&) override { return Identity{}; }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    DW_ASSIGN_OR_RETURN(const auto source, relay_.Source(model));
    const auto set = source->side_files(hash);
    if (set == nullptr) return absl::NotFoundError("no such side files");
    return set->files;
  }
  StatusOr<PullGrant> OpenPull(const PullRequest& request) override {
    PullRequest own = request;
    own.receiver_id = leaf_;
    DW_ASSIGN_OR_RETURN(const PullTicket ticket, relay_.OpenPull(own, {.peer = leaf_}));
    return PullGrant{.ticket = ticket.ticket,
                     .host = "relay",
                     .port = 1,
                     .history = ticket.history,
                     .newest = ticket.newest.identity};
  }

 private:
  Relay& relay_;
  const std::string leaf_;
};

/// A leaf, and its pulls from the relay.
struct Leaf : RoundPlace {
  Leaf(Relay& relay, const Layout& of, uint32_t buffers = 2, uint32_t of_streams = 2)
      : RoundPlace(of, 1, buffers), upstream(relay, "leaf"), streams(of_streams) {
    transport = [&relay](net::PullTarget target) -> std::unique_ptr<net::PullTransport> {
      return std::make_unique<LocalTransport>(relay, std::move(target));
    };
  }
  /// Pulls what `incoming` names, or what is complete.
  Status Pull(const Identity& target, bool incoming) {
    const auto chunks = static_cast<uint32_t>(buffer->chunks().size());
    PullRound round(
        Env(), {{&upstream, *Coverage::Create({}, chunks), 0, buffer->last_whole(), streams}},
        {.target = {.whole = target, .root_known = true, .parts = {target}, .incoming = incoming}});
    while (round.step() != PullRound::Step::kDone) DW_RETURN_IF_ERROR(round.Advance());
    stats = round.stats();
    return absl::OkStatus();
  }

  LocalUpstream upstream;
  const uint32_t streams;
  PullStats stats;
};

/// A sender, a relay that pulls from it, and what a relay's replica does around a round.
struct Cascade {
  explicit Cascade(uint32_t buffers = 2, uint64_t payload_limit = 1 << 20)
      : rig(1, buffers, 1 << 20),
        relay({.number = 9, .start_patience = std::chrono::milliseconds(0)}, pool, rates),
        channel(*relay.Of("m", [](const std::string&, uint32_t) {})),
        forwarding(std::make_unique<Forwarding>(channel, payload_limit)) {
    rig.forward = forwarding.get();
    for (size_t c = 0; c < kChunks; ++c) one.push_back(FakeAgent::Make(rig.layout, 1)[c]);
    two = one;
    for (auto& c : two) c[7] ^= std::byte{9};  // each chunk comes as a delta
  }
  ~Cascade() {
    forwarding.reset();
    relay.Stop();
  }
  void Publish(uint64_t version, const FakeAgent::Chunks& chunks) {
    rig.Publish({1, version}, chunks);
  }
  Identity newest() const { return rig.stations[0]->agent.identity(); }
  /// One pull of the relay's, as its replica makes it.
  Status Pull() {
    const auto round = rig.Round(rig.Newest());
    const Status pulled = rig.Run(*round);
    if (pulled.ok()) {
      CHECK(channel.ServeCommitted(*rig.buffer, rig.buffer->Serve(), round->delta(),
                                   round->delta_from()));
    }
    forwarding->End(pulled.ok() ? absl::AbortedError("committed") : pulled);
    return pulled;
  }
  /// Runs `during` when all chunks have come, and the pull's end has not.
  void BeforeEnd(std::function<void()> during) {
    rig.at().agent.Set([&](FakeAgent::Faults& f) { f.before_end = std::move(during); });
  }

  static constexpr size_t kChunks = 6;
  RoundRig rig;
  ThreadPool pool{1};
  CoderRates rates;
  Relay relay;
  Downstream& channel;
  std::unique_ptr<Forwarding> forwarding;
  FakeAgent::Chunks one, two;
};

/// A leaf's pull of a version that still comes to the relay. It begins with the relay's own pull.
class PullBeside {
 public:
  PullBeside(Cascade& s, Leaf& leaf, const Identity& wanted) : s_(s) {
    s_.rig.at().on_run = [this, &leaf, wanted] {
      if (thread_.joinable()) return;
      thread_ = std::thread([this, &leaf, wanted] { pulled_ = leaf.Pull(wanted, true); });
      REQUIRE(Eventually([this] { return s_.relay.ServedOf("m").pulls.active == 1; }));
    };
  }
  Status Join() {
    thread_.join();
    s_.rig.at().on_run = nullptr;
    return pulled_;
  }

 private:
  Cascade& s_;
  Status pulled_ = absl::UnknownError("not run");
  std::thread thread_;
};

}  // namespace

TEST_CASE("forwarding: a first version and a delta go on before the pulls that bring them end") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  Cascade s(buffers);
  Leaf leaf(s.relay, s.rig.layout, buffers);
  uint64_t ahead = 0;
  for (uint64_t version = 1; version <= 2; ++version) {
    CAPTURE(version);
    s.Publish(version, version == 1 ? s.one : s.two);
    std::thread pull;
    Status pulled = absl::UnknownError("not run");
    s.BeforeEnd([&] {
      pull = std::thread([&] { pulled = leaf.Pull(s.newest(), true); });
      // All that the leaf needs has gone on, and neither has committed anything.
      CHECK(Eventually([&] { return leaf.sink->tally().bytes() == s.rig.progress[0]; }));
      CHECK(s.rig.buffer->last_whole().id.version == version - 1);
      CHECK(leaf.buffer->last_whole().id.version == version - 1);
    });
    REQUIRE(s.Pull() == absl::OkStatus());
    pull.join();
    REQUIRE(pulled == absl::OkStatus());
    ahead += leaf.stats.payload_bytes;
    CHECK(s.relay.ServedOf("m").pulls.bytes_ahead == ahead);
    CHECK(leaf.Holds(s.newest(), version == 1 ? s.one : s.two));
    CHECK(leaf.stats.chunks_full == (version == 1 ? Cascade::kChunks : 0));
    CHECK(leaf.stats.chunks_delta == (version == 1 ? 0 : Cascade::kChunks));
    CHECK(ReadText(leaf.dir.path() / "config.json") == s.rig.config());
  }
}

TEST_CASE("forwarding: a pull that is given up ends the pulls behind it, and what came stays") {
  Cascade s;
  Leaf leaf(s.relay, s.rig.layout);
  s.Publish(1, s.one);
  s.rig.at().break_at = 4;  // the relay's pull breaks in the middle of this chunk
  PullBeside beside(s, leaf, s.newest());
  const uint64_t chunk = s.rig.buffer->chunks()[0].bytes;
  s.rig.at().at_end = [&](StatusOr<net::PullEnd>&) {
    CHECK(Eventually([&] { return leaf.sink->tally().bytes() == 4 * chunk; }));
  };
  CHECK(absl::IsUnavailable(s.Pull()));
  CHECK(absl::IsAborted(beside.Join()));
  CHECK(leaf.buffer->committed().empty());
  s.rig.at().break_at = kNoChunk;
  s.rig.at().at_end = nullptr;
  REQUIRE(s.Pull() == absl::OkStatus());
  REQUIRE(leaf.Pull(s.newest(), true) == absl::OkStatus());
  CHECK(leaf.Holds(s.newest(), s.one));
  CHECK(leaf.stats.chunks_full == Cascade::kChunks - 4);
}

TEST_CASE("forwarding: what overtakes the relay's pull ends those behind it") {
  Cascade s;
  Leaf leaf(s.relay, s.rig.layout);
  s.Publish(1, s.one);
  const Identity first = s.newest();
  auto round = s.rig.Round(s.rig.Newest());
  s.Publish(2, s.two);  // a frame of it comes, where the first was expected
  PullBeside beside(s, leaf, first);
  REQUIRE(s.rig.Run(*round) == absl::OkStatus());
  CHECK(absl::IsAborted(beside.Join()));
  CHECK(leaf.buffer->committed().empty());
  CHECK(s.channel.ServeCommitted(*s.rig.buffer, s.rig.buffer->Serve(), nullptr, {}));
  s.forwarding->End(absl::AbortedError("it cannot be served yet"));
  REQUIRE(leaf.Pull(s.newest(), false) == absl::OkStatus());
  CHECK(leaf.Holds(s.newest(), s.two));
}

TEST_CASE("forwarding: a chunk that came damaged is not passed on before it came right") {
  Cascade s;
  Leaf leaf(s.relay, s.rig.layout);
  s.Publish(1, s.one);
  s.rig.at().agent.Set([](FakeAgent::Faults& f) { f.flip[2] = 1; });
  PullBeside beside(s, leaf, s.newest());
  REQUIRE(s.Pull() == absl::OkStatus());
  REQUIRE(beside.Join() == absl::OkStatus());
  CHECK(leaf.Holds(s.newest(), s.one));
  CHECK(leaf.stats.repaired_chunks == 0);
  CHECK(leaf.stats.chunks_full == Cascade::kChunks);
}

TEST_CASE("forwarding: payloads beyond the bound wait until the version is settled") {
  Cascade s(2, 0);
  Leaf leaf(s.relay, s.rig.layout);
  s.Publish(1, s.one);
  REQUIRE(s.Pull() == absl::OkStatus());
  REQUIRE(leaf.Pull(s.newest(), false) == absl::OkStatus());
  s.Publish(2, s.two);
  PullBeside beside(s, leaf, s.newest());
  REQUIRE(s.Pull() == absl::OkStatus());
  REQUIRE(beside.Join() == absl::OkStatus());
  CHECK(leaf.Holds(s.newest(), s.two));
  CHECK(leaf.stats.chunks_delta == Cascade::kChunks);
  CHECK(s.relay.ServedOf("m").pulls.bytes_ahead == 0);
}

TEST_CASE("forwarding: a leaf with other bytes gets the rest when the version is settled") {
  Cascade s;
  Leaf leaf(s.relay, s.rig.layout);
  s.Publish(1, s.one);
  REQUIRE(s.Pull() == absl::OkStatus());
  auto two = s.one;
  two[3][7] ^= std::byte{9};  // the only chunk that the version changes
  s.Publish(2, two);
  // The leaf holds nothing, and asks for what comes all the same.
  PullBeside beside(s, leaf, s.newest());
  REQUIRE(s.Pull() == absl::OkStatus());
  REQUIRE(beside.Join() == absl::OkStatus());
  CHECK(leaf.Holds(s.newest(), two));
}

TEST_CASE("forwarding: one that is not coming any more is to be asked for again at the relay") {
  Cascade s;
  Leaf leaf(s.relay, s.rig.layout);
  s.Publish(1, s.one);
  REQUIRE(s.Pull() == absl::OkStatus());
  Identity never = s.newest();
  never.id.version = 7;
  CHECK(absl::IsAborted(leaf.Pull(never, true)));
  // One that has been committed meanwhile is served as any other.
  REQUIRE(leaf.Pull(s.newest(), true) == absl::OkStatus());
  CHECK(leaf.Holds(s.newest(), s.one));
}

}  // namespace deltawire::receiver::forwarding_test
