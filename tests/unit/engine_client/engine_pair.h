// A receiver's directory and an engine's memory beside it, which follows version after version.
// Owner: a test case. One thread.
#pragma once

#include <catch2/catch.hpp>
#include <memory>

#include "receiver/buffer/catch_up.h"
#include "tests/unit/engine_client/engine_memory.h"
#include "tests/unit/receiver/pull/round_rig.h"

namespace deltawire::engine {

/// A receiver that has committed version 1, and an engine that has loaded it.
struct Pair {
  /// `threads`: of the engine's client.
  explicit Pair(uint32_t buffers = 2, size_t threads = 2) : rig(1, buffers) {
    rig.sink->applied().SetKeep(true);
    REQUIRE(rig.delta_files.Start(*rig.buffer) == absl::OkStatus());
    Publish(receiver::FakeAgent::Make(rig.layout, 1));
    auto opened = EngineWeights::Open(rig.dir.path(), threads);
    REQUIRE(opened.ok());
    weights = *std::move(opened);
    engine.Load(now);
    REQUIRE(weights->Bind(engine.binding()) == absl::OkStatus());
    const auto adopted = weights->Adopt();
    REQUIRE(adopted.ok());
    REQUIRE(adopted->different.empty());
  }
  void Publish(receiver::FakeAgent::Chunks chunks, bool force_full = false) {
    now = std::move(chunks);
    rig.Publish({1, ++version}, now);
    const auto round = rig.Round(rig.Newest(), force_full);
    REQUIRE(rig.Run(*round) == absl::OkStatus());
    if (rig.buffer->buffers() == 2) {
      REQUIRE(receiver::CatchUpSecondFile(*rig.buffer, rig.sink->applied().All(), [] {
                return false;
              }).ok());
    }
    rig.sink->applied().Clear();
  }
  UpdateInfo Update() {
    const auto info = weights->Prepare();
    CAPTURE(info.status());
    REQUIRE(info.ok());
    REQUIRE(weights->Apply() == absl::OkStatus());
    return *info;
  }

  bool Holds(const receiver::FakeAgent::Chunks& chunks) const { return engine.Holds(chunks); }

  receiver::RoundRig rig;
  EngineMemory engine;
  std::unique_ptr<EngineWeights> weights;
  receiver::FakeAgent::Chunks now;
  uint64_t version = 0;
};

/// Publishes versions 2 to `last`, each a delta that reaches the engine's memory; every fifth one
/// is taken back and applied again. `p`: a Pair, or one whose engine has its memory elsewhere.
template <typename AnyPair>
void FollowDeltas(AnyPair& p, uint64_t last) {
  for (uint64_t v = 2; v <= last; ++v) {
    CAPTURE(v);
    const auto before = p.now;
    p.Publish(receiver::FakeAgent::Step(p.now, v));
    const UpdateInfo info = p.Update();
    CHECK(info.deltas == 1);
    CHECK(info.chunks_whole == 0);
    CHECK(info.to.id.version == v);
    CHECK(p.weights->held() == p.rig.buffer->committed());
    REQUIRE(p.Holds(p.now));
    CHECK(p.weights->Check()->different.empty());
    if (v % 5 != 0) continue;
    REQUIRE(p.weights->Rollback() == absl::OkStatus());
    REQUIRE(p.Holds(before));
    CHECK(p.weights->held() == info.from);
    CHECK(p.weights->Rollback().code() == StatusCode::kFailedPrecondition);
    p.Update();
    REQUIRE(p.Holds(p.now));
  }
}

}  // namespace deltawire::engine
