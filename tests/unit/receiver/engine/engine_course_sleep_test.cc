// What follows when an engine sleeps: no call but probes, and what it has dropped is read anew
// before it counts as serving a version.
#include "tests/unit/receiver/engine/engine_walk.h"

namespace deltawire::receiver::engine_course_sleep_test {
namespace {

EngineAnswer Asleep(bool dropped) {
  return {.result = EngineAnswer::Result::kAsleep,
          .why = "it sleeps",
          .version = {},
          .dropped = dropped};
}

/// From what was kept, and then compared.
const Calls kKept = Checked(kVllmFirst);
const Calls kReadAnew = {"ask", "pause*", "reload*", "attach*", "flush", "name", "resume"};

const EngineAnswer kDrifted{.result = EngineAnswer::Result::kRefused,
                            .why = "500: the engine's memory has drifted in norm",
                            .version = {},
                            .drifted = true};

/// Serves version 1, and was left paused on its way to version 2: by drift, or by a load that
/// failed.
struct LeftPaused : Walk {
  LeftPaused(EngineFailure failure, bool drifts)
      : Walk(EngineKind::kVllm, {.failure = failure, .retries = 0}) {
    Serve(1);
    answers[drifts ? EngineCall::kPrepare : EngineCall::kLoad] = {drifts ? kDrifted : kRefused};
    answers[EngineCall::kRollback] = answers[EngineCall::kProve] = {kRefused};
    course.Ready(Version(2));
    Run();
    answers.clear();
    REQUIRE(state() ==
            (failure == EngineFailure::kTakeOut ? EngineState::kOut : EngineState::kPaused));
    REQUIRE(course.view().paused);
  }
};

/// `calls` after the probe that finds it awake.
Calls AfterProbe(Calls calls) {
  calls.insert(calls.begin(), "probe");
  return calls;
}

}  // namespace

TEST_CASE("an engine that sleeps gets no call but probes, and none has failed") {
  for (const bool dropped : {false, true}) {
    CAPTURE(dropped);
    Walk walk(EngineKind::kVllm);
    walk.Serve(1);
    walk.answers[EngineCall::kProbe] = {Asleep(dropped), Asleep(dropped), Asleep(dropped)};
    CHECK(walk.Later() == Calls{"probe"});
    CHECK(walk.state() == EngineState::kAsleep);
    CHECK(walk.served().empty());
    CHECK(walk.course.view().error == "it sleeps");
    walk.course.Ready(Version(2));
    CHECK(walk.Run().empty());
    CHECK(walk.Later() == Calls{"probe"});
    walk.course.Ready(Version(3));
    CHECK(walk.Later() == Calls{"probe"});
    // Awake.
    CHECK(walk.Later() == AfterProbe(dropped ? kReadAnew : kKept));
    CHECK(walk.served() == Version(3));
    const auto view = walk.course.view();
    CHECK(view.failures == 0);
    CHECK(view.retries == 0);
    CHECK(view.error.empty());
    walk.named = "3";
    walk.course.Ready(Version(4));
    CHECK(walk.Run() == kVllmNext);
  }
}

TEST_CASE("an engine that woke is brought to the same version again, if there is no newer one") {
  Walk reload(EngineKind::kVllmReload);
  reload.Serve(1);
  reload.answers[EngineCall::kProbe] = {Asleep(true)};
  CHECK(reload.Later() == Calls{"probe"});
  CHECK(reload.Later() == Calls{"probe", "pause*", "load*", "flush", "name", "resume"});
  CHECK(reload.served() == Version(1));
}

TEST_CASE("an update finds an engine asleep before it touches it, at each call that begins one") {
  for (const EngineCall call : {EngineCall::kPrepare, EngineCall::kPause}) {
    CAPTURE(ToString(call));
    Walk walk(EngineKind::kVllm);
    walk.Serve(1);
    walk.course.Ready(Version(2));
    walk.answers[call] = {Asleep(true)};
    CHECK(walk.Run().back() == (call == EngineCall::kPrepare ? "prepare*" : "pause"));
    CHECK(walk.state() == EngineState::kAsleep);
    CHECK_FALSE(walk.course.view().paused);
    CHECK(walk.course.view().failures == 0);
    CHECK(walk.Later() == AfterProbe(kReadAnew));
    CHECK(walk.served() == Version(2));
  }
}

TEST_CASE("an engine that slept without its weights and was lost reads them anew when it is back") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kProbe] = {Asleep(true), kUnreachable};
  walk.Later();
  walk.Later();
  CHECK(walk.state() == EngineState::kUnreachable);
  CHECK(walk.Later() == AfterProbe(kReadAnew));
  CHECK(walk.served() == Version(1));
}

TEST_CASE("an engine that falls asleep before a pause was never paused, and serves when it wakes") {
  for (const EngineFailure failure : {EngineFailure::kRetry, EngineFailure::kRollback,
                                      EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    CAPTURE(ToString(failure));
    Walk walk(EngineKind::kVllm, {.failure = failure, .retries = 0});
    walk.Serve(1);
    walk.answers[EngineCall::kPrepare] = {kUnsure};
    walk.course.Ready(Version(2));
    walk.Run();
    REQUIRE_FALSE(walk.course.view().paused);
    walk.answers[EngineCall::kPause] = {Asleep(false)};
    walk.course.Ready(Version(3));
    walk.Run();
    REQUIRE(walk.state() == EngineState::kAsleep);
    walk.Later();
    CHECK(walk.served() == Version(3));
    CHECK(walk.state() == EngineState::kServing);
  }
}

TEST_CASE("a check of an engine that sleeps ends, and says why") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  const uint64_t number = walk.course.AskCheck();
  walk.answers[EngineCall::kCheck] = {Asleep(false)};
  walk.Run();
  CHECK(walk.course.view().last_check().number == number);
  CHECK(walk.course.view().last_check().error == "it sleeps");
  CHECK(walk.state() == EngineState::kAsleep);
}

TEST_CASE("an engine that was left paused is paused again when it wakes, and not healed by that") {
  for (const EngineFailure failure :
       {EngineFailure::kRollback, EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    for (const bool drifts : {false, true}) {
      if (drifts && failure == EngineFailure::kRollback) continue;  // that is healed at once
      for (const bool dropped : {false, true}) {
        CAPTURE(ToString(failure), drifts, dropped);
        LeftPaused walk(failure, drifts);
        const std::string why = walk.course.view().error;
        const bool out = failure == EngineFailure::kTakeOut;
        walk.answers[EngineCall::kProbe] = {Asleep(dropped), Asleep(dropped)};
        CHECK(walk.Later() == Calls{"probe"});
        CHECK(walk.state() == (out ? EngineState::kOut : EngineState::kAsleep));
        CHECK(walk.Later() == Calls{"probe"});
        CHECK(walk.Later() == Calls{"probe", "pause", "clear"});
        CHECK(walk.state() == (out ? EngineState::kOut : EngineState::kPaused));
        CHECK(walk.course.view().paused);
        CHECK(walk.course.view().error == why);
        CHECK(walk.served() == Identity{});
        CHECK(walk.Later() == Calls{"probe"});
        walk.course.Ready(Version(3));
        const Calls next = walk.Run();
        CHECK(next.empty() == out);
        if (!out) CHECK(walk.served() == Version(3));
      }
    }
  }
}

TEST_CASE("an engine that was left paused gets the next version, also if that finds it asleep") {
  for (const bool finds : {false, true}) {
    CAPTURE(finds);
    LeftPaused walk(EngineFailure::kStayPaused, false);
    walk.answers[finds ? EngineCall::kPrepare : EngineCall::kProbe] = {Asleep(false)};
    if (!finds) CHECK(walk.Later() == Calls{"probe"});
    walk.course.Ready(Version(3));
    CHECK(walk.Run() == (finds ? Calls{"ask", "prepare*"} : Calls{}));
    CHECK(walk.state() == EngineState::kAsleep);
    Calls calls = {"probe", "pause"};
    calls.insert(calls.end(), kVllmProven.begin(), kVllmProven.end());
    CHECK(walk.Later() == calls);
    CHECK(walk.served() == Version(3));
  }
}

TEST_CASE("retry: an engine that was left paused is healed when it wakes") {
  for (const bool dropped : {false, true}) {
    LeftPaused walk(EngineFailure::kRetry, false);
    walk.answers[EngineCall::kProbe] = {Asleep(dropped)};
    CHECK(walk.Later() == Calls{"probe"});
    CHECK(walk.Later() == AfterProbe(dropped ? kReadAnew : kVllmProven));
    CHECK(walk.served() == Version(2));
  }
}

TEST_CASE("an engine that falls asleep before it is paused for good is paused when it wakes") {
  for (const EngineFailure failure : {EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    CAPTURE(ToString(failure));
    Walk walk(EngineKind::kVllm, {.failure = failure});
    walk.Serve(1);
    walk.answers[EngineCall::kPrepare] = {kDrifted};
    walk.answers[EngineCall::kPause] = {Asleep(false), Asleep(false), kUnsure};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"prepare*", "pause"});
    const bool out = failure == EngineFailure::kTakeOut;
    CHECK(walk.state() == (out ? EngineState::kOut : EngineState::kAsleep));
    CHECK(walk.Later() == Calls{"probe", "pause"});  // it was put to sleep again in between
    CHECK(walk.Later() == Calls{"probe", "pause"});
    CHECK(walk.Later() == Calls{"pause", "clear"});
    CHECK(walk.state() == (out ? EngineState::kOut : EngineState::kPaused));
    CHECK(walk.course.view().paused);
    CHECK(walk.course.view().updates == 1);
  }
}

TEST_CASE("an engine that was left paused and wakes as another process gets the version again") {
  for (const EngineFailure failure : {EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    CAPTURE(ToString(failure));
    LeftPaused walk(failure, false);
    CHECK(walk.Later() == Calls{"probe"});  // it names version 1
    walk.answers[EngineCall::kProbe] = {Asleep(false)};
    CHECK(walk.Later() == Calls{"probe"});
    walk.named = "default";
    CHECK(walk.Later() == AfterProbe(kKept));
    CHECK(walk.served() == Version(2));
  }
}

TEST_CASE("a reload that vLLM has failed leaves it paused, also after it has slept") {
  Walk walk(EngineKind::kVllmReload);
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"pause*", "load*"});
  walk.answers[EngineCall::kProbe] = {Asleep(false)};
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.Later() == Calls{"probe", "pause"});
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.course.view().paused);
  CHECK(walk.course.view().error.find("start the engine anew") != std::string::npos);
}

TEST_CASE("a call that is not made, since it is not known whether vLLM sleeps, is made later") {
  EngineAnswer unasked = kUnsure;
  unasked.unasked = true;
  unasked.why = "it does not say whether it sleeps: /is_sleeping: 403: Forbidden";
  for (const EngineCall call : {EngineCall::kPrepare, EngineCall::kPause}) {
    CAPTURE(ToString(call));
    Walk walk(EngineKind::kVllm, {.retries = 1});
    walk.Serve(1);
    walk.answers[call] = std::vector<EngineAnswer>(5, unasked);
    walk.course.Ready(Version(2));
    Calls calls = walk.Run();
    const Calls again = {calls.back()};
    for (int i = 0; i < 4; ++i) {
      CHECK(walk.state() == EngineState::kRetrying);
      CHECK(walk.course.view().error == fmt::format("{}: {}", ToString(call), unasked.why));
      CHECK_FALSE(walk.course.view().paused);
      CHECK(walk.served() == Version(1));
      CHECK(walk.Later() == again);
    }
    const Calls rest = walk.Later();
    calls.pop_back();
    calls.insert(calls.end(), rest.begin(), rest.end());
    CHECK(calls == kVllmNext);
    CHECK(walk.served() == Version(2));
    CHECK(walk.course.view().failures == 0);
    CHECK(walk.course.view().error.empty());
  }
}

TEST_CASE("an engine that sleeps is awake when it says so, and not when it is not heard") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kProbe] = {Asleep(true), kUnsure, kRefused};
  CHECK(walk.Later() == Calls{"probe"});
  for (const EngineAnswer& answer : {kUnsure, kRefused}) {
    CHECK(walk.Later() == Calls{"probe"});
    CHECK(walk.state() == EngineState::kAsleep);
    CHECK(walk.course.view().error == "probe: " + answer.why);
  }
  CHECK(walk.Later() == AfterProbe(kReadAnew));
}

}  // namespace deltawire::receiver::engine_course_sleep_test
