// What follows when a call to an engine fails: what is repeated, taken back, given up or left
// paused. No sockets, no threads; time is a number.
#include <algorithm>
#include <chrono>

#include "tests/unit/receiver/engine/engine_walk.h"

namespace deltawire::receiver::engine_course_failure_test {
namespace {

using std::chrono::milliseconds;

}  // namespace

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
    CHECK(walk.Later() == Calls{"ask", "prepare*"});
    CHECK(walk.Later() == Calls{"ask", "prepare*", "clear"});  // nothing is left open
    CHECK(walk.served() == Version(1));
    CHECK_FALSE(walk.course.view().paused);
    CHECK(walk.state() == EngineState::kBehind);
    CHECK(walk.Later() == Calls{"probe"});
    walk.course.Ready(Version(3));
    CHECK(walk.Run() == kVllmFirst);
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
  CHECK(walk.Run() == Calls{"prepare*", "pause", "resume", "ask"});
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.Later() == kVllmFirst);

  // The receiver before may have died in the middle of a load; a plug-in knows what it holds.
  Walk told(EngineKind::kVllm);
  told.answers[EngineCall::kPause] = {kUnsure};
  told.course.Ready(Version(2));
  CHECK(told.Run() == Calls{"ask", "prepare*", "pause", "resume", "ask"});
  CHECK(told.served() == Version(1));
  Walk fresh(EngineKind::kSglangReload);
  fresh.answers[EngineCall::kPause] = {kUnsure};
  fresh.course.Ready(Version(1));
  CHECK(fresh.Run() == Calls{"pause*"});
  CHECK(fresh.course.view().paused);
  CHECK(fresh.Later() == Calls{"pause*", "load*", "resume"});
}

TEST_CASE("a pause that was cut and comes after it was taken back does not stay") {
  Walk walk(EngineKind::kVllm, {.retries = 0});
  walk.Serve(1);
  walk.answers[EngineCall::kPause] = {kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "resume", "ask", "clear"});
  CHECK(walk.state() == EngineState::kBehind);
  EngineAnswer paused;
  paused.paused = true;
  paused.version = "1";
  walk.answers[EngineCall::kProbe] = {paused, paused};
  walk.answers[EngineCall::kResume] = {kUnsure};
  CHECK(walk.Later() == Calls{"probe", "resume"});
  CHECK(walk.Later() == Calls{"probe", "resume"});
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.served() == Version(1));
  // One that somebody else pauses stays so.
  walk.course.Ready(Version(3));
  CHECK(walk.Run().back() == "resume");
  walk.named = "3";
  paused.version = "3";
  walk.answers[EngineCall::kProbe] = {paused};
  CHECK(walk.Later() == Calls{"probe"});
}

TEST_CASE("what takes a failed pause back is repeated, and the engine goes on") {
  Walk walk(EngineKind::kVllm, {.retries = 3});
  walk.Serve(1);
  walk.answers[EngineCall::kPause] = {kUnsure};
  walk.answers[EngineCall::kResume] = {kUnsure, kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "resume"});
  CHECK(walk.state() == EngineState::kRetrying);
  CHECK(walk.course.view().paused);
  CHECK(walk.Later() == Calls{"resume"});
  CHECK(walk.Later() == Calls{"resume", "ask"});
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.Later() == kVllmFirst);
  CHECK(walk.served() == Version(2));
}

TEST_CASE("after a load that failed the engine stays paused until one succeeds") {
  const EngineAnswer answer = GENERATE(kRefused, kUnsure);
  for (const EngineCall failed : {EngineCall::kLoad, EngineCall::kFlush, EngineCall::kName}) {
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
  Walk walk(EngineKind::kSglangReload, {.retries = 1});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused, kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"pause*", "load*"});
  CHECK(walk.Later() == Calls{"pause*", "load*"});
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.Later() == Calls{"probe"});
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == Calls{"pause*", "load*", "resume"});
  CHECK(walk.served() == Version(3));
}

TEST_CASE("a reload that vLLM has failed is not followed by another one, but by a new process") {
  Walk walk(EngineKind::kVllmReload);
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"pause*", "load*"});
  for (const uint64_t version : {2, 3, 4}) {
    walk.course.Ready(Version(version));
    CHECK(walk.Later() == Calls{"probe"});
    CHECK(walk.state() == EngineState::kPaused);
    CHECK(walk.course.view().paused);
    CHECK(walk.course.view().error.find("start the engine anew") != std::string::npos);
  }
  walk.answers[EngineCall::kProbe] = {kUnreachable};
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.Later() == Calls{"probe", "pause*", "load*", "flush", "name", "resume"});
  CHECK(walk.served() == Version(4));
}

TEST_CASE("a reload that vLLM's plug-in cannot vouch for leaves the engine paused") {
  const bool says_so = GENERATE(false, true);  // as after a restart of the receiver
  EngineAnswer lost = kRefused;
  lost.only_anew = says_so;
  if (says_so) lost.why = "500: start the engine anew: 3 parameters have no memory";
  Walk walk(EngineKind::kVllm, {.retries = 1});
  walk.answers[EngineCall::kPrepare] = {kRefused, kRefused, kRefused, kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused, kRefused, lost, lost};
  if (!says_so) walk.answers[EngineCall::kReload] = {kRefused};
  walk.course.Ready(Version(1));
  Calls all = walk.Run();
  while (walk.state() == EngineState::kRetrying) {
    for (const std::string& call : walk.Later()) all.push_back(call);
  }
  CHECK(std::count(all.begin(), all.end(), "reload*") == 1);
  CHECK(std::count(all.begin(), all.end(), "resume") == 0);
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.course.view().error.find("start the engine anew") != std::string::npos);
  // What an attach has compared byte by byte is whole again, whatever was before.
  walk.answers.clear();
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run().back() == "resume");
  CHECK(walk.served() == Version(2));
  CHECK(walk.course.view().error.empty());
}

TEST_CASE("an engine that only a new process would help is not told to reload, and serves on") {
  const EngineKind kind = GENERATE(EngineKind::kVllm, EngineKind::kSglang);
  const EngineCall proves = kind == EngineKind::kVllm ? EngineCall::kAttach : EngineCall::kPrepare;
  Walk walk(kind, {.retries = 1});
  walk.Serve(1);
  EngineAnswer shapes = kRefused;
  shapes.only_anew = true;
  shapes.why = "500: tensors of other shapes; start the engine anew";
  for (const uint64_t version : {2, 3}) {
    walk.answers[EngineCall::kPrepare] = {kRefused, kRefused};
    walk.answers[proves] = {shapes, shapes};
    walk.course.Ready(Version(version));
    Calls all = walk.Run();
    while (walk.state() == EngineState::kRetrying) {
      for (const std::string& call : walk.Later()) all.push_back(call);
    }
    CHECK(std::count(all.begin(), all.end(), "pause*") == 0);
    CHECK(walk.state() == EngineState::kBehind);
    CHECK(walk.served() == Version(1));
    CHECK(walk.course.view().error == fmt::format("{}: {}", ToString(proves), shapes.why));
  }
  // The model of before is back, with other bytes: that a reload does help against.
  walk.answers[EngineCall::kPrepare] = {kRefused, kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused, kRefused};
  walk.course.Ready(Version(4));
  (void)walk.Run();
  const Calls calls = walk.Later();
  CHECK(std::count(calls.begin(), calls.end(), "reload*") == 1);
  CHECK(calls.back() == "resume");
  CHECK(walk.served() == Version(4));
}

TEST_CASE("a reload whose answer was lost is proven before it counts, or the engine stays paused") {
  // Nothing can show what a vLLM without the plug-in has loaded.
  Walk blind(EngineKind::kVllmReload);
  blind.Serve(1);
  blind.answers[EngineCall::kLoad] = {kUnsure};
  blind.course.Ready(Version(2));
  CHECK(blind.Run() == Calls{"pause*", "load*"});
  CHECK(blind.Later() == Calls{"probe"});
  CHECK(blind.state() == EngineState::kPaused);
  CHECK(blind.served() == Identity{});
  CHECK(blind.course.view().error.find("nothing here can show what it has loaded") !=
        std::string::npos);

  // With it, an attach compares every byte of what another reload brings.
  const bool well = GENERATE(true, false);
  Walk walk(EngineKind::kVllm, {.retries = 0});
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused};
  walk.answers[EngineCall::kReload] = {kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"ask", "prepare*", "attach*", "pause*", "reload*", "clear"});
  CHECK(walk.state() == EngineState::kPaused);
  walk.held = {};
  walk.answers[EngineCall::kAttach] = {kRefused};
  if (!well) walk.answers[EngineCall::kAttach].push_back(kRefused);
  walk.course.Ready(Version(3));
  const Calls again = {"ask", "attach*", "pause*", "reload*", "attach*"};
  const Calls calls = walk.Run();
  REQUIRE(calls.size() > again.size());
  CHECK(Calls(calls.begin(), calls.begin() + 5) == again);
  CHECK(walk.state() == (well ? EngineState::kServing : EngineState::kPaused));
  CHECK(walk.served() == (well ? Version(3) : Identity{}));
}

TEST_CASE("an engine that has read the directory serves no older version, whatever fails then") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kStayPaused, .retries = 0});
  walk.Serve(1);
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused, kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "attach*", "pause*", "reload*", "attach*", "clear"});
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.served() == Identity{});
}

TEST_CASE("an engine that reads each version whole, and whose answer was lost, stays paused") {
  Walk walk(EngineKind::kVllm, {.retries = 0});
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused, kRefused};
  walk.course.Ready(Version(1));
  REQUIRE(walk.Run().back() == "resume");
  CHECK_FALSE(walk.course.view().verified);
  walk.answers[EngineCall::kReload] = {kUnsure};
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.served() == Identity{});
}

TEST_CASE("an engine that follows, and has no memory to prepare, is asked again before all else") {
  EngineAnswer no_memory = kRefused;
  no_memory.held = Version(1);
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  walk.answers[EngineCall::kPrepare] = {no_memory};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*"});
  CHECK(walk.state() == EngineState::kRetrying);
  CHECK(walk.served() == Version(1));
  CHECK(walk.Later() == kVllmFirst);
  CHECK(walk.served() == Version(2));
  // The second refusal in a row may have another reason.
  walk.held = no_memory.held = Version(2);
  walk.answers[EngineCall::kPrepare] = {no_memory, no_memory};
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == Calls{"prepare*"});
  CHECK(walk.Later() == Calls{"ask", "prepare*", "attach*", "prepare*", "pause", "load", "flush",
                              "sample", "name", "resume"});
  CHECK(walk.served() == Version(3));
}

TEST_CASE("what an engine's own reload would corrupt is not read, and it goes on as it was") {
  Walk walk(EngineKind::kVllm, {.retries = 0});
  walk.Serve(1);
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused};
  EngineAnswer corrupts = kRefused;
  corrupts.corrupts = true;
  corrupts.why = "packed experts";
  walk.answers[EngineCall::kReload] = {corrupts};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "attach*", "pause*", "reload*", "resume", "clear"});
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.served() == Version(1));
  CHECK(walk.course.view().error == "reload: packed experts");
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused};
  walk.course.Ready(Version(3));
  const Calls next = walk.Run();
  CHECK(std::count(next.begin(), next.end(), "reload*") == 0);
}

TEST_CASE(
    "a load whose answer was lost is told again, whatever the policy, and then all compared") {
  for (const EngineFailure failure :
       {EngineFailure::kRetry, EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
    for (const EngineCall lost : {EngineCall::kLoad, EngineCall::kFlush, EngineCall::kName}) {
      CAPTURE(ToString(failure), ToString(lost));
      Walk walk(EngineKind::kVllm, {.failure = failure});
      walk.Serve(1);
      walk.answers[lost] = {kUnsure};
      walk.course.Ready(Version(2));
      CHECK(walk.Run().back() == ToString(lost));
      CHECK(walk.served() == Identity{});
      CHECK(walk.Later() == (lost == EngineCall::kLoad ? kVllmProven : kVllmFirst));
      CHECK(walk.served() == Version(2));
      CHECK(walk.course.view().verified);
    }
  }
}

TEST_CASE("a proof that is not had keeps a version from being served") {
  const EngineFailure failure = GENERATE(EngineFailure::kRetry, EngineFailure::kRollback);
  Walk walk(EngineKind::kVllm, {.failure = failure});
  walk.process = "one";
  walk.Serve(1);
  walk.answers[EngineCall::kSample] = {kRefused};
  walk.course.Ready(Version(2));
  Calls calls = {"prepare*", "pause", "load", "flush", "sample"};
  if (failure == EngineFailure::kRollback) {
    for (const char* call : {"rollback", "name", "resume", "clear"}) calls.emplace_back(call);
    CHECK(walk.Run() == calls);
    CHECK(walk.served() == Version(1));
    return;
  }
  CHECK(walk.Run() == calls);
  CHECK(walk.served() == Identity{});
  CHECK(walk.Later() == kVllmProven);
  walk.answers[EngineCall::kSample] = {kUnsure};
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == calls);
  CHECK(walk.Later() == Calls{"sample", "name", "resume"});
}

TEST_CASE("an engine whose ranks answer to other calls is left alone until it has started anew") {
  for (const EngineCall call : {EngineCall::kAsk, EngineCall::kPrepare, EngineCall::kLoad,
                                EngineCall::kSample, EngineCall::kCheck}) {
    CAPTURE(ToString(call));
    Walk walk(EngineKind::kVllm);
    if (call != EngineCall::kAsk) walk.Serve(1);
    EngineAnswer other = kUnsure;
    other.out_of_step = true;
    other.why = "out of step; start the engine anew";
    walk.answers[call] = {other};
    if (call == EngineCall::kCheck) walk.course.AskCheck();
    walk.course.Ready(Version(call == EngineCall::kCheck ? 1 : 2));
    walk.Run();
    CHECK(walk.state() == EngineState::kOut);
    CHECK(walk.served() == Identity{});
    CHECK(walk.course.view().error == other.why);
    walk.course.Ready(Version(3));
    CHECK(walk.Run().empty());
    walk.answers[EngineCall::kProbe] = {kUnreachable};
    walk.Later();
    walk.held = {};
    CHECK(walk.Later() == Calls{"probe", "ask", "attach*", "prepare*", "pause", "load", "flush",
                                "sample", "name", "resume"});
    CHECK(walk.served() == Version(3));
  }
}

TEST_CASE("another process in the engine's place is begun with anew, and two of them are told") {
  Walk walk(EngineKind::kVllm);
  walk.process = "a";
  walk.Serve(1);
  walk.course.Ready(Version(2));
  walk.process = "b";
  walk.held = {};
  CHECK(walk.Run() == Calls{"prepare*", "ask", "attach*", "prepare*", "pause", "load", "flush",
                            "sample", "name", "resume"});
  CHECK(walk.served() == Version(2));
  walk.process = "a";
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == Calls{"prepare*"});
  CHECK(walk.state() == EngineState::kOut);
  CHECK(walk.course.view().error.find("several servers answer at this address") == 0);
}

TEST_CASE("a connection that fails otherwise than by a refusal is no new process") {
  Walk walk(EngineKind::kVllmReload);
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  walk.Run();
  EngineAnswer late = kUnreachable;
  late.gone = false;
  late.why = "connect: nothing within 5000 ms";
  walk.answers[EngineCall::kProbe] = {late};
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.state() == EngineState::kUnreachable);
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.state() == EngineState::kPaused);
}

TEST_CASE("stay-paused: there is one attempt for each version") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kStayPaused});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "clear"});
  CHECK(walk.state() == EngineState::kPaused);
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == kVllmProven);
}

TEST_CASE("the update of a version that was given up is closed until the engine answers") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kStayPaused});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.answers[EngineCall::kClear] = {kUnsure, kUnsure, kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "clear"});
  CHECK(walk.Later() == Calls{"clear"});
  CHECK(walk.Later() == Calls{"clear"});
  SECTION("it answers") {
    CHECK(walk.Later() == Calls{"clear"});
    CHECK(walk.Later() == Calls{"probe"});
    CHECK(walk.state() == EngineState::kPaused);
  }
  SECTION("a new version comes first") {
    walk.answers[EngineCall::kClear].clear();
    walk.course.Ready(Version(3));
    CHECK(walk.Run() == kVllmProven);
    walk.named = "3";
    CHECK(walk.Later() == Calls{"probe"});
  }
}

TEST_CASE("take-out: the engine gets no further version until it starts anew") {
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
  CHECK(walk.Later() == After("probe", Checked(kVllmFirst)));
  CHECK(walk.served() == Version(3));
}

TEST_CASE("take-out: an engine that started anew between two probes is known by what it names") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kTakeOut, .retries = 0});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kUnsure};
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.Later() == Calls{"probe"});
  walk.named = "2";  // the load was cut, and done later
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.state() == EngineState::kOut);
  walk.named = "default";
  CHECK(walk.Later() == After("probe", kVllmProven));
  CHECK(walk.state() == EngineState::kServing);
  CHECK(walk.served() == Version(2));
}

TEST_CASE("an engine that was left paused and started anew gets the version again") {
  Walk walk(EngineKind::kSglangReload, {.failure = EngineFailure::kStayPaused});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"pause*", "load*"});
  CHECK(walk.Later() == Calls{"probe"});
  walk.named = "default";
  CHECK(walk.Later() == Calls{"probe", "pause*", "load*", "resume"});
  CHECK(walk.served() == Version(2));
}

TEST_CASE("rollback: the update is taken back and the version before is served") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.Serve(1);
  walk.answers[EngineCall::kFlush] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() ==
        Calls{"prepare*", "pause", "load", "flush", "rollback", "name", "resume", "clear"});
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.course.view().updates == 1);
  CHECK(walk.course.view().error.find("flush: ") == 0);
  CHECK(walk.Later() == Calls{"probe"});  // and not this version again
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == kVllmFirst);
}

TEST_CASE("rollback: what is not sure to be taken back stays paused") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  SECTION("the engine refuses") {
    walk.Serve(1);
    walk.answers[EngineCall::kRollback] = {kRefused};
    walk.answers[EngineCall::kProve] = {kRefused};
    walk.answers[EngineCall::kLoad] = {kRefused};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback", "prove", "clear"});
    CHECK(walk.course.view().error.find("load: 500: no; prove: 500: no; it is not known") == 0);
  }
  SECTION("it is not known what would come back") {
    EngineAnswer says_nothing;
    walk.answers[EngineCall::kAsk] = {says_nothing};
    walk.answers[EngineCall::kLoad] = {kRefused};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"ask", "attach*", "prepare*", "pause", "load", "clear"});
  }
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.served() == Identity{});
  CHECK(walk.course.view().error.find("it stays paused until the next version, or until it starts "
                                      "anew") != std::string::npos);
  walk.course.Ready(Version(3));
  (void)walk.Run();
  CHECK(walk.served() == Version(3));
}

TEST_CASE("rollback: vLLM, which has refused the load, proves what it holds") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.process = "one";
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.answers[EngineCall::kRollback] = {kRefused};
  walk.course.Ready(Version(2));
  Calls calls = {"prepare*", "pause", "load", "rollback", "prove"};
  SECTION("it does") {
    calls.insert(calls.end(), {"name", "resume", "clear"});
    CHECK(walk.Run() == calls);
  }
  SECTION("its answer is cut") {
    walk.answers[EngineCall::kProve] = {kUnsure};
    CHECK(walk.Run() == calls);
    CHECK(walk.course.view().paused);
    CHECK(walk.Later() == Calls{"prove", "name", "resume", "clear"});
  }
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.course.view().error.find("load: 500: no") == 0);
  walk.course.Ready(Version(3));
  (void)walk.Run();
  CHECK(walk.served() == Version(3));
}

TEST_CASE("rollback: vLLM is told again where the answer to it was lost") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.process = "one";
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.answers[EngineCall::kRollback] = {kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback"});
  CHECK(walk.Later() == Calls{"rollback", "name", "resume", "clear"});
  CHECK(walk.served() == Version(1));
}

TEST_CASE("rollback: the version before is named again, until the engine has heard it") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.Serve(1);
  walk.answers[EngineCall::kName] = {kRefused, kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() ==
        Calls{"prepare*", "pause", "load", "flush", "sample", "name", "rollback", "name"});
  const auto action = walk.course.Next(walk.now + std::chrono::hours(1));
  CHECK(action.call == EngineCall::kName);
  CHECK(action.to == Version(1));
  // Another process may have started in between.
  CHECK(walk.Later() == Calls{"name", "resume", "ask", "clear"});
  CHECK(walk.served() == Version(1));
}

TEST_CASE("rollback: an engine that has started anew before it named the version serves it not") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.process = "one";
  walk.Serve(1);
  walk.answers[EngineCall::kName] = {kRefused, kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run().back() == "name");
  walk.process = "two";
  walk.held = {};
  const Calls calls = walk.Later();
  CHECK(Calls(calls.begin(), calls.begin() + 3) == Calls{"name", "resume", "ask"});
  CHECK(walk.served() == Version(2));
}

TEST_CASE("a vLLM that an earlier receiver has left paused in a reload is not resumed unproven") {
  Walk walk(EngineKind::kVllmReload);
  EngineAnswer found;
  found.paused = true;
  walk.answers[EngineCall::kPause] = {found};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"pause*"});
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.course.view().error.find("it was found paused") == 0);
  walk.answers[EngineCall::kProbe] = {kUnreachable};
  walk.Later();
  CHECK(walk.Later().back() == "resume");
  CHECK(walk.served() == Version(1));
}

TEST_CASE("a pause that never reached vLLM does not hide that an earlier receiver has left it so") {
  Walk walk(EngineKind::kVllmReload);
  EngineAnswer late = kUnreachable;
  late.gone = false;
  walk.answers[EngineCall::kPause] = {late};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"pause*"});
  CHECK_FALSE(walk.course.view().paused);
  EngineAnswer found;
  found.paused = true;
  walk.answers[EngineCall::kPause] = {found};
  CHECK(walk.Later() == Calls{"probe", "pause*"});
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.served() == Identity{});
}

TEST_CASE("what an engine only says that it holds is nothing to go on with after a failed pause") {
  Walk walk(EngineKind::kVllm);
  SECTION("its attach was refused") {
    walk.answers[EngineCall::kPrepare] = {kRefused, kRefused};
    walk.answers[EngineCall::kAttach] = {kRefused, kRefused};
    walk.answers[EngineCall::kPause] = {kUnsure};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"ask", "prepare*", "attach*"});
    CHECK(walk.Later() == Calls{"ask", "prepare*", "attach*", "pause*"});
  }
  SECTION("an earlier receiver has left it paused") {
    EngineAnswer found = kUnsure;
    found.paused = true;
    walk.answers[EngineCall::kPause] = {found};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"ask", "prepare*", "pause"});
  }
  SECTION("it has loaded, and no part was compared") {
    walk.Serve(1);
    walk.answers[EngineCall::kFlush] = {kUnsure};
    walk.answers[EngineCall::kPause] = {EngineAnswer(), kUnsure};
    walk.course.Ready(Version(2));
    walk.held = Version(2);
    CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "flush"});
    CHECK(walk.Later() == Calls{"ask", "prepare*", "pause"});
  }
  CHECK(walk.course.view().paused);
  CHECK(walk.served() == Identity{});
}

TEST_CASE("rollback: memory that a proof finds to have drifted is at no version") {
  Walk walk(EngineKind::kSglang, {.failure = EngineFailure::kRollback});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.answers[EngineCall::kRollback] = {kRefused};
  EngineAnswer drifted = kRefused;
  drifted.drifted = true;
  walk.answers[EngineCall::kProve] = {drifted};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback", "prove"});
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

TEST_CASE("a resume that fails is repeated alone, and then the engine is asked what it holds") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback, .retries = 3});
  walk.process = "a";
  walk.Serve(1);
  walk.answers[EngineCall::kResume] = {kUnsure, kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == kVllmNext);
  CHECK(walk.state() == EngineState::kRetrying);
  CHECK(walk.Later() == Calls{"resume"});
  SECTION("the same process") {
    walk.held = Version(2);
    CHECK(walk.Later() == Calls{"resume", "ask"});
  }
  SECTION("another one, that was resumed by the way") {
    walk.process = "b";
    walk.held = {};
    CHECK(walk.Later() == Calls{"resume", "ask", "ask", "attach*", "prepare*", "pause", "load",
                                "flush", "sample", "name", "resume"});
  }
  SECTION("it holds another version") {
    walk.held = Version(1);
    CHECK(walk.Later() == Calls{"resume", "ask"});
    CHECK(walk.served() == Identity{});
    return;
  }
  CHECK(walk.served() == Version(2));
}

}  // namespace deltawire::receiver::engine_course_failure_test
