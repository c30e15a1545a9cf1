// Engines follow a replica: the real driver and hooks over real sockets, to stand-ins for vLLM and
// SGLang behind which the real engine client writes real memory.
#include "receiver/engine/engine_driver.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/unit/receiver/engine/engine_rig.h"

namespace deltawire::receiver::engine_driver_test {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;
using Clock = std::chrono::steady_clock;
using StandIn = EngineRig::StandIn;
using Fault = EngineRig::Fault;
using Calls = std::vector<std::string>;

constexpr EngineKind kKinds[] = {EngineKind::kVllm, EngineKind::kVllmReload, EngineKind::kSglang,
                                 EngineKind::kSglangReload};

/// The paths of an update in their order, when nothing fails; the first of an engine that was
/// started on this version.
Calls First(EngineKind kind) {
  switch (kind) {
    case EngineKind::kVllm:
      return {"held",
              "attach",
              "prepare",
              "/pause",
              "apply",
              "/reset_prefix_cache",
              "/reset_encoder_cache",
              "prove",
              "/update_weight_version",
              "/resume"};
    case EngineKind::kVllmReload:
      return {"/pause",
              "/collective_rpc",
              "/reset_prefix_cache",
              "/reset_encoder_cache",
              "/update_weight_version",
              "/resume"};
    case EngineKind::kSglang:
      return {"/weights_checker", "/pause_generation", "/update_weights_from_disk",
              "/continue_generation", "/weights_checker"};
    default:
      return {"/pause_generation", "/update_weights_from_disk", "/continue_generation"};
  }
}

/// An engine that was started on the first version, as it is committed.
StandIn& Started(EngineRig& rig, EngineKind kind, const std::string& words = "") {
  StandIn& engine = rig.Add(kind, false, words);
  rig.Publish();
  REQUIRE(rig.Committed());
  engine.Start();
  return engine;
}

Calls Next(EngineKind kind) {
  Calls calls = First(kind);
  if (kind == EngineKind::kVllm) calls.erase(calls.begin(), calls.begin() + 2);
  if (kind == EngineKind::kSglang) calls.pop_back();  // it is known what it holds
  return calls;
}

}  // namespace

TEST_CASE("engines of every kind hold each version's bytes, after exactly the calls it needs") {
  for (const EngineKind kind : kKinds) {
    for (const uint32_t buffers : {1u, 2u}) {
      CAPTURE(ToString(kind), buffers);
      EngineRig rig({.buffers = buffers});
      StandIn& engine = rig.Add(kind, false);
      rig.Publish();
      REQUIRE(rig.Committed());
      engine.Start();
      rig.Follow();
      REQUIRE(rig.Served());
      CHECK(engine.TakeCalls() == First(kind));
      for (int i = 0; i < 5; ++i) {
        rig.Publish();
        REQUIRE(rig.Served());
        CHECK(engine.TakeCalls() == Next(kind));
        CHECK(rig.Holds(engine));
        CHECK(engine.weight_version() == std::to_string(rig.version));
        CHECK_FALSE(engine.paused());
      }
      CHECK(engine.violations().empty());
      const auto view = rig.view();
      CHECK(view.updates == 6);
      CHECK(view.failures == 0);
      CHECK(view.error.empty());
      CHECK(view.last_pause_seconds > 0);
      CHECK(view.served_unix_nanos > 0);
    }
  }
}

TEST_CASE("whatever fails once, the engine ends at the version, and is never resumed in between") {
  using Kind = Fault::Kind;
  for (const EngineKind kind : kKinds) {
    Calls paths = Next(kind);
    if (kind == EngineKind::kVllm) paths.insert(paths.end(), {"held", "attach"});
    for (const std::string& path : paths) {
      for (const Kind fault :
           {Kind::kAnswer, Kind::kHang, Kind::kCut, Kind::kCutDone, Kind::kGarbage, Kind::kTorn}) {
        CAPTURE(ToString(kind), path, static_cast<int>(fault));
        EngineRig rig;
        rig.settings.call_limit = milliseconds(100);
        StandIn& engine = rig.Add(kind, false);
        rig.Publish();
        REQUIRE(rig.Committed());
        engine.Start();
        const bool at_first = path == "attach" || path == "held";
        if (at_first) engine.Set(path, {.kind = fault});
        rig.Follow();
        REQUIRE(rig.Served());
        if (!at_first) engine.Set(path, {.kind = fault});
        rig.Publish();
        // Whether a vLLM without the plug-in has loaded it nothing can show: another process can.
        if (path == "/collective_rpc") {
          REQUIRE(rig.Reaches(EngineState::kPaused));
          CHECK(engine.paused());
          engine.Stop();
          REQUIRE(rig.Reaches(EngineState::kUnreachable));
          engine.Start();
        }
        REQUIRE(rig.Served());
        CHECK(rig.Holds(engine));
        CHECK_FALSE(engine.paused());
        CHECK(engine.violations().empty());
        CHECK(rig.view().error.empty());
      }
    }
  }
}

TEST_CASE("a vLLM that cannot drop encoders' outputs is followed without that") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kVllmReload}) {
    EngineRig rig;
    StandIn& engine = Started(rig, kind);
    engine.LackEncoderReset();
    rig.Follow();
    REQUIRE(rig.Served());
    for (int i = 0; i < 3; ++i) {
      rig.Publish();
      REQUIRE(rig.Served());
      CHECK(rig.Holds(engine));
      CHECK(engine.Called("/reset_encoder_cache"));
      engine.TakeCalls();
    }
    CHECK(rig.view().failures == 0);
    CHECK(engine.violations().empty());
  }
}

TEST_CASE("in each of an engine's pauses a version is written, and abort alone ends requests") {
  const std::pair<EngineKind, std::vector<std::string>> modes[] = {
      {EngineKind::kVllm, {"abort", "wait", "keep"}},
      {EngineKind::kVllmReload, {"abort", "wait", "keep"}},
      {EngineKind::kSglang, {"abort", "retract", "in_place"}},
      {EngineKind::kSglangReload, {"abort", "retract", "in_place"}}};
  for (const auto& [kind, names] : modes) {
    for (const std::string& mode : names) {
      CAPTURE(ToString(kind), mode);
      EngineRig rig;
      StandIn& engine = Started(rig, kind, "pause=" + mode);
      rig.Follow();
      REQUIRE(rig.Served());
      for (int i = 0; i < 2; ++i) {
        rig.Publish();
        REQUIRE(rig.Served());
        CHECK(rig.Holds(engine));
      }
      CHECK(rig.view().failures == 0);
      CHECK((engine.aborted() > 0) == (mode == "abort"));
      CHECK(engine.violations().empty());
    }
  }
}

TEST_CASE("while vLLM sleeps updates wait, and after it has woken it serves the newest version") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kVllmReload}) {
    for (const int level : {1, 2}) {
      CAPTURE(ToString(kind), level);
      EngineRig rig;
      StandIn& engine = Started(rig, kind);
      rig.Follow();
      REQUIRE(rig.Served());
      engine.TakeCalls();
      engine.Sleep(level);
      // Noticed by the next probe, with or without a new version.
      REQUIRE(rig.Reaches(EngineState::kAsleep));
      CHECK(rig.view().served.empty());
      CHECK(rig.view().error.find(level == 2 ? "without its weights" : "keeps its weights") !=
            std::string::npos);
      rig.Publish();
      REQUIRE(rig.Committed());
      rig.Publish();
      REQUIRE(rig.Committed());
      engine.WakeUp("weights");  // the rest still sleeps
      const uint64_t seen = engine.probes();
      REQUIRE(Eventually([&] { return engine.probes() > seen + 2; }));
      CHECK(rig.view().state == EngineState::kAsleep);
      CHECK_FALSE(rig.view().paused);
      CHECK(engine.TakeCalls().empty());
      engine.WakeUp("kv_cache");
      REQUIRE(rig.Served());
      CHECK(rig.Holds(engine));
      CHECK_FALSE(engine.paused());
      CHECK(rig.view().failures == 0);
      CHECK(rig.view().retries == 0);
      CHECK(rig.view().error.empty());
      CHECK(engine.violations().empty());
      rig.Publish();
      REQUIRE(rig.Served());
      CHECK(rig.Holds(engine));
    }
  }
}

TEST_CASE("a version that is committed while vLLM sleeps unnoticed is not written to it") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kVllmReload}) {
    CAPTURE(ToString(kind));
    EngineRig rig;
    rig.settings.policy.probe_every = std::chrono::hours(1);
    StandIn& engine = rig.Add(kind);
    rig.Follow();
    rig.Publish();
    REQUIRE(rig.Served());
    engine.Sleep(2);
    rig.Publish();
    REQUIRE(rig.Reaches(EngineState::kAsleep));
    CHECK(engine.violations().empty());
  }
}

TEST_CASE("a vLLM that does not say whether it sleeps is left alone until it does") {
  const std::string page = GENERATE(as<std::string>{}, "/is_sleeping", "/metrics");
  const int code = GENERATE(401, 403, 500, 503);
  CAPTURE(page, code);
  EngineRig rig;
  StandIn& engine = Started(rig, EngineKind::kVllm);
  rig.Follow();
  REQUIRE(rig.Served());
  const Fault no{.code = code, .body = R"({"error": "not for you"})", .times = 1'000'000};
  const auto says = [&](const std::string& whether) {
    return Eventually([&] {
      return rig.view().error.find(fmt::format("it does not say whether it {}: {}: {}: not for you",
                                               whether, page, code)) != std::string::npos;
    });
  };
  engine.Set(page, no);
  engine.Sleep(2);
  engine.TakeCalls();
  rig.Publish();
  CHECK(says("sleeps"));
  CHECK(rig.Reaches(EngineState::kRetrying));
  CHECK(rig.view().served.id.version == 1);
  engine.Set(page, {.times = 0});
  REQUIRE(rig.Reaches(EngineState::kAsleep));
  // It is not awake because somebody in between says that this is not known.
  engine.Set(page, no);
  if (page == "/is_sleeping") engine.WakeUp();  // else it says no there
  CHECK(says("still sleeps"));
  CHECK(rig.view().state == EngineState::kAsleep);
  CHECK(engine.TakeCalls().empty());
  CHECK(rig.view().failures == 0);
  engine.Set(page, {.times = 0});
  engine.WakeUp();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK(engine.violations().empty());
}

TEST_CASE("a vLLM that was paused for a reload is not asked whether it sleeps until it resumes") {
  EngineRig rig;
  StandIn& engine = Started(rig, EngineKind::kVllm);
  rig.Publish();  // so it is at another version, and has to read the directory
  REQUIRE(rig.Committed());
  rig.Follow();
  REQUIRE(Eventually([&] { return engine.Called("attach"); }));
  // Before the attempt that reloads: that asks at its beginning, and at its pause.
  REQUIRE(Eventually([&] { return engine.Called("reload"); }));
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK_FALSE(engine.paused());
  CHECK(engine.violations().empty());
}

TEST_CASE("a vLLM that has no page of sleep, or of metrics, is awake") {
  const EngineKind kind = GENERATE(EngineKind::kVllm, EngineKind::kVllmReload);
  EngineRig rig;
  StandIn& engine = Started(rig, kind);
  engine.Set(kind == EngineKind::kVllm ? "/is_sleeping" : "/metrics",
             {.code = 404, .body = "{}", .times = 1'000'000});
  engine.Pause();
  rig.Follow();
  REQUIRE(rig.Served());
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK(rig.view().failures == 0);
}

TEST_CASE("a vLLM without the plug-in gets no call of it, and its status says what is missing") {
  EngineRig rig;
  rig.settings.policy.retries = 0;
  StandIn& engine = Started(rig, EngineKind::kVllm);
  engine.LackPlugin();
  rig.Follow();
  REQUIRE(rig.Reaches(EngineState::kBehind));
  CHECK(rig.view().error.find("it has no deltawire plug-in of this release") != std::string::npos);
  CHECK(engine.TakeCalls().empty());
  CHECK(engine.violations().empty());
  CHECK_FALSE(engine.paused());
}

TEST_CASE("a vLLM whose workers answer to other calls is taken out, and serves when it is anew") {
  EngineRig rig;
  StandIn& engine = Started(rig, EngineKind::kVllm);
  rig.Follow();
  REQUIRE(rig.Served());
  engine.FailForeignCall();
  rig.Publish();
  REQUIRE(rig.Reaches(EngineState::kOut));
  CHECK(rig.view().served.empty());
  CHECK(rig.view().error.find("replies are out of step") != std::string::npos);
  engine.Stop();
  REQUIRE(rig.Reaches(EngineState::kUnreachable));
  engine.Start();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK(engine.violations().empty());
}

TEST_CASE("what an engine still does when its caller has gone comes before what is asked next") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    const Calls paths = kind == EngineKind::kVllm
                            ? Calls{"prepare", "apply", "prove"}
                            : Calls{"/weights_checker", "/update_weights_from_disk"};
    for (const EngineFailure failure : {EngineFailure::kRetry, EngineFailure::kStayPaused}) {
      for (const std::string& path : paths) {
        CAPTURE(ToString(kind), ToString(failure), path);
        EngineRig rig;
        rig.settings.policy.failure = failure;
        rig.settings.call_limit = milliseconds(600);
        StandIn& engine = Started(rig, kind);
        rig.Follow();
        REQUIRE(rig.Served());
        engine.Set(path, {.kind = Fault::Kind::kSlow, .takes = milliseconds(800)});
        rig.Publish();
        REQUIRE(rig.Served());
        CHECK(rig.Holds(engine));
        CHECK_FALSE(engine.paused());
        CHECK(engine.violations().empty());
      }
    }
  }
}

TEST_CASE(
    "a pause that waits for requests longer than a call may take is taken back, and retried") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kVllmReload}) {
    CAPTURE(ToString(kind));
    EngineRig rig;
    rig.settings.call_limit = milliseconds(1000);
    rig.settings.policy.retries = 1;
    StandIn& engine = Started(rig, kind, "pause=wait");
    rig.Follow();
    REQUIRE(rig.Served());
    engine.SetRequestTime(milliseconds(2500));
    rig.Publish();
    REQUIRE(rig.Reaches(EngineState::kBehind));
    CHECK(Eventually([&] { return !engine.paused(); }));
    CHECK(rig.view().served.id.version == 1);
    engine.SetRequestTime(milliseconds(50));
    rig.Publish();
    REQUIRE(rig.Served());
    CHECK(rig.Holds(engine));
    CHECK_FALSE(engine.paused());
    CHECK(engine.violations().empty());
  }
}

TEST_CASE("a page of sleep that is slow under load is waited for, and delays no prepare") {
  EngineRig rig;
  StandIn& engine = Started(rig, EngineKind::kVllm);
  rig.Follow();
  REQUIRE(rig.Served());
  engine.Set("/is_sleeping", {.kind = Fault::Kind::kSlow, .times = 2, .takes = milliseconds(2300)});
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(rig.view().retries == 0);
  CHECK(rig.Holds(engine));
}

TEST_CASE("stay-paused and take-out: vLLM that has drifted is paused again after it has slept") {
  for (const EngineFailure failure : {EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    CAPTURE(ToString(failure));
    EngineRig rig;
    rig.settings.policy.failure = failure;
    StandIn& engine = Started(rig, EngineKind::kVllm);
    rig.Follow();
    REQUIRE(rig.Served());
    engine.Corrupt(1234);
    rig.Publish();
    const bool out = failure == EngineFailure::kTakeOut;
    const EngineState left = out ? EngineState::kOut : EngineState::kPaused;
    REQUIRE(rig.Reaches(left));
    CHECK(engine.paused());
    engine.Sleep(1);
    const uint64_t seen = engine.probes();
    REQUIRE(Eventually([&] { return engine.probes() > seen + 2; }));
    CHECK(rig.view().state == (out ? EngineState::kOut : EngineState::kAsleep));
    engine.TakeCalls();
    engine.WakeUp();  // and goes on by itself
    REQUIRE(Eventually([&] { return engine.Called("discard"); }));
    CHECK(engine.paused());
    CHECK(engine.TakeCalls() == Calls{"/pause", "discard"});
    REQUIRE(rig.Reaches(left));
    CHECK(rig.view().paused);
    CHECK(rig.view().updates == 1);
    rig.Publish();
    REQUIRE(rig.Committed());
    if (out) continue;
    REQUIRE(rig.Served());
    CHECK(rig.Holds(engine));
    CHECK(engine.violations().empty());
  }
}

TEST_CASE("a vLLM that somebody has paused, and that does not sleep, is updated") {
  EngineRig rig;
  StandIn& engine = Started(rig, EngineKind::kVllm);
  rig.Follow();
  REQUIRE(rig.Served());
  // As a receiver that was killed in an update leaves it.
  engine.Pause();
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK(rig.view().failures == 0);
}

TEST_CASE("an engine that keeps failing stays paused, says why, and the next version heals it") {
  EngineRig rig;
  rig.settings.policy.retries = 2;
  StandIn& engine = rig.Add(EngineKind::kSglangReload);
  rig.Follow();
  rig.Publish();
  REQUIRE(rig.Served());
  engine.Set("/update_weights_from_disk", {.kind = Fault::Kind::kTorn, .times = 3});
  rig.Publish();
  REQUIRE(rig.Reaches(EngineState::kPaused));
  CHECK(engine.paused());
  CHECK(rig.view().paused);
  CHECK(rig.view().served == Identity{});
  CHECK(rig.view().attempts == 3);
  CHECK(rig.view().error.find("out of memory") != std::string::npos);
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK(engine.violations().empty());
}

TEST_CASE("rollback: the engine's memory is the version before, and it goes on with it") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    CAPTURE(ToString(kind));
    EngineRig rig;
    rig.settings.policy.failure = EngineFailure::kRollback;
    StandIn& engine = rig.Add(kind);
    rig.Follow();
    rig.Publish();
    REQUIRE(rig.Served());
    const auto before = engine.weights();
    // Done, but the answer says otherwise.
    engine.Set(kind == EngineKind::kVllm ? "/reset_prefix_cache" : "/update_weights_from_disk",
               {.kind = Fault::Kind::kCutDone});
    rig.Publish();
    REQUIRE(rig.Reaches(EngineState::kBehind));
    CHECK(engine.weights() == before);
    CHECK_FALSE(engine.paused());
    CHECK(engine.weight_version() == "1");
    CHECK(rig.view().served.id.version == 1);
    rig.Publish();
    REQUIRE(rig.Served());
    CHECK(rig.Holds(engine));
    CHECK(engine.violations().empty());
  }
}

TEST_CASE("rollback: vLLM goes on with the version before, after a load that it has refused") {
  EngineRig rig;
  rig.settings.policy.failure = EngineFailure::kRollback;
  StandIn& engine = Started(rig, EngineKind::kVllm);
  rig.Follow();
  REQUIRE(rig.Served());
  const auto before = engine.weights();
  engine.TakeCalls();
  engine.Set("apply", {.kind = Fault::Kind::kRaise});
  rig.Publish();
  REQUIRE(rig.Reaches(EngineState::kBehind));
  REQUIRE(Eventually([&] { return engine.Called("discard"); }));
  CHECK(engine.TakeCalls() == Calls{"prepare", "/pause", "apply", "rollback", "prove",
                                    "/update_weight_version", "/resume", "discard"});
  CHECK(engine.weights() == before);
  CHECK_FALSE(engine.paused());
  CHECK(rig.view().served.id.version == 1);
  CHECK(rig.view().error == "load: out of memory");
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));

  // What it cannot vouch for stays paused, and its status says so.
  engine.Set("apply", {.kind = Fault::Kind::kRaise});
  engine.Set("prove", {.kind = Fault::Kind::kRaise});
  rig.Publish();
  REQUIRE(rig.Reaches(EngineState::kPaused));
  CHECK(engine.paused());
  CHECK(rig.view().error ==
        "load: out of memory; prove: out of memory; it is not known to be at the version "
        "before, so it stays paused until the next version, or until it starts anew");
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK(engine.violations().empty());
}

TEST_CASE("take-out: the engine is left alone, and the others go on") {
  EngineRig rig;
  rig.settings.policy.failure = EngineFailure::kTakeOut;
  StandIn& bad = rig.Add(EngineKind::kVllm);
  StandIn& good = rig.Add(EngineKind::kSglang);
  rig.Follow();
  rig.Publish();
  REQUIRE(rig.Served(0));
  REQUIRE(rig.Served(1));
  bad.Set("apply", {.kind = Fault::Kind::kRaise});
  bad.TakeCalls();
  rig.Publish();
  REQUIRE(rig.Reaches(EngineState::kOut));
  CHECK(Eventually([&] { return bad.Called("discard"); }));  // nothing is left open
  bad.TakeCalls();
  rig.Publish();
  REQUIRE(rig.Served(1));
  CHECK(rig.Holds(good));
  CHECK(bad.TakeCalls().empty());
  CHECK(bad.paused());
  bad.Stop();
  REQUIRE(rig.Reaches(EngineState::kUnreachable));
  bad.Start();
  REQUIRE(rig.Served(0));
  CHECK(rig.Holds(bad));
}

TEST_CASE("an engine that starts anew is brought to what is committed, also to a later version") {
  for (const EngineKind kind : kKinds) {
    CAPTURE(ToString(kind));
    EngineRig rig;
    StandIn& engine = rig.Add(kind, false);
    rig.Follow();
    rig.Publish();
    REQUIRE(rig.Reaches(EngineState::kUnreachable));
    CHECK(rig.view().error.find("refused") != std::string::npos);
    engine.Start();
    REQUIRE(rig.Served());
    engine.Stop();
    REQUIRE(rig.Reaches(EngineState::kUnreachable));
    CHECK(rig.view().served == Identity{});
    rig.Publish();
    REQUIRE(rig.Committed());
    engine.Start();
    REQUIRE(rig.Served());
    CHECK(rig.Holds(engine));
    CHECK(engine.weight_version() == "2");
    CHECK(engine.violations().empty());
  }
}

TEST_CASE("an engine that loaded another version reads the directory once, and is followed then") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    CAPTURE(ToString(kind));
    EngineRig rig;
    StandIn& engine = rig.Add(kind, false);
    rig.Publish();
    REQUIRE(rig.Committed());
    engine.Start();  // with version 1
    rig.Publish();
    REQUIRE(rig.Committed());
    rig.Follow();
    REQUIRE(rig.Served());
    CHECK(rig.Holds(engine));
    engine.TakeCalls();
    rig.Publish();
    REQUIRE(rig.Served());
    CHECK(engine.TakeCalls() == Next(kind));
    CHECK(rig.Holds(engine));
    CHECK(engine.violations().empty());
  }
}

TEST_CASE("an engine that hangs in an update holds up neither commits nor other engines") {
  // Without files of deltas an update is prepared from the buffer.
  const bool delta_files = GENERATE(true, false);
  CAPTURE(delta_files);
  EngineRig rig({.buffers = 1}, delta_files);
  StandIn& stuck = rig.Add(EngineKind::kVllm);
  StandIn& other = rig.Add(EngineKind::kVllm);
  rig.Follow();
  rig.Publish();
  REQUIRE(rig.Served(0));
  REQUIRE(rig.Served(1));
  stuck.TakeCalls();
  stuck.Set("apply", {.kind = Fault::Kind::kHang});
  rig.Publish();
  REQUIRE(Eventually([&] { return stuck.Called("apply"); }));
  for (int i = 0; i < 5; ++i) {
    rig.Publish();
    REQUIRE(rig.Served(1));
    CHECK(rig.Holds(other));
  }
  CHECK(rig.view(0).state == EngineState::kUpdating);
}

TEST_CASE("an engine whose pause fails until it is given up holds up no commit") {
  EngineRig rig({.buffers = 1}, false);
  rig.settings.policy.retries = 2;
  StandIn& engine = rig.Add(EngineKind::kSglang);
  rig.Follow();
  rig.Publish();
  REQUIRE(rig.Served());
  engine.Set("/pause_generation", {.times = 1000});
  rig.Publish();
  REQUIRE(rig.Reaches(EngineState::kBehind));
  for (int i = 0; i < 3; ++i) {
    rig.Publish();
    REQUIRE(rig.Committed());
  }
  engine.Set("/pause_generation", {.times = 0});
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
  CHECK(engine.violations().empty());
}

/// A hook that is stuck in the kernel, and does not know its limit.
struct StuckHook : EngineHook {
  explicit StuckHook(std::atomic<bool>& s) : stuck(s) {}
  EngineAnswer Make(EngineCall, const Identity&, milliseconds) override {
    called = true;
    Eventually([this] { return !stuck; }, std::chrono::minutes(1));
    return {};
  }
  void Cancel() override {}
  std::atomic<bool>& stuck;
  std::atomic<bool> called{false};
};

TEST_CASE("a hook that is stuck beyond its time holds up no commit any longer") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  constexpr milliseconds kLimit{200};
  EngineRig rig({.buffers = buffers});
  rig.settings.call_limit = kLimit;
  rig.Add(*ParseEngine("exec=/bin/true"));
  std::atomic<bool> stuck{true};
  StuckHook* hook = nullptr;
  rig.engines = std::make_unique<Engines>(rig.all, *rig.source, [&](const auto&) {
    auto made = std::make_unique<StuckHook>(stuck);
    hook = made.get();
    return made;
  });
  rig.replica->gate().version().OnReady([&] { rig.engines->NoteReady(); });
  rig.Publish();
  REQUIRE(Eventually([&] { return hook->called.load(); }));
  const auto begin = Clock::now();
  rig.Publish();
  CHECK(rig.Committed());
  CHECK(Clock::now() - begin < 2 * kLimit + milliseconds(5000));  // a busy machine's
  rig.Publish();
  CHECK(rig.Committed());
  stuck = false;
  CHECK(rig.Served());
}

TEST_CASE("an engine that hangs as it prepares holds up the next commit until its time is over") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  EngineRig rig({.buffers = buffers});
  rig.settings.call_limit = milliseconds(400);
  rig.settings.policy.retries = 0;
  StandIn& engine = rig.Add(EngineKind::kVllm);
  rig.Follow();
  rig.Publish();
  REQUIRE(rig.Served());
  engine.TakeCalls();
  engine.Set("prepare", {.kind = Fault::Kind::kHang});
  rig.Publish();
  const auto begin = Clock::now();
  REQUIRE(Eventually([&] { return engine.Called("prepare"); }));
  rig.Publish();
  REQUIRE(
      Eventually([&] { return rig.replica->status().phase == ReceiverPhase::kWaitingForReader; }));
  CHECK(rig.replica->status().readers == "engine " + rig.view().name);
  CHECK(rig.replica->status().committed.id.version == 2);
  REQUIRE(rig.Committed());
  CHECK(Clock::now() - begin >= milliseconds(350));
  REQUIRE(rig.Served());
  CHECK(rig.Holds(engine));
}

TEST_CASE("the next change does not begin while an engine reads the directory") {
  for (const EngineKind kind : {EngineKind::kVllmReload, EngineKind::kSglangReload}) {
    for (const uint32_t buffers : {1u, 2u}) {
      CAPTURE(ToString(kind), buffers);
      EngineRig rig({.buffers = buffers});
      StandIn& engine = rig.Add(kind);
      rig.Follow();
      rig.Publish();
      REQUIRE(rig.Served());
      const std::string load = Next(kind)[1];
      engine.TakeCalls();
      engine.Set(load, {.kind = Fault::Kind::kStall});
      rig.Publish();
      const auto second = rig.chunks;
      REQUIRE(Eventually([&] {
        return rig.view().state == EngineState::kUpdating &&
               rig.replica->status().committed.id.version == 2;
      }));
      rig.Publish();
      REQUIRE(Eventually(
          [&] { return rig.replica->status().phase == ReceiverPhase::kWaitingForReader; }));
      CHECK(EndsIn(rig.dir.path() / "m" / "model.safetensors", second));
      CHECK(rig.replica->status().committed.id.version == 2);
      while (!Eventually([&] { return rig.view().updates >= 2; }, milliseconds(10))) engine.GoOn();
      REQUIRE(rig.Served());
      CHECK(rig.Holds(engine));
      CHECK(engine.violations().empty());
    }
  }
}

TEST_CASE("engines that are always reading do not starve, and neither do commits") {
  EngineRig rig({.buffers = 1});
  StandIn& a = rig.Add(EngineKind::kVllmReload);
  StandIn& b = rig.Add(EngineKind::kSglangReload);
  rig.Follow();
  for (int i = 0; i < 50; ++i) rig.Publish();
  REQUIRE(rig.Served(0));
  REQUIRE(rig.Served(1));
  for (int i = 0; i < 30; ++i) {
    rig.Publish();
    REQUIRE(rig.Committed());
  }
  REQUIRE(rig.Served(0));
  REQUIRE(rig.Served(1));
  CHECK(rig.Holds(a));
  CHECK(rig.Holds(b));
  CHECK(rig.view(0).failures == 0);
  CHECK(rig.view(1).failures == 0);
}

/// The time that a stop takes while the engine hangs in `path`.
Clock::duration StopTakes(const char* path) {
  EngineRig rig;
  StandIn& engine = rig.Add(EngineKind::kVllm);
  rig.Follow();
  rig.Publish();
  REQUIRE(rig.Served());
  engine.TakeCalls();
  engine.Set(path, {.kind = Fault::Kind::kHang, .times = 100});
  rig.Publish();
  REQUIRE(Eventually([&] { return engine.Called(path); }));
  const auto begin = Clock::now();
  rig.Stop();
  return Clock::now() - begin;
}

TEST_CASE("a stop cuts what hangs, and lets a short update end") {
  // A busy machine may be late, but not each time.
  for (const char* path : {"prepare", "apply", "/resume"}) {
    CAPTURE(path);
    const milliseconds most(std::string_view(path) == "prepare" ? 800 : 2000);
    CHECK(Eventually([&] { return StopTakes(path) < most; }));
  }
}

TEST_CASE("who waits is told what each engine serves, and when all serve it") {
  EngineRig rig;
  rig.Add(EngineKind::kVllm);
  StandIn& late = rig.Add(EngineKind::kVllm, false);
  rig.Follow();
  rig.Publish();
  std::optional<Engines::Served> served;
  const auto comes = [&](uint64_t seen) {
    return Eventually([&] {
      served = rig.engines->ServedAfter(seen).value();
      return served.has_value();
    });
  };
  REQUIRE(comes(0));
  CHECK(served->engine.name == rig.view(0).name);
  CHECK(served->engine.served.id.version == 1);
  CHECK(served->all == Identity{});
  late.Start();
  REQUIRE(comes(served->serial));
  CHECK(served->engine.name == rig.view(1).name);
  CHECK(served->all.id.version == 1);
  CHECK_FALSE(rig.engines->ServedAfter(served->serial).value().has_value());
}

}  // namespace deltawire::receiver::engine_driver_test
