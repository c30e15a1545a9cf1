// What follows when a call to an engine fails: what is repeated, taken back, given up or left
// paused. No sockets, no threads; time is a number.
#include <algorithm>
#include <chrono>

#include "tests/unit/receiver/engine_walk.h"

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
    CHECK(walk.Later() == Calls{"clear", "prepare*"});
    CHECK(walk.Later() == Calls{"clear", "prepare*", "clear"});  // nothing is left open
    CHECK(walk.served() == Version(1));
    CHECK_FALSE(walk.course.view().paused);
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

TEST_CASE("what takes a failed pause back is repeated, and the engine goes on") {
  Walk walk(EngineKind::kVllm, {.retries = 3});
  walk.Serve(1);
  walk.answers[EngineCall::kPause] = {kUnsure};
  walk.answers[EngineCall::kClear] = {kUnsure, kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "clear"});
  CHECK(walk.state() == EngineState::kRetrying);
  CHECK(walk.course.view().paused);
  CHECK(walk.Later() == Calls{"clear"});
  CHECK(walk.Later() == Calls{"clear", "resume"});
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.Later() == kVllmNext);
  CHECK(walk.served() == Version(2));
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

TEST_CASE("stay-paused: there is one attempt for each version") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kStayPaused});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "clear"});
  CHECK(walk.state() == EngineState::kPaused);
  walk.course.Ready(Version(3));
  CHECK(walk.Run() == kVllmNext);
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
    CHECK(walk.Run() == kVllmFirst);
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
  Calls calls = kVllmFirst;
  calls.insert(calls.begin(), "probe");
  CHECK(walk.Later() == calls);
  CHECK(walk.served() == Version(3));
}

TEST_CASE("take-out: an engine that started anew between two probes is known by what it names") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kTakeOut});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kUnsure};
  walk.course.Ready(Version(2));
  walk.Run();
  CHECK(walk.Later() == Calls{"probe"});
  walk.named = "2";  // the load was cut, and done later
  CHECK(walk.Later() == Calls{"probe"});
  CHECK(walk.state() == EngineState::kOut);
  walk.named = "default";
  Calls calls = kVllmFirst;
  calls.insert(calls.begin(), "probe");
  CHECK(walk.Later() == calls);
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

TEST_CASE("rollback: an engine that does not answer the clear is resumed when it does") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  walk.answers[EngineCall::kClear] = {kUnsure};
  walk.course.Ready(Version(2));
  CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback", "clear"});
  CHECK(walk.Later() == Calls{"clear", "resume"});
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.served() == Version(1));
}

TEST_CASE("rollback: what is not sure to be taken back stays paused") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  SECTION("the engine refuses") {
    walk.Serve(1);
    walk.answers[EngineCall::kRollback] = {kRefused};
    walk.answers[EngineCall::kProve] = {kRefused};
    walk.answers[EngineCall::kLoad] = {kRefused};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"prepare*", "pause", "load", "rollback", "clear", "prove"});
    CHECK(walk.course.view().error.find("load: 500: no; prove: 500: no; it is not known") == 0);
  }
  SECTION("it is not known what would come back") {
    walk.answers[EngineCall::kLoad] = {kRefused};
    walk.course.Ready(Version(2));
    CHECK(walk.Run() == Calls{"clear", "prepare*", "pause", "load", "clear"});
  }
  CHECK(walk.state() == EngineState::kPaused);
  CHECK(walk.served() == Identity{});
  CHECK(walk.course.view().error.find("it stays paused until the next version, or until it starts "
                                      "anew") != std::string::npos);
  walk.course.Ready(Version(3));
  (void)walk.Run();
  CHECK(walk.served() == Version(3));
}

TEST_CASE("rollback: vLLM, whose session a failed load has ended, proves what it holds") {
  Walk walk(EngineKind::kVllm, {.failure = EngineFailure::kRollback});
  walk.Serve(1);
  walk.answers[EngineCall::kLoad] = {kRefused};
  const EngineAnswer answer = GENERATE(kRefused, kUnsure);
  walk.answers[EngineCall::kRollback] = {answer};
  walk.answers[EngineCall::kClear] = {kRefused};  // nothing is open
  walk.course.Ready(Version(2));
  Calls calls = {"prepare*", "pause", "load", "rollback", "clear", "prove"};
  SECTION("it does") {
    calls.push_back("resume");
    CHECK(walk.Run() == calls);
  }
  SECTION("its answer is cut") {
    walk.answers[EngineCall::kProve] = {kUnsure};
    CHECK(walk.Run() == calls);
    CHECK(walk.course.view().paused);
    CHECK(walk.Later() == Calls{"prove", "resume"});
  }
  CHECK(walk.state() == EngineState::kBehind);
  CHECK(walk.served() == Version(1));
  CHECK_FALSE(walk.course.view().paused);
  CHECK(walk.course.view().error.find("load: 500: no") == 0);
  walk.course.Ready(Version(3));
  (void)walk.Run();
  CHECK(walk.served() == Version(3));
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

}  // namespace deltawire::receiver::engine_course_failure_test
