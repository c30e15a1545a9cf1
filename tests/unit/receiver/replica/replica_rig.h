// A replica whose senders are in memory (fake_upstream.h), for tests of what it commits and when.
// Owner: a test case. Threads: the test's, and those of the replica. No sockets.
#pragma once

#include <catch2/catch.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "receiver/replica/replica.h"
#include "tests/support/eventually.h"
#include "tests/support/replica_calls.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::receiver {

using testing::Eventually;

inline constexpr Hash128 kA{11, 12}, kB{13, 14};
/// What Sync and Verify ask to see whether their caller has gone: it stays.
inline const auto kStays = [] { return false; };

/// A replica of a directory of its own, and one or two senders that publish its model. Of two, s0
/// has the chunks 0, 1 and 5, and s1 has 2, 3 and 4.
struct ReplicaRig {
  explicit ReplicaRig(size_t agents = 1) {
    const Layout layout = FakeLayout();
    if (agents == 1) {
      all.push_back(std::make_unique<FakeAgent>("s0", kA, layout));
    } else {
      all.push_back(
          std::make_unique<FakeAgent>("s0", kA, layout, std::vector<ChunkRange>{{0, 2}, {5, 6}}));
      all.push_back(std::make_unique<FakeAgent>("s1", kB, layout, std::vector<ChunkRange>{{2, 5}}));
    }
  }
  FakeAgent& agent(size_t i = 0) { return *all[i]; }
  void Start(ReplicaOptions options = {}) {
    options.model = "m";
    options.directory = dir.path();
    options.huge_pages = false;
    std::vector<std::unique_ptr<Upstream>> upstreams;
    std::vector<FakeAgent*> agents;
    for (const auto& a : all) {
      upstreams.push_back(a->MakeUpstream());
      agents.push_back(a.get());
    }
    auto started =
        Replica::Start(options, std::move(upstreams), FakeAgent::Transports(agents), pool, rates);
    INFO(started.status());
    REQUIRE(started.ok());
    replica = std::move(*started);
  }
  /// Publishes version 1 and starts with it: returns its chunks when the replica has committed
  /// them.
  FakeAgent::Chunks Begin(ReplicaOptions options = {}, uint64_t side_files = 0) {
    FakeAgent::Chunks chunks = FakeAgent::Make(agent().layout(), 1);
    agent().Publish({1, 1}, chunks, 1, side_files);
    Start(std::move(options));
    REQUIRE(Reaches(agent().identity()));
    return chunks;
  }
  /// Begins with one file. Without leases, which the case is about, says so and returns false.
  bool StartsWithOneFile() {
    Begin({.buffers = 1});
    const bool leases = replica->status().buffers_why.find("fresh file") == std::string::npos;
    if (!leases) std::puts("SKIPPED: no leases here");
    return leases;
  }
  /// Publishes version 2, all of whose chunks come whole but for the last one, which stays away:
  /// the only file is then half updated. Returns the version's chunks.
  FakeAgent::Chunks StopHalfWay() {
    const auto second = FakeAgent::Make(agent().layout(), 2);
    agent().Set([](FakeAgent::Faults& f) { f.leave_out = {5}; });
    agent().Publish({1, 2}, second);
    REQUIRE(Eventually([&] { return replica->status().pull_failures > 0; }));
    REQUIRE(committed().empty());
    return second;
  }
  Identity committed() const { return replica->status().committed; }
  bool Reaches(const Identity& id) {
    return Eventually([&] { return committed() == id; });
  }
  StatusOr<Commit> Sync(bool full = false) { return testing::SyncOf(*replica, full, kStays); }
  std::string Read(const std::string& name) const { return ReadText(dir.path() / name); }
  /// The file that a loader finds ends in these bytes.
  bool Holds(const FakeAgent::Chunks& chunks) const {
    return EndsIn(dir.path() / "model.safetensors", chunks);
  }

  TempDir dir;
  ThreadPool pool{2};
  CoderRates rates;
  std::vector<std::unique_ptr<FakeAgent>> all;
  std::unique_ptr<Replica> replica;
};

}  // namespace deltawire::receiver
