// A replica that follows a sender in memory (fake_upstream.h), and engines that follow the replica:
// stand-ins behind real sockets, with the real engine client. Owner: a test case.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "receiver/engine/engines.h"
#include "receiver/replica/replica.h"
#include "tests/support/engine_stand_in.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::receiver {

class ReplicaSource : public EngineSource {
 public:
  explicit ReplicaSource(Replica& replica) : replica_(replica) {}
  Identity Ready() override { return replica_.gate().version().Ready(); }
  bool Hold(const Identity& id, const std::string& reader, SteadyClock::time_point until) override {
    return replica_.gate().Hold(id, reader, until);
  }
  void Release(const std::string& reader) override { replica_.gate().Release(reader); }

 private:
  Replica& replica_;
};

struct EngineRig {
  using StandIn = testing::EngineStandIn;
  using Fault = StandIn::Fault;

  explicit EngineRig(ReplicaOptions options = {}, bool delta_files = true) {
    options.model = "m";
    options.directory = dir.path() / "m";
    options.huge_pages = false;
    options.delta_file_bytes = delta_files ? 1 << 20 : 0;
    std::vector<std::unique_ptr<Upstream>> upstreams;
    upstreams.push_back(agent.MakeUpstream());
    auto started =
        Replica::Start(options, std::move(upstreams), FakeAgent::Transports({&agent}), pool, rates);
    INFO(started.status());
    REQUIRE(started.ok());
    replica = std::move(*started);
    source = std::make_unique<ReplicaSource>(*replica);
  }
  ~EngineRig() { Stop(); }
  void Stop() {
    if (!replica) return;
    if (engines) engines->Stop();
    replica->Stop();
    replica->Join();
    engines.reset();
    replica.reset();
  }

  /// An engine to be followed from Follow() on; already up, unless `start` is false.
  StandIn& Add(EngineKind kind, bool start = true, const std::string& words = "") {
    const bool vllm = kind == EngineKind::kVllm || kind == EngineKind::kVllmReload;
    auto& stand_in = stand_ins.emplace_back(std::make_unique<StandIn>(
        vllm ? StandIn::Api::kVllm : StandIn::Api::kSglang, dir.path() / "m"));
    if (start) stand_in->Start();
    Add(*ParseEngine(fmt::format("{}={} {}", ToString(kind), stand_in->url(), words)));
    return *stand_in;
  }
  void Add(const EngineOptions& options) {
    EngineDriver::Settings one = settings;
    one.options = options;
    one.model = {"m", dir.path() / "m"};
    one.access = *EngineAccess::Load(options);
    all.push_back(one);
  }
  void Follow() {
    engines = std::make_unique<Engines>(all, *source, [](const EngineDriver::Settings& s) {
      return MakeHook(s.options, s.model, s.access);
    });
    replica->gate().version().OnReady([this] { engines->NoteReady(); });
  }

  void Publish() {
    chunks =
        version == 0 ? FakeAgent::Make(agent.layout(), 1) : FakeAgent::Step(chunks, version + 1);
    agent.Publish({1, ++version}, chunks);
  }
  bool Committed() {
    return testing::Eventually([&] { return replica->status().committed.id.version == version; });
  }
  bool Served(size_t engine = 0) {
    return testing::Eventually([&] {
      const auto view = engines->views()[engine];
      // What is compared after it began to serve has been.
      return view.state == EngineState::kServing && view.served.id.version == version &&
             (view.verified || !TraitsOf(view.kind).checks);
    });
  }
  bool Reaches(EngineState state, size_t engine = 0) {
    return testing::Eventually([&] { return engines->views()[engine].state == state; });
  }
  /// What the engine answers from is the newest version, byte for byte.
  bool Holds(const StandIn& stand_in) const {
    std::vector<std::byte> want;
    for (const auto& chunk : chunks) want.insert(want.end(), chunk.begin(), chunk.end());
    return stand_in.weights() == want;
  }
  EngineDriver::View view(size_t engine = 0) const { return engines->views()[engine]; }

  TempDir dir;
  ThreadPool pool{2};
  CoderRates rates;
  FakeAgent agent{"s0", Hash128{11, 12}, FakeLayout()};
  FakeAgent::Chunks chunks;
  uint64_t version = 0;
  std::unique_ptr<Replica> replica;
  std::unique_ptr<ReplicaSource> source;
  EngineDriver::Settings settings{.options = {},
                                  .model = {},
                                  .policy = {.first_pause = std::chrono::milliseconds(10),
                                             .longest_pause = std::chrono::milliseconds(50),
                                             .reach_every = std::chrono::milliseconds(50),
                                             .probe_every = std::chrono::milliseconds(50)},
                                  .call_limit = std::chrono::milliseconds(10000)};
  std::vector<EngineDriver::Settings> all;
  std::vector<std::unique_ptr<StandIn>> stand_ins;
  std::unique_ptr<Engines> engines;
};

}  // namespace deltawire::receiver
