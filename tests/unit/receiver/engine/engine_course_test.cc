// The order of calls to an engine, and how an engine is found, lost and followed again. No sockets,
// no threads; time is a number.
#include <algorithm>
#include <chrono>

#include "tests/unit/receiver/engine/engine_walk.h"

namespace deltawire::receiver::engine_course_test {
namespace {

using std::chrono::milliseconds;
using Result = EngineAnswer::Result;

}  // namespace

TEST_CASE("each kind is asked in its order, and what reads the directory holds it") {
  const std::map<EngineKind, Calls> first = {
      {EngineKind::kVllm, Checked(kVllmFirst)},
      {EngineKind::kVllmReload, {"pause*", "load*", "flush", "name", "resume"}},
      {EngineKind::kSglang, {"prepare*", "pause", "load", "resume", "check*"}},
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
  walk.Serve(1);  // pause, load, flush, sample, name, resume: a millisecond each
  CHECK(walk.course.view().last_pause_seconds == Approx(0.006));
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.course.view().pause_seconds == Approx(0.012));
}

TEST_CASE("the times of an update are those of the attempt that succeeded, and retries count") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);  // a millisecond each
  const auto first = walk.course.view();
  // ask and prepare; then load, flush, sample and name.
  CHECK(first.last_prepare_seconds == Approx(0.002));
  CHECK(first.last_load_seconds == Approx(0.004));
  CHECK(first.retries == 0);
  walk.answers[EngineCall::kLoad] = {kRefused, kRefused};
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.course.view().last_load_seconds == first.last_load_seconds);  // nothing was updated
  for (int i = 0; i < 4 && walk.served() != Version(2); ++i) walk.Later();
  REQUIRE(walk.served() == Version(2));
  CHECK(walk.course.view().retries == 2);
  CHECK(walk.course.view().last_load_seconds == Approx(0.003));  // but for the proof
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
  const Calls calls = After("probe", Checked(kVllmFirst));
  CHECK(walk.Later() == calls);
  CHECK(walk.served() == Version(5));
}

TEST_CASE("a hook without a probe is unreachable only until it is connected to") {
  Walk walk(EngineKind::kHttp);
  walk.answers[EngineCall::kLoad] = {kUnreachable, kUnreachable, kRefused};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"load*"});
  CHECK(walk.Later() == Calls{"load*"});
  CHECK(walk.state() == EngineState::kUnreachable);
  CHECK(walk.Later() == Calls{"load*"});
  CHECK(walk.state() == EngineState::kRetrying);
  CHECK(walk.Later() == Calls{"load*"});
  CHECK(walk.state() == EngineState::kServing);
}

TEST_CASE("an engine that dies in the middle of an update begins anew when it is back") {
  for (const EngineCall dies : {EngineCall::kPrepare, EngineCall::kPause, EngineCall::kLoad,
                                EngineCall::kFlush, EngineCall::kName, EngineCall::kResume}) {
    CAPTURE(ToString(dies));
    Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kTakeOut, .retries = 0});
    walk.Serve(1);
    walk.answers[dies] = {kUnreachable};
    walk.course.Ready(Version(2));
    CHECK(walk.Run().back().starts_with(ToString(dies)));
    CHECK(walk.state() == EngineState::kUnreachable);
    const Calls calls = After("probe", Checked(kVllmFirst));
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
  const Calls rest = {"prepare*", "pause", "load", "flush", "sample", "name", "resume"};
  Walk walk(EngineKind::kVllm);
  walk.held = {};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == After("ask", After("attach*", rest)));
  CHECK(walk.course.view().failures == 0);
  CHECK(walk.course.view().verified);

  Walk moved(EngineKind::kVllm);  // an engine that has moved its parameters
  moved.answers[EngineCall::kPrepare] = {kRefused};
  moved.course.Ready(Version(1));
  CHECK(moved.Run() == After("ask", After("prepare*", After("attach*", rest))));

  Walk other(EngineKind::kVllm);
  other.held = {};
  other.answers[EngineCall::kAttach] = {kRefused, kRefused};
  other.course.Ready(Version(1));
  CHECK(other.Run() == Calls{"ask", "attach*"});  // it may be a passing failure
  CHECK(other.Later() ==
        Calls{"ask", "attach*", "pause*", "reload*", "attach*", "flush", "name", "resume"});
  CHECK(other.served() == Version(1));
  CHECK(other.course.view().error.empty());
  CHECK(other.course.view().verified);

  Walk sglang(EngineKind::kSglang);
  sglang.answers[EngineCall::kPrepare] = {kRefused, kRefused};
  sglang.course.Ready(Version(1));
  CHECK(sglang.Run() == Calls{"prepare*"});
  CHECK(sglang.Later() ==
        Calls{"prepare*", "pause*", "reload*", "prepare*", "load", "resume", "check*"});
}

TEST_CASE("what cannot be compared is served, and not verified") {
  for (const EngineKind kind :
       {EngineKind::kVllmReload, EngineKind::kSglangReload, EngineKind::kHttp}) {
    Walk walk(kind);
    walk.Serve(1);
    CHECK_FALSE(walk.course.view().verified);
  }
  Walk walk(EngineKind::kVllm);
  walk.answers[EngineCall::kCheck] = {kUnsure};
  walk.Serve(1);
  CHECK_FALSE(walk.course.view().verified);  // an earlier receiver's, and not compared yet
  walk.course.AskCheck();
  CHECK(walk.Run() == Calls{"ask", "check*"});
  CHECK(walk.course.view().verified);
}

TEST_CASE("versions that keep coming do not keep an engine from reading the directory") {
  Walk walk(EngineKind::kVllm);
  walk.held = {};
  walk.answers[EngineCall::kAttach] = {kRefused, kRefused};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"ask", "attach*"});
  walk.course.Ready(Version(2));  // was committed while the engine attached
  CHECK(walk.Run() ==
        Calls{"ask", "attach*", "pause*", "reload*", "attach*", "flush", "name", "resume"});
  CHECK(walk.served() == Version(2));
  // Once it serves, a refusal may be a passing failure again.
  walk.held = Version(2);
  walk.answers[EngineCall::kPrepare] = {kRefused};
  walk.answers[EngineCall::kAttach] = {kRefused};
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == Calls{"prepare*", "attach*"});
  CHECK(walk.Later() == kVllmFirst);
}

TEST_CASE("an engine without memory for an update reads the directory, and is not left paused") {
  Walk walk(EngineKind::kVllm);
  walk.Serve(1);
  const EngineAnswer full{EngineAnswer::Result::kRefused, "rank 1: no memory", {}};
  walk.answers[EngineCall::kPrepare] = {full, full, full, full};
  walk.answers[EngineCall::kAttach] = {kRefused, kRefused};  // its memory is of version 1
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "attach*"});
  CHECK(walk.state() == EngineState::kRetrying);
  CHECK(walk.served() == Version(1));
  CHECK(walk.course.view().error == "attach: 500: no (at first: rank 1: no memory)");
  CHECK(walk.Later() == Calls{"ask", "prepare*", "attach*", "pause*", "reload*", "attach*", "flush",
                              "name", "resume"});
  CHECK(walk.served() == Version(2));
  CHECK(walk.course.view().verified);
}

TEST_CASE("the last attempt reads the directory, though it is the first that was refused") {
  Walk walk(EngineKind::kSglang, {.retries = 1});
  walk.answers[EngineCall::kPrepare] = {kUnsure, kRefused};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"prepare*"});
  CHECK(walk.Later() ==
        Calls{"prepare*", "pause*", "reload*", "prepare*", "load", "resume", "check*"});
}

TEST_CASE("an engine that cannot be followed at all reads the directory, and says why") {
  Walk walk(EngineKind::kVllm, {.retries = 0});
  walk.answers[EngineCall::kPrepare] = {kRefused};
  const EngineAnswer no{Result::kRefused, "400: it quantises", {}};
  walk.answers[EngineCall::kAttach] = {kRefused, no};
  walk.course.Ready(Version(1));
  CHECK(walk.Run() == Calls{"ask", "prepare*", "attach*", "pause*", "reload*", "attach*", "flush",
                            "name", "resume"});
  CHECK(walk.served() == Version(1));
  CHECK(walk.course.view().error.find("it quantises") != std::string::npos);
  // What its memory has where is not known, so a check ends at once and says so.
  const uint64_t number = walk.course.AskCheck();
  CHECK(walk.course.view().last_check().number == number);
  CHECK(walk.course.view().last_check().error.find("it quantises") != std::string::npos);
  // It is tried again, ever more seldom.
  for (uint64_t version = 2; version <= 9; ++version) {
    CAPTURE(version);
    const bool tries = version == 2 || version == 3 || version == 5 || version == 9;
    if (tries) walk.answers[EngineCall::kAttach] = {no};
    walk.course.Ready(Version(version));
    CHECK(walk.Run() == (tries ? Calls{"pause*", "reload*", "attach*", "flush", "name", "resume"}
                               : Calls{"pause*", "reload*", "flush", "name", "resume"}));
    CHECK(walk.course.view().error.find("it quantises") != std::string::npos);
  }
  // Another process may be one that can be followed.
  walk.answers[EngineCall::kProbe] = {kUnreachable};
  walk.Later();
  const Calls anew = After("probe", Checked(kVllmFirst));
  CHECK(walk.Later() == anew);
  CHECK(walk.course.view().error.empty());

  Walk sglang(EngineKind::kSglang, {.retries = 0});
  sglang.answers[EngineCall::kPrepare] = {kRefused, kRefused};
  sglang.course.Ready(Version(1));
  CHECK(sglang.Run() == Calls{"prepare*", "pause*", "reload*", "prepare*", "resume"});
  CHECK(sglang.served() == Version(1));
  // It had no memory then, and has some now.
  sglang.course.Ready(Version(2));
  CHECK(sglang.Run() == Calls{"pause*", "reload*", "prepare*", "load", "resume", "check*"});
  CHECK(sglang.course.view().error.empty());
  sglang.course.Ready(Version(3));
  CHECK(sglang.Run() == Calls{"prepare*", "pause", "load", "resume"});

  // Another refusal is no failure, and the pause is not repeated for it.
  Walk patient(EngineKind::kVllm);
  patient.answers[EngineCall::kPrepare] = {kRefused, kRefused};
  patient.answers[EngineCall::kAttach] = {kRefused, kRefused, no, no};
  patient.course.Ready(Version(1));
  patient.Run();
  REQUIRE(patient.Later().back() == "resume");
  patient.course.Ready(Version(2));
  CHECK(patient.Run() == Calls{"pause*", "reload*", "attach*", "flush", "name", "resume"});
  CHECK(patient.served() == Version(2));
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

}  // namespace deltawire::receiver::engine_course_test
