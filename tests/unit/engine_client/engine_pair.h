// A receiver's directory and an engine's memory beside it, which follows version after version.
// Owner: a test case. One thread.
#pragma once

#include <catch2/catch.hpp>
#include <memory>

#include "tests/unit/engine_client/engine_memory.h"
#include "tests/unit/receiver/round_rig.h"

namespace deltawire::engine {

/// A receiver that has committed version 1, and an engine that has loaded it.
struct Pair {
  /// `threads`: of the engine's client.
  explicit Pair(uint32_t buffers = 2, size_t threads = 2) : rig(1, buffers) {
    rig.sink->KeepApplied(true);
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
      REQUIRE(rig.buffer->CatchUp(rig.sink->Applied(), [] { return false; }).ok());
    }
    rig.sink->ForgetApplied();
  }
  UpdateInfo Update() {
    const auto info = weights->Prepare();
    CAPTURE(info.status());
    REQUIRE(info.ok());
    REQUIRE(weights->Apply() == absl::OkStatus());
    return *info;
  }

  receiver::RoundRig rig;
  EngineMemory engine;
  std::unique_ptr<EngineWeights> weights;
  receiver::FakeAgent::Chunks now;
  uint64_t version = 0;
};

}  // namespace deltawire::engine
