// Engines whose memory is no longer what was written to it: how that is asked for, told and healed.
#include <algorithm>

#include "receiver/engine/engines.h"
#include "tests/unit/receiver/engine/engine_rig.h"
#include "tests/unit/receiver/engine/engine_walk.h"

namespace deltawire::receiver::engine_drift_test {
namespace {

using Result = EngineAnswer::Result;

const EngineAnswer kDrifted{.result = Result::kRefused,
                            .why = "500: the engine's memory has drifted in norm",
                            .version = {},
                            .drifted = true};
const Calls kCheck = {"check*"};
const auto kStays = [] { return false; };

}  // namespace

TEST_CASE("a check is made while the engine serves, and ends without a pause") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    CAPTURE(ToString(kind));
    Walk walk(kind);
    CHECK(walk.course.AskCheck() == 1);
    CHECK(walk.Run().empty());
    walk.course.Ready(Version(1));
    Calls first = walk.Run();
    REQUIRE(first.size() > 1);
    CHECK(first.back() == "check*");
    CHECK(walk.course.view().last_check().number == 2);  // one of its own, of what it was not told
    CHECK(walk.course.AskCheck() == 3);
    CHECK(walk.course.AskCheck() == 4);  // one check is for both
    CHECK(walk.Run() == kCheck);
    const auto view = walk.course.view();
    CHECK(view.last_check().number == 4);
    CHECK(view.last_check().error.empty());
    CHECK(view.updates == 1);
    CHECK(view.failures == 0);
    CHECK(view.state == EngineState::kServing);
  }
}

TEST_CASE("a check that is refused, or not answered, says why, and the engine serves on") {
  for (const EngineAnswer& answer : {kRefused, kUnsure}) {
    CAPTURE(static_cast<int>(answer.result));
    Walk walk(EngineKind::kVllm);
    walk.Serve(1);
    walk.answers[EngineCall::kCheck] = {answer};
    const uint64_t number = walk.course.AskCheck();
    CHECK(walk.Run() == Calls{"check*", "probe"});
    const auto view = walk.course.view();
    CHECK(view.last_check().number == number);
    CHECK(view.last_check().error.find(answer.why) != std::string::npos);
    CHECK_FALSE(view.last_check().drifted);
    CHECK(view.state == EngineState::kServing);
    CHECK(view.error.empty());
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == kVllmFirst);
  }
}

TEST_CASE("a check ends with an engine that cannot be reached") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kCheck] = {kUnreachable};
  const uint64_t number = walk.course.AskCheck();
  CHECK(walk.Run() == kCheck);
  CHECK(walk.course.view().last_check().number == number);
  CHECK(walk.course.view().last_check().error == kUnreachable.why);
  CHECK(walk.state() == EngineState::kUnreachable);
}

TEST_CASE("what a check has found stays when the engine is lost after it") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.course.AskCheck();
  CHECK(walk.Run() == kCheck);
  walk.answers[EngineCall::kProbe] = {kUnreachable};
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.state() == EngineState::kUnreachable);
  CHECK(walk.course.view().last_check().error.empty());
}

TEST_CASE("a check's result waits for its caller while later checks end") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kCheck] = {kDrifted};
  const uint64_t first = walk.course.AskCheck();
  walk.Run();
  const uint64_t second = walk.course.AskCheck();
  CHECK(walk.course.view().CheckAfter(second) == nullptr);
  walk.Run();
  const auto view = walk.course.view();
  REQUIRE(view.CheckAfter(first) != nullptr);
  CHECK(view.CheckAfter(first)->drifted);
  REQUIRE(view.CheckAfter(second) != nullptr);
  CHECK_FALSE(view.CheckAfter(second)->drifted);
}

TEST_CASE("drift that a check finds is healed by an update to the same version") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kCheck] = {kDrifted};
  walk.course.AskCheck();
  CHECK(walk.Run() ==
        Calls{"check*", "prepare*", "pause", "load", "flush", "prove", "name", "resume"});
  const auto view = walk.course.view();
  CHECK(view.last_check().drifted);
  CHECK(view.last_check().error == kDrifted.why);
  CHECK(view.drifts == 1);
  CHECK(view.updates == 2);
  CHECK(view.served == Version(1));
  CHECK(view.error.empty());
}

TEST_CASE("drift that a prepare finds is healed by the update that is prepared again") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    CAPTURE(ToString(kind));
    Walk walk(kind, {.failure = EngineFailure::kRollback});
    walk.Serve(1);
    walk.answers[EngineCall::kPrepare] = {kDrifted};
    walk.course.Ready(Version(2));
    const auto action = walk.course.Next(walk.now);
    walk.course.Begin(action, walk.now);
    walk.answers.clear();
    walk.course.Done(*action.call, kDrifted, walk.now);
    // Until it is healed it answers from no version.
    CHECK(walk.served() == Identity{});
    CHECK(walk.course.view().error.find("has drifted in norm") != std::string::npos);
    const Calls calls = walk.Run();
    CHECK(calls.front() == "prepare*");
    CHECK(std::count(calls.begin(), calls.end(), "resume") == 1);
    CHECK(walk.served() == Version(2));
    CHECK(walk.course.view().verified);
    CHECK(walk.course.view().drifts == 1);
    CHECK(walk.course.view().attempts == 0);
  }
}

TEST_CASE(
    "an engine that has drifted is never rolled back, and one that says it twice has failed") {
  Walk walk(EngineKind::kSglang, {.failure = EngineFailure::kRollback, .retries = 0});
  walk.Serve(1);
  walk.answers[EngineCall::kPrepare] = {kDrifted};
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "prepare*", "pause", "load"});
  CHECK(walk.state() == EngineState::kPaused);
  walk.answers[EngineCall::kPrepare] = {kDrifted, kDrifted};
  walk.course.Ready(Version(3));
  CHECK(walk.Run() ==
        Calls{"prepare*", "prepare*", "pause*", "reload*", "prepare*", "load", "resume", "check*"});
  CHECK(walk.course.view().drifts == 2);
  CHECK(walk.served() == Version(3));
}

TEST_CASE("stay-paused and take-out: an engine that has drifted is paused, and answers no more") {
  for (const EngineFailure failure : {EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    for (const bool by_check : {false, true}) {
      CAPTURE(ToString(failure), by_check);
      Walk walk(EngineKind::kVllm, {.failure = failure});
      walk.Serve(1);
      if (by_check) {
        walk.answers[EngineCall::kCheck] = {kDrifted};
        walk.course.AskCheck();
        CHECK(walk.Run() == Calls{"check*", "pause"});
      } else {
        walk.answers[EngineCall::kPrepare] = {kDrifted};
        walk.course.Ready(Version(2));
        CHECK(walk.Run() == Calls{"prepare*", "pause"});
      }
      const bool out = failure == EngineFailure::kTakeOut;
      CHECK(walk.state() == (out ? EngineState::kOut : EngineState::kPaused));
      CHECK(walk.course.view().paused);
      CHECK(walk.served() == Identity{});
      CHECK(walk.course.view().error.find("has drifted in norm") != std::string::npos);
      walk.course.Ready(Version(3));
      const Calls next = walk.Run();
      CHECK(next.empty() == out);
      if (!out) CHECK(walk.served() == Version(3));
    }
  }
}

TEST_CASE(
    "stay-paused and take-out: a pause that fails is asked for again, and nothing is healed") {
  for (const EngineFailure failure : {EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    for (const size_t failed : {1, 3}) {
      CAPTURE(ToString(failure), failed);
      Walk walk(EngineKind::kVllm, {.failure = failure, .retries = 2});
      walk.Serve(1);
      walk.answers[EngineCall::kPrepare] = {kDrifted};
      walk.answers[EngineCall::kPause] = std::vector<EngineAnswer>(failed, kRefused);
      walk.course.Ready(Version(2));
      CHECK(walk.Run() == Calls{"prepare*", "pause"});
      CHECK(walk.state() == EngineState::kRetrying);
      Calls later = walk.Later();
      if (failed == 3) {
        CHECK(later == Calls{"pause"});
        later = walk.Later();
      }
      CHECK(later == Calls{"pause", "clear"});
      const bool out = failure == EngineFailure::kTakeOut;
      CHECK(walk.state() == (out ? EngineState::kOut : EngineState::kPaused));
      CHECK(walk.served() == Identity{});
    }
  }
}

/// What the engines' memory is compared to be, when their news says that it is known.
std::vector<Engines::Checked> Check(Engines& engines) {
  std::atomic<bool> news{true};
  const auto listener = engines.OnCalled([&] { news = true; });
  const Engines::Asked asked = engines.AskCheck();
  std::optional<std::vector<Engines::Checked>> answer;
  CHECK(testing::Eventually([&] {
    if (news.exchange(false)) answer = engines.CheckAnswer(asked);
    return answer.has_value();
  }));
  return answer.value_or(std::vector<Engines::Checked>(2));
}

TEST_CASE("engines compare their memory on request, and what has drifted is put right") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    CAPTURE(ToString(kind));
    EngineRig rig;
    auto& engine = rig.Add(kind);
    rig.Add(EngineKind::kVllmReload);
    rig.Follow();
    rig.Publish();
    REQUIRE(rig.Served());
    REQUIRE(rig.Served(1));
    auto checked = Check(*rig.engines);
    REQUIRE(checked.size() == 2);
    CHECK(checked[0].error.empty());
    CHECK(checked[1].error == "an engine of the kind vllm-reload cannot compare its memory");
    engine.Corrupt(1234);
    CHECK_FALSE(rig.Holds(engine));
    checked = Check(*rig.engines);
    CHECK(checked[0].drifted);
    CHECK(checked[0].error.find("the engine's memory has drifted in ") != std::string::npos);
    REQUIRE(rig.Served());
    CHECK(rig.Holds(engine));
    CHECK(Check(*rig.engines)[0].error.empty());
    // Without a request the versions that come find it.
    engine.Corrupt(4321);
    rig.Publish();
    REQUIRE(rig.Served());
    CHECK(rig.Holds(engine));
    CHECK(rig.view().drifts == 2);
    CHECK(engine.violations().empty());
    // Who does not come to serve is not waited for.
    engine.Stop();
    REQUIRE(rig.Reaches(EngineState::kUnreachable));
    CHECK(Check(*rig.engines)[0].error == "its memory was not compared: it is unreachable");
  }
}

}  // namespace deltawire::receiver::engine_drift_test
