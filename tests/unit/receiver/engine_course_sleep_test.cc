// What follows when an engine sleeps: no call but probes, and what it has dropped is read anew
// before it counts as serving a version.
#include "tests/unit/receiver/engine_walk.h"

namespace deltawire::receiver {
namespace {

EngineAnswer Asleep(bool dropped) {
  return {.result = EngineAnswer::Result::kAsleep,
          .why = "it sleeps",
          .version = {},
          .dropped = dropped};
}

/// From what was kept, and then compared.
const Calls kKept = {"clear",  "prepare*", "pause",    "load",   "flush",
                     "finish", "resume",   "prepare*", "check*", "clear"};
const Calls kReadAnew = {"clear",    "pause*", "detach*", "reload*", "attach*",
                         "prepare*", "load",   "flush",   "finish",  "resume"};

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

TEST_CASE("a check of an engine that sleeps ends, and says why") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  const uint64_t number = walk.course.AskCheck();
  walk.answers[EngineCall::kPrepare] = {Asleep(false)};
  walk.Run();
  CHECK(walk.course.view().checks_ended == number);
  CHECK(walk.course.view().check_error == "it sleeps");
  CHECK(walk.state() == EngineState::kAsleep);
}

}  // namespace deltawire::receiver
