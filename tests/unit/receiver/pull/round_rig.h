// All that a replica gives its pull rounds, with agents in memory (fake_upstream.h). What goes over
// the wire is recorded, and faults are made that the agents know nothing of. Owner: a test case.
// Threads: the one that drives the round, and the round's own, one per agent.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/shm/delta_file.h"
#include "receiver/buffer/delta_files.h"
#include "receiver/buffer/recovery.h"
#include "receiver/pull/pull_round.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::receiver {

inline constexpr uint32_t kNoChunk = ~0u;

/// An agent, a record of what rounds say to it, and faults that the agent knows nothing of.
struct Station {
  Station(std::string name, Hash128 lineage, const Layout& layout, std::vector<ChunkRange> ranges)
      : agent(std::move(name), lineage, layout, ranges),
        owned(*Coverage::Create(ranges, static_cast<uint32_t>(layout.size()))) {}

  FakeAgent agent;
  const Coverage owned;
  Identity held;
  // What went over the wire: one entry for each run.
  std::vector<wire::Have> haves;
  std::vector<net::PullEnd> ended;
  std::vector<uint64_t> side_files_asked;
  // Faults.
  bool says_newest = false;      ///< its grants name its newest state, as a sender's do
  bool ignores_target = false;   ///< ends at its newest, whatever it was asked for
  uint32_t history = 0;          ///< how many deltas it claims to have kept
  uint32_t break_at = kNoChunk;  ///< the stream breaks in the middle of this chunk
  uint32_t claims = kNoChunk;    ///< every frame says that it is this chunk
  int fail_side_files = 0;
  std::function<void(StatusOr<net::PullEnd>&)> at_end;
  std::function<void()> on_run;  ///< when a pull's streams are there, before its chunks
};

/// An upstream of tests of one round, which does not attach.
class RoundUpstream : public Upstream {
 public:
  Status Attach(const std::string&, const ReceiverReport&, std::function<void(const SenderEvent&)>,
                std::function<void(const Status&)>) override {
    return absl::UnimplementedError("a round does not attach");
  }
  void Send(const ReceiverReport&) override {}
  void Detach() override {}
  void Cancel() override {}
};

class WatchedUpstream : public RoundUpstream {
 public:
  explicit WatchedUpstream(Station& station) : s_(station), up_(station.agent.MakeUpstream()) {}
  const std::string& address() const override { return up_->address(); }
  StatusOr<ModelDescription> Describe(const std::string& m) override { return up_->Describe(m); }
  StatusOr<Identity> Newest(const std::string& m) override { return up_->Newest(m); }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string& m, uint64_t hash) override {
    s_.side_files_asked.push_back(hash);
    if (s_.fail_side_files > 0 && s_.fail_side_files-- > 0)
      return absl::UnavailableError("not now");
    return up_->SideFiles(m, hash);
  }
  StatusOr<PullGrant> OpenPull(const PullRequest& request) override {
    PullRequest passed = request;
    if (s_.ignores_target) passed.at = {};
    auto grant = up_->OpenPull(passed);
    if (grant.ok()) grant->history = s_.history;
    if (grant.ok() && s_.says_newest) grant->newest = s_.agent.identity();
    return grant;
  }

 private:
  Station& s_;
  const std::unique_ptr<Upstream> up_;
};

/// `chunks`, each changed a little, so that all of them come as deltas.
inline FakeAgent::Chunks Changed(FakeAgent::Chunks chunks, uint8_t by) {
  for (auto& c : chunks) c[by] ^= static_cast<std::byte>(by);
  return chunks;
}

class WatchedSink : public net::ChunkSink {
 public:
  WatchedSink(const Station& station, net::ChunkSink& to) : s_(station), to_(to) {}
  StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) override {
    wire::FrameHeader said = header;
    if (s_.claims != kNoChunk) said.chunk = s_.claims;
    return to_.Begin(said);
  }
  void Arrived(const wire::FrameHeader& header, size_t bytes) override {
    to_.Arrived(header, bytes);
  }
  Status Finish(const wire::FrameHeader& header) override {
    if (header.chunk != s_.break_at) return to_.Finish(header);
    to_.Abandon(header);
    return absl::UnavailableError("the stream broke");
  }
  void Abandon(const wire::FrameHeader& header) override { to_.Abandon(header); }

 private:
  const Station& s_;
  net::ChunkSink& to_;
};

class WatchedTransport : public net::PullTransport {
 public:
  WatchedTransport(Station& station, net::PullTarget target)
      : s_(station), to_(FakeAgent::Transports({&station.agent})(std::move(target))) {}
  StatusOr<net::PullEnd> Run(const wire::Have& have, net::ChunkSink& sink) override {
    s_.haves.push_back(have);
    if (s_.on_run) s_.on_run();
    WatchedSink watched(s_, sink);
    StatusOr<net::PullEnd> end = to_->Run(have, watched);
    if (s_.at_end) s_.at_end(end);
    if (end.ok()) s_.ended.push_back(*end);
    return end;
  }
  void Cancel() override { to_->Cancel(); }

 private:
  Station& s_;
  const std::unique_ptr<net::PullTransport> to_;
};

/// A receiver's directory, and all that its pull rounds work on but the agents.
struct RoundPlace {
  /// `served_bytes`: of a pull's delta, recorded for receivers that this one would serve.
  RoundPlace(const Layout& of, size_t agents, uint32_t buffers, uint64_t served_bytes = 0)
      : layout(of), history(1 << 20, served_bytes), files(agents) {
    lock = std::make_shared<DirLock>(*DirLock::Acquire(dir.path()));
    buffer = *CreateBuffer(dir.path(), lock, layout, layout.fingerprint().lo,
                           {.buffers = buffers, .huge_pages = false});
    sink = std::make_unique<PullSink>(*buffer, gate, 1 << 20, rates);
  }
  PullRound::Env Env() {
    return {.model = model,
            .buffer = *buffer,
            .gate = gate,
            .sink = *sink,
            .history = history,
            .side_files = files,
            .pool = pool,
            .rates = rates,
            .transport = transport,
            .stream_timeout = stream_timeout,
            .progress = [this](size_t agent, uint64_t bytes) { progress[agent] = bytes; },
            .forward = forward};
  }
  std::filesystem::path weights() const { return dir.path() / "model.safetensors"; }
  /// True if this state is committed, and a loader finds its bytes.
  bool Holds(const Identity& id, const FakeAgent::Chunks& chunks) const {
    return buffer->committed() == id && EndsIn(weights(), chunks);
  }

  TempDir dir;
  const std::string model = "m";
  const Layout layout;
  ThreadPool pool{2};
  CoderRates rates;
  ReplicaHistory history;
  SideFileCache files;
  TransportFactory transport;  // before the first round
  std::shared_ptr<DirLock> lock;
  std::unique_ptr<Buffer> buffer;
  BufferGate gate{{.model = model}};
  std::unique_ptr<PullSink> sink;
  std::chrono::milliseconds stream_timeout{30000};
  Forwarding* forward = nullptr;  // is told of what comes
  uint64_t progress[2] = {0, 0};  // each is written by its part's thread
};

/// All that a replica gives its rounds. Of two agents, s0 has the chunks 0, 1 and 5, and s1 has 2,
/// 3 and 4.
struct RoundRig : RoundPlace {
  explicit RoundRig(size_t agents = 1, uint32_t buffers = 2, uint64_t served_bytes = 0)
      : RoundPlace(FakeLayout(), agents, buffers, served_bytes) {
    const std::vector<ChunkRange> all, first{{0, 2}, {5, 6}}, second{{2, 5}};
    stations.push_back(
        std::make_unique<Station>("s0", Hash128{11, 12}, layout, agents == 1 ? all : first));
    if (agents == 2)
      stations.push_back(std::make_unique<Station>("s1", Hash128{13, 14}, layout, second));
    for (const auto& s : stations) upstreams.push_back(std::make_unique<WatchedUpstream>(*s));
    transport = [this](const net::PullTarget& target) -> std::unique_ptr<net::PullTransport> {
      Station& s = *stations[target.host == "s0" ? 0 : 1];
      return std::make_unique<WatchedTransport>(s, target);
    };
  }
  Station& at(size_t i = 0) { return *stations[i]; }
  void Publish(StateId id, const FakeAgent::Chunks& chunks, uint64_t side_files = 100) {
    for (const auto& s : stations) s->agent.Publish(id, chunks, id.version + 1000, side_files);
  }
  Follower::Target Newest() const {
    Follower::Target target{.root_known = true};
    for (const auto& s : stations) target.parts.push_back(s->agent.identity());
    target.whole = Combine(target.parts);
    return target;
  }
  std::unique_ptr<PullRound> Round(const Follower::Target& target, bool force_full = false,
                                   const Identity& floor = {}) {
    std::vector<RoundAgent> agents;
    for (size_t i = 0; i < stations.size(); ++i) {
      const Coverage& owned = at(i).owned;
      agents.push_back({upstreams[i].get(), owned, owned.hash(), at(i).held});
    }
    return std::make_unique<PullRound>(
        Env(), std::move(agents),
        PullRound::Wish{.target = target, .force_full = force_full, .floor = floor});
  }
  Status Run(PullRound& round) {
    while (round.step() != PullRound::Step::kDone) DW_RETURN_IF_ERROR(round.Advance());
    for (size_t i = 0; i < stations.size(); ++i) at(i).held = round.results()[i].end;
    if (!std::filesystem::exists(dir.path() / kDeltaFolder)) return absl::OkStatus();
    return delta_files.Put(*buffer, buffer->committed(), sink->applied().All());
  }
  Status Pull() { return Run(*Round(Newest())); }
  Status PullFull(const Follower::Target& target) { return Run(*Round(target, true)); }

  uint64_t moved(size_t i = 0) const {
    const auto counts = stations[i]->agent.counts();
    return counts.chunks_full + counts.chunks_delta;
  }
  std::string config() const { return ReadText(dir.path() / "config.json"); }
  /// True if this state is held or, where the only file has been changed meanwhile, none is.
  bool HoldsAtMost(const Identity& id, const FakeAgent::Chunks& chunks) const {
    if (buffer->buffers() == 2 || !buffer->update().begun()) return Holds(id, chunks);
    return buffer->last_whole() == id && buffer->committed().empty() &&
           !std::filesystem::exists(weights());
  }

  DeltaFiles delta_files{dir.path() / kDeltaFolder, 1 << 20};
  std::vector<std::unique_ptr<Station>> stations;
  std::vector<std::unique_ptr<Upstream>> upstreams;
};

}  // namespace deltawire::receiver
