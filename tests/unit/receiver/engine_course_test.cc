// The order of calls to an engine, and what follows from each answer. No sockets, no threads; time
// is a number.
#include "receiver/engine/engine_course.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

namespace deltawire::receiver {
namespace {

using std::chrono::milliseconds;
using Result = EngineAnswer::Result;
using Calls = std::vector<std::string>;

constexpr Hash128 kLineage{1, 2};
Identity Version(uint64_t version) { return {kLineage, {1, version}, version * 1000, 0}; }

const EngineAnswer kRefused{Result::kRefused, "500: no", {}};
const EngineAnswer kUnsure{Result::kUnsure, "answer: nothing within 1 ms", {}};
const EngineAnswer kUnreachable{Result::kUnreachable, "connect: Connection refused", {}};

/// A course with a clock, and answers that are "done" unless a test says otherwise.
struct Walk {
  explicit Walk(EngineKind kind, EngineCourse::Policy policy = {})
      : course(TraitsOf(kind), policy) {}

  /// Makes every call that is due now. Returns them; "*": the directory was to be held.
  Calls Run() {
    Calls calls;
    while (true) {
      const auto action = course.Next(now);
      if (!action.call) return calls;
      std::string name(ToString(*action.call));
      if (action.hold) name += "*";
      calls.push_back(name);
      REQUIRE(calls.size() < 100);
      course.Begin(action, now);
      now += milliseconds(1);
      auto& queue = answers[*action.call];
      EngineAnswer answer;
      if (!queue.empty()) {
        answer = queue.front();
        queue.erase(queue.begin());
      } else if (*action.call == EngineCall::kProbe) {
        answer.version = named;
      }
      course.Done(*action.call, answer, now);
    }
  }
  /// Goes on to when something is due, and makes the calls.
  Calls Later() {
    const auto action = course.Next(now);
    REQUIRE_FALSE(action.call);
    REQUIRE(action.until != EngineCourse::Time::max());
    now = action.until;
    return Run();
  }
  /// The engine serves `version`, which was ready.
  void Serve(uint64_t version) {
    course.Ready(Version(version));
    Run();
    REQUIRE(state() == EngineState::kServing);
    named = std::to_string(version);
  }
  EngineState state() const { return course.view().state; }
  Identity served() const { return course.view().served; }

  EngineCourse course;
  EngineCourse::Time now{std::chrono::hours(1)};
  std::map<EngineCall, std::vector<EngineAnswer>> answers;
  std::string named;  ///< what a probe hears
};

const Calls kVllmFirst = {"clear", "prepare*", "pause", "load", "flush", "finish", "resume"};
const Calls kVllmNext = {"prepare*", "pause", "load", "flush", "finish", "resume"};

}  // namespace

TEST_CASE("each kind is asked in its order, and what reads the directory holds it") {
  const std::map<EngineKind, Calls> first = {
      {EngineKind::kVllm, kVllmFirst},
      {EngineKind::kVllmReload, {"pause*", "load*", "flush", "name", "resume"}},
      {EngineKind::kSglang, {"prepare*", "pause", "load", "resume"}},
      {EngineKind::kSglangReload, {"pause*", "load*", "resume"}},
      {EngineKind::kHttp, {"load*"}},
      {EngineKind::kExec, {"load*"}},
  };
  for (const auto& [kind, calls] : first) {
    CAPTURE(ToString(kind));
    Walk walk(kind);
    CHECK(walk.Run().empty());
    CHECK(walk.state() == EngineState::kWaiting);
    walk.course.Ready(Version(7));
    CHECK(walk.Run() == calls);
    CHECK(walk.state() == EngineState::kServing);
    CHECK(walk.served() == Version(7));
    CHECK_FALSE(walk.course.view().paused);
    CHECK(walk.course.view().updates == 1);
    walk.course.Ready(Version(7));
    CHECK(walk.Run().empty());
  }
}

TEST_CASE("an engine goes from what it finished to the newest version, and skips the others") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.course.Ready(Version(2));
  const auto action = walk.course.Next(walk.now);
  walk.course.Begin(action, walk.now);
  walk.course.Ready(Version(3));
  walk.course.Ready(Version(4));
  walk.course.Done(*action.call, {}, walk.now);
  CHECK(walk.course.Next(walk.now).to == Version(2));
  Calls calls(kVllmNext.begin() + 1, kVllmNext.end());
  calls.insert(calls.end(), kVllmNext.begin(), kVllmNext.end());
  CHECK(walk.Run() == calls);
  CHECK(walk.served() == Version(4));
  CHECK(walk.course.view().updates == 3);
}

TEST_CASE("the time of the pause is counted from the pause to the resume") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);  // pause, load, flush, finish, resume: a millisecond each
  CHECK(walk.course.view().last_pause_seconds == Approx(0.005));
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.course.view().pause_seconds == Approx(0.010));
}

TEST_CASE("a failure before the pause changes nothing, and is tried again so many times") {
  for (const EngineFailure failure : {EngineFailure::kRetry, EngineFailure::kRollback,
                                      EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    CAPTURE(ToString(failure));
    Walk walk(EngineKind::kVllm, {.failure = failure, .retries = 2});
    walk.Serve(1);
    walk.answers[EngineCall::kPrepare] = {kUnsure, kUnsure, kUnsure};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"prepare*"});
    CHECK(walk.state() == EngineState::kRetrying);
    CHECK(walk.course.view().error.find("prepare: answer: nothing within") == 0);
    CHECK(walk.Later() == Calls{"clear", "prepare*"});
    CHECK(walk.Later() == Calls{"clear", "prepare*", "clear"});  // nothing is left open
    CHECK(walk.served() == Version(1));
    CHECK_FALSE(walk.course.view().paused);
    if (failure == EngineFailure::kTakeOut) {
      CHECK(walk.state() == EngineState::kOut);
      continue;
    }
    CHECK(walk.state() == EngineState::kBehind);
    CHECK(walk.Later() == Calls{"probe"});
    walk.course.Ready(Version(3));
    CHECK(walk.Run() == kVllmNext);
  }
}

TEST_CASE("pauses before retries double, less a random part of up to half") {
  Walk walk(EngineKind::kHttp, {.retries = 8,
                                .first_pause = milliseconds(100),
                                .longest_pause = milliseconds(1000),
                                .seed = 4711});
  walk.answers[EngineCall::kLoad] = std::vector<EngineAnswer>(9, kRefused);
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"load*"});
  bool random = false;
  for (const int most : {100, 200, 400, 800, 1000, 1000, 1000, 1000}) {
    const auto pause = walk.course.Next(walk.now).until - walk.now;
    CAPTURE(most, pause.count());
    CHECK(pause <= milliseconds(most));
    CHECK(pause >= milliseconds(most) / 2);
    random |= pause != milliseconds(most);
    CHECK(walk.Later() == Calls{"load*"});
  }
  CHECK(random);
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.course.Next(walk.now).until == EngineCourse::Time::max());
}

TEST_CASE("a pause that fails is taken back, unless the weights are in doubt") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kPause] = {kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "clear", "resume"});
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.Later() == kVllmNext);

  Walk fresh(EngineKind::kVllm);  // the receiver before may have died in the middle of a load
  fresh.answers[EngineCall::kPause] = {kUnsure};
  fresh.course.Ready(Version(1));
  CHECK(fresh.Run() == Calls{"clear", "prepare*", "pause"});
  CHECK(fresh.course.view().paused);
  CHECK(fresh.Later() == kVllmFirst);
}

TEST_CASE("after a load that failed the engine stays paused until one succeeds") {
  const EngineAnswer answer = GENERATE(kRefused, kUnsure);
  for (const EngineCall failed : {EngineCall::kLoad, EngineCall::kFlush, EngineCall::kFinish}) {
    CAPTURE(ToString(failed), answer.why);
    Walk walk(EngineKind::kVllm, {.retries = 2});
    walk.Serve(1);
    walk.answers[failed] = {answer, answer};
    walk.course.Ready(Version(2));
    for (Calls calls = walk.Run(); walk.state() == EngineState::kRetrying; calls = walk.Later()) {
      CHECK(std::count(calls.begin(), calls.end(), "resume") == 0);
      CHECK(calls.back() == ToString(failed));
      CHECK(walk.course.view().paused);
      CHECK(walk.served() == Identity{});
      CHECK(walk.course.view().attempts < 3);
    }
    CHECK(walk.state() == EngineState::kServing);
    CHECK(walk.served() == Version(2));
    CHECK(walk.course.view().error.empty());
    CHECK(walk.course.view().failures == 2);
  }
}

TEST_CASE("retries end, and the next version heals the engine that stayed paused") {
  Walk walk(EngineKind::kVllmReload, {.retries = 1});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused, kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"pause*", "load*"});
  CHECK(walk.Later() == Calls{"pause*", "load*"});
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.Later() == Calls{"probe"});
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == Calls{"pause*", "load*", "flush", "name", "resume"});
  CHECK(walk.served() == Version(3));
}

TEST_CASE("stay-paused: one attempt for each version") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kStayPaused});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "clear"});
  CHECK(walk.state() == EngineState::kPaused);
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == kVllmNext);
}

TEST_CASE("take-out: no further version, until the engine starts anew") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kTakeOut});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.state() == EngineState::kOut);
  walk.course.Ready(Version(3));
  CHECK(walk.Run().empty());
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.state() == EngineState::kOut);
  walk.answers[EngineCall::kProbe] = {kUnreachable};
  walk.Later();
  CHECK(walk.state() == EngineState::kUnreachable);
  Calls calls = kVllmFirst;
  calls.insert(calls.begin(), "probe");
  CHECK(walk.Later() == calls);
  CHECK(walk.served() == Version(3));
}

TEST_CASE("rollback: the update is taken back and the version before is served") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.Serve(1);
  walk.answers[EngineCall::kFlush] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "flush", "rollback", "clear", "resume"});
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.course.view().updates == 1);
  CHECK(walk.course.view().error.find("flush: ") == 0);
  CHECK(walk.Later() == Calls{"probe"});  // and not this version again
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == kVllmNext);
}

TEST_CASE("rollback: what is not sure to be taken back stays paused") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  SECTION("the engine refuses") {
    walk.Serve(1);
    walk.answers[EngineCall::kRollback] = {kRefused};
    walk.answers[EngineCall::kLoad] = {kRefused};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback", "clear"});
  }
  SECTION("it is not known what would come back") {
    walk.answers[EngineCall::kLoad] = {kRefused};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"clear", "prepare*", "pause", "load", "clear"});
  }
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.served() == Identity{});
}

TEST_CASE("rollback: SGLang's plug-in may prove that there is nothing to take back") {
  Walk walk(EngineKind::kSglang, {.failure = EngineFailure::kRollback});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.answers[EngineCall::kRollback] = {kRefused};
  walk.course.Ready(Version(2));
  SECTION("it does") {
    CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback", "prove", "resume"});
    CHECK(walk.served() == Version(1));
  }
  SECTION("it does not") {
    walk.answers[EngineCall::kProve] = {kRefused};
    CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback", "prove"});
    CHECK(walk.state() == EngineState::kPaused);
  }
}

TEST_CASE("a resume that fails is repeated alone") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback, .retries = 2});
  walk.Serve(1);
  walk.answers[EngineCall::kResume] = {kUnsure, kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == kVllmNext);
  CHECK(walk.state() == EngineState::kRetrying);
  CHECK(walk.Later() == Calls{"resume"});
  CHECK(walk.Later() == Calls{"resume"});
  CHECK(walk.served() == Version(2));
}

TEST_CASE("an engine that cannot be reached is tried without end, and begins anew") {
  Walk walk(EngineKind::kVllm, {.retries = 1});
  walk.Serve(5);
  walk.answers[EngineCall::kProbe] = std::vector<EngineAnswer>(50, kUnreachable);
  for (int i = 0; i < 50; ++i) {
    CHECK(walk.Later() == Calls{"probe"});
    CHECK(walk.state() == EngineState::kUnreachable);
    CHECK(walk.served() == Identity{});
    CHECK(walk.course.Next(walk.now).until - walk.now <= milliseconds(2000));
  }
  CHECK(walk.course.view().failures == 1);
  Calls calls = kVllmFirst;
  calls.insert(calls.begin(), "probe");
  CHECK(walk.Later() == calls);
  CHECK(walk.served() == Version(5));
}

TEST_CASE("an engine that dies in the middle of an update begins anew when it is back") {
  for (const EngineCall dies : {EngineCall::kPrepare, EngineCall::kPause, EngineCall::kLoad,
                                EngineCall::kFlush, EngineCall::kFinish, EngineCall::kResume}) {
    CAPTURE(ToString(dies));
    Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kTakeOut, .retries = 0});
    walk.Serve(1);
    walk.answers[dies] = {kUnreachable};
    walk.course.Ready(Version(2));
    CHECK(walk.Run().back().starts_with(ToString(dies)));
    CHECK(walk.state() == EngineState::kUnreachable);
    Calls calls = kVllmFirst;
    calls.insert(calls.begin(), "probe");
    CHECK(walk.Later() == calls);
    CHECK(walk.served() == Version(2));
  }
}

TEST_CASE("an engine that names another version than it was brought to is brought to it again") {
  Walk walk(EngineKind::kSglangReload);
  walk.Serve(5);
  CHECK(walk.Later() == Calls{"probe"});
  walk.named = "default";
  CHECK(walk.Later() == Calls{"probe", "pause*", "load*", "resume"});
  CHECK(walk.served() == Version(5));
  // One that always does so has names of its own.
  CHECK(walk.Later() == Calls{"probe", "pause*", "load*", "resume"});
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.Later() == Calls{"probe"});
  walk.named = "5";
  walk.Later();
  walk.named = "default";
  CHECK(walk.Later() == Calls{"probe", "pause*", "load*", "resume"});
}

TEST_CASE("a probe that is not answered does not mean that the engine serves no more") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kProbe] = {kUnsure};
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.state() == EngineState::kServing);
  CHECK(walk.course.view().error.find("probe: ") == 0);
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.course.view().error.empty());
}

TEST_CASE("an engine that is not attached is attached, one at another version reloads first") {
  Walk walk(EngineKind::kVllm);
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"clear", "prepare*", "attach*", "prepare*", "pause", "load", "flush",
                            "finish", "resume"});
  CHECK(walk.course.view().failures == 0);

  Walk other(EngineKind::kVllm);
  other.answers[EngineCall::kPrepare] = {kRefused, kRefused};
  other.answers[EngineCall::kAttach] = {kRefused, kRefused};
  other.course.Ready(Version(1));
  CHECK(other.Run() == Calls{"clear", "prepare*", "attach*"});  // it may be a passing failure
  CHECK(other.Later() == Calls{"clear", "prepare*", "attach*", "pause*", "detach*", "reload*",
                               "attach*", "prepare*", "load", "flush", "finish", "resume"});
  CHECK(other.served() == Version(1));
  CHECK(other.course.view().error.empty());

  Walk sglang(EngineKind::kSglang);
  sglang.answers[EngineCall::kPrepare] = {kRefused, kRefused};
  sglang.course.Ready(Version(1));
  CHECK(sglang.Run() == Calls{"prepare*"});
  CHECK(sglang.Later() == Calls{"prepare*", "pause*", "reload*", "prepare*", "load", "resume"});
}

TEST_CASE("an engine that cannot be followed at all reads the directory, and says why") {
  Walk walk(EngineKind::kVllm, {.retries = 0});
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused, {Result::kRefused, "400: it quantises", {}}};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"clear", "prepare*", "attach*", "pause*", "detach*", "reload*",
                            "attach*", "flush", "name", "resume"});
  CHECK(walk.served() == Version(1));
  CHECK(walk.course.view().error.find("it quantises") != std::string::npos);
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"pause*", "detach*", "reload*", "flush", "name", "resume"});
  CHECK(walk.course.view().error.find("it quantises") != std::string::npos);
  // Another process may be one that can be followed.
  walk.answers[EngineCall::kProbe] = {kUnreachable};
  walk.Later();
  Calls anew = kVllmFirst;
  anew.insert(anew.begin(), "probe");
  CHECK(walk.Later() == anew);
  CHECK(walk.course.view().error.empty());

  Walk sglang(EngineKind::kSglang, {.retries = 0});
  sglang.answers[EngineCall::kPrepare] = {kRefused, kRefused};
  sglang.course.Ready(Version(1));
  CHECK(sglang.Run() == Calls{"prepare*", "pause*", "reload*", "prepare*", "resume"});
  CHECK(sglang.served() == Version(1));
}

TEST_CASE("while the receiver changes the directory no call is made, and none has failed") {
  Walk walk(EngineKind::kVllmReload);
  walk.Serve(1);
  walk.course.Ready(Version(2));
  REQUIRE(walk.course.Next(walk.now).hold);
  walk.course.HoldRefused(walk.now);
  CHECK(walk.Run().empty());
  CHECK(walk.course.view().failures == 0);
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == Calls{"pause*", "load*", "flush", "name", "resume"});
  CHECK(walk.served() == Version(3));
}

TEST_CASE("a hook that refuses leaves the engine at what it served, an interrupted one does not") {
  Walk walk(EngineKind::kExec, {.retries = 0});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.served() == Version(1));
  walk.answers[EngineCall::kLoad] = {kUnsure};
  walk.course.Ready(Version(3));
  walk.Run();
  CHECK(walk.served() == Identity{});
}

}  // namespace deltawire::receiver
