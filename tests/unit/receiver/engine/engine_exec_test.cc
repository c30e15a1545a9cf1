// A program as an engine's hook: what it is told, what its end means, and that it ends.
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "receiver/engine/engine_hook.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/engine/engine_rig.h"

namespace deltawire::receiver::engine_exec_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Result = EngineAnswer::Result;

const Identity kSeven{Hash128{1, 2}, {3, 7}, 0xabc, 5};

struct Program {
  explicit Program(const std::string& script) : path(dir.path() / "hook") {
    std::ofstream(path) << "#!/bin/sh\n" << script;
    chmod(path.c_str(), 0755);
  }
  EngineOptions Engine(const std::string& arguments = "") const {
    return *ParseEngine("exec=" + path.native() + " " + arguments);
  }
  std::unique_ptr<EngineHook> Hook(const std::string& arguments = "") const {
    return MakeHook(Engine(arguments), {"policy", "/dev/shm/m"});
  }
  std::string Said() const { return ReadText(dir.path() / "said"); }

  TempDir dir;
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("a program is told the version, and nothing reads its arguments but itself") {
  const Program program(
      "cd \"$(dirname \"$0\")\"\n"
      "printf '%s|' \"$@\" \"$DELTAWIRE_MODEL\" \"$DELTAWIRE_DIRECTORY\" \"$DELTAWIRE_VERSION\" "
      "\"$DELTAWIRE_EPOCH\" \"$DELTAWIRE_LINEAGE\" \"$DELTAWIRE_ROOT\" > said\n");
  const auto hook = program.Hook("--fast $HOME;exit");
  const EngineAnswer answer = hook->Make(EngineCall::kLoad, kSeven, milliseconds(10000));
  CAPTURE(answer.why);
  CHECK(answer.done());
  CHECK(program.Said() ==
        "--fast|$HOME;exit|policy|/dev/shm/m|7|3|" + Hash128{1, 2}.Hex() + "|0000000000000abc|");
}

TEST_CASE("only an exit with 0 means that the version is served") {
  const auto run = [](const std::string& script) {
    return Program(script).Hook()->Make(EngineCall::kLoad, kSeven, milliseconds(10000));
  };
  CHECK(run("exit 0").done());
  CHECK(run("exit 3").result == Result::kRefused);
  CHECK(run("exit 3").why == "it exited with status 3");
  CHECK(run("echo first; printf 'no \\033[31mroom' >&2; exit 3").why ==
        "it exited with status 3: no  [31mroom");
  CHECK(run("yes | head -c 1000000; exit 0").done());
  CHECK(run("kill -9 $$").result == Result::kUnsure);
  const auto none = MakeHook(*ParseEngine("exec=/nowhere/at/all"), {"m", "/m"});
  const EngineAnswer answer = none->Make(EngineCall::kLoad, kSeven, milliseconds(10000));
  CHECK(answer.result == Result::kRefused);
  CHECK(answer.why.find("it cannot be started") == 0);
}

TEST_CASE("a program whose end cannot be learnt may have done anything") {
  const auto before = signal(SIGCHLD, SIG_IGN);  // the kernel then forgets how children end
  const EngineAnswer answer =
      Program("sleep 0.1; exit 3").Hook()->Make(EngineCall::kLoad, kSeven, milliseconds(10000));
  signal(SIGCHLD, before);
  CHECK(answer.result == Result::kUnsure);
  CHECK_FALSE(answer.why.empty());
}

TEST_CASE("a program is told of its version alone, whatever the receiver inherited") {
  const Program program(
      "cd \"$(dirname \"$0\")\"\n"
      "tr '\\0' '\\n' < /proc/$$/environ | grep '^DELTAWIRE_' | sort > said\n");
  setenv("DELTAWIRE_VERSION", "99", 1);
  setenv("DELTAWIRE_VERSION_OF_MINE", "1", 1);
  const EngineAnswer answer = program.Hook()->Make(EngineCall::kLoad, kSeven, milliseconds(10000));
  unsetenv("DELTAWIRE_VERSION");
  unsetenv("DELTAWIRE_VERSION_OF_MINE");
  CAPTURE(answer.why);
  CHECK(answer.done());
  CHECK(program.Said().find("DELTAWIRE_VERSION=7\n") != std::string::npos);
  CHECK(program.Said().find("DELTAWIRE_VERSION=99\n") == std::string::npos);
  CHECK(program.Said().find("DELTAWIRE_VERSION_OF_MINE=1\n") != std::string::npos);
}

TEST_CASE("a program is not started any more once its hook was cancelled") {
  const Program program("touch \"$(dirname \"$0\")/said\"\n");
  const auto hook = program.Hook();
  hook->Cancel();
  const EngineAnswer answer = hook->Make(EngineCall::kLoad, kSeven, milliseconds(10000));
  CHECK(answer.result == Result::kUnsure);
  CHECK_FALSE(std::filesystem::exists(program.dir.path() / "said"));
}

TEST_CASE("a program that takes too long is killed with all that it started") {
  const Program program(
      "cd \"$(dirname \"$0\")\"\n"
      "sleep 1000 &\n"
      "printf '%s' $! > said\n"
      "wait\n");
  const auto hook = program.Hook();
  const bool cancelled = GENERATE(false, true);
  std::thread cancels([&] {
    testing::Eventually([&] { return !program.Said().empty(); });
    if (cancelled) hook->Cancel();
  });
  const EngineAnswer answer =
      hook->Make(EngineCall::kLoad, kSeven, milliseconds(cancelled ? 100000 : 1000));
  cancels.join();
  CHECK(answer.result == Result::kUnsure);
  const pid_t grandchild = std::stoi(program.Said());
  // Its new parent, which is not us, reaps it.
  CHECK(testing::Eventually([&] {
    const std::string stat = ReadText(fmt::format("/proc/{}/stat", grandchild));
    return stat.empty() || stat.find(") Z") != std::string::npos;
  }));
}

/// A process of its own that has attached to another one as debuggers do, so that the end of that
/// one is not told to its parent until this one lets go. A program that hangs in the kernel cannot
/// be had in a test; to its parent it looks the same.
class Debugger {
 public:
  explicit Debugger(pid_t pid) {
    int ready[2];
    if (pipe(ready) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      alarm(120);  // should the test end before it
      const bool attached = ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
      [[maybe_unused]] const ssize_t n = write(ready[1], &attached, 1);
      while (true) pause();
    }
    close(ready[1]);
    char attached = 0;
    attached_ = read(ready[0], &attached, 1) == 1 && attached != 0;
    close(ready[0]);
  }
  ~Debugger() { LetGo(); }
  bool attached() const { return attached_; }
  void LetGo() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(std::exchange(child_, 0), nullptr, 0);
  }

 private:
  pid_t child_ = 0;
  bool attached_ = false;
};

TEST_CASE("a program that does not end when it is killed is left, by name, until it is gone") {
  const Program program(
      "cd \"$(dirname \"$0\")\"\n"
      "test -e said && exit 0\n"
      "printf '%s' $$ > said.new && mv said.new said\n"
      "sleep 1000\n");
  const auto hook = program.Hook();
  const bool cancelled = GENERATE(false, true);
  std::unique_ptr<Debugger> debugger;
  std::thread attaches([&] {
    testing::Eventually([&] { return !program.Said().empty(); });
    debugger = std::make_unique<Debugger>(std::stoi(program.Said()));
    if (cancelled) hook->Cancel();
  });
  const auto begin = Clock::now();
  const EngineAnswer answer =
      hook->Make(EngineCall::kLoad, kSeven, milliseconds(cancelled ? 100000 : 2000));
  const auto took = Clock::now() - begin;
  attaches.join();
  if (!debugger->attached()) {
    puts("SKIPPED: no process may attach to another here");
    return;
  }
  CAPTURE(answer.why);
  CHECK(took < milliseconds(20000));
  CHECK(answer.result == Result::kUnsure);
  const std::string held = fmt::format(", and process {} has not ended ", program.Said());
  CHECK(answer.why.find(cancelled ? "the receiver is stopping" + held
                                  : "it did not end within 2000 ms" + held) == 0);
  if (cancelled) return;
  const EngineAnswer beside = hook->Make(EngineCall::kLoad, kSeven, milliseconds(10000));
  CHECK(beside.result == Result::kRefused);
  CHECK(beside.why == fmt::format("process {} of an earlier call was killed and has not ended yet, "
                                  "so no other is started",
                                  program.Said()));
  debugger->LetGo();
  CHECK(testing::Eventually(
      [&] { return hook->Make(EngineCall::kLoad, kSeven, milliseconds(10000)).done(); }));
}

TEST_CASE("a program inherits no descriptor and no blocked signal") {
  const Program program(
      "cd \"$(dirname \"$0\")\"\n"
      "{ ls /proc/self/fd | wc -w; grep SigBlk /proc/self/status; } > said\n");
  const int open_here = open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  sigset_t mask, before;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &mask, &before);
  CHECK(program.Hook()->Make(EngineCall::kLoad, kSeven, milliseconds(10000)).done());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  close(open_here);
  // stdin, stdout, stderr, and the directory that ls reads.
  CHECK(program.Said() == "4\nSigBlk:\t0000000000000000\n");
}

TEST_CASE("a program follows a replica, and one that fails is tried again") {
  const Program program(
      "cd \"$(dirname \"$0\")\"\n"
      "echo $DELTAWIRE_VERSION >> said\n"
      "test -e fail && rm fail && exit 1\n"
      "test -e \"$DELTAWIRE_DIRECTORY/model.safetensors\"\n");
  EngineRig rig;
  rig.Add(program.Engine());
  rig.Follow();
  rig.Publish();
  REQUIRE(rig.Served());
  std::ofstream(program.dir.path() / "fail").close();
  rig.Publish();
  REQUIRE(rig.Served());
  CHECK(program.Said() == "1\n2\n2\n");
  CHECK(rig.view().failures == 1);
  CHECK(rig.view().updates == 2);
}

}  // namespace deltawire::receiver::engine_exec_test
