#include "cli/command.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <vector>

#include "cli/child_process.h"
#include "cli/connect.h"
#include "tests/support/temp_dir.h"

namespace deltawire::cli::command_test {
namespace {

int RunTool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "deltawire");
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  return Main(static_cast<int>(argv.size()), argv.data());
}

// A loopback address where nobody listens.
std::string DeadAddress() {
  static const auto port = ReservePort();
  REQUIRE(port.ok());
  return "127.0.0.1:" + std::to_string(port->number);
}

TEST_CASE("help and versions succeed") {
  CHECK(RunTool({"--help"}) == 0);
  CHECK(RunTool({"--version"}) == 0);
  CHECK(RunTool({"version"}) == 0);
  for (const char* command :
       {"publish", "status", "sync", "watch", "verify", "inspect", "diff", "rollback", "unregister",
        "pause", "resume", "plan", "convert", "demo"}) {
    CAPTURE(command);
    CHECK(RunTool({command, "--help"}) == 0);
  }
}

TEST_CASE("wrong usage is exit code 2") {
  const TempDir dir;
  CHECK(RunTool({}) == 2);
  CHECK(RunTool({"frobnicate"}) == 2);
  CHECK(RunTool({"status", "--frobnicate"}) == 2);
  CHECK(RunTool({"rollback"}) == 2);
  CHECK(RunTool({"rollback", "--version", "0"}) == 2);
  CHECK(RunTool({"unregister"}) == 2);
  CHECK(RunTool({"inspect", (dir.path() / "none").string()}) == 2);
  CHECK(RunTool({"status", "--sender", "no-port"}) == 2);
  CHECK(RunTool({"publish", dir.path().string(), "--watch", "--version", "3"}) == 2);
  CHECK(RunTool({"demo", "--size", "huge"}) == 2);
  CHECK(RunTool({"publish", dir.path().string(), "--version", "3", "--socket=~/s.sock"}) == 2);
  CHECK(RunTool({"sync", "--id", "a"}) == 2);
  const std::string from = dir.path().string(), to = from + "/to";
  CHECK(RunTool({"convert", from, to, "--parallel", "tp=1", "--max-shard-size", "1KB"}) == 2);
  CHECK(RunTool({"convert", from, to, "--parallel", "tp=1", "--unmarked"}) == 2);
  std::ofstream(dir.path() / "parallel.json") << "{}";
  CHECK(RunTool({"convert", from, to, "--round"}) == 2);
  CHECK(RunTool({"convert", from, to, "--core-version", "0.19"}) == 2);
}

TEST_CASE("every command that asks daemons over TCP takes --credentials") {
  const TempDir dir;
  const std::string file = dir.path() / "credentials.toml", dead = DeadAddress();
  std::ofstream(file) << "";
  using Arguments = std::vector<std::string>;
  for (Arguments arguments : {Arguments{"status", "--sender", dead},
                              {"watch", "--sender", dead},
                              {"rollback", "--version", "1", "--sender", dead},
                              {"unregister", "m", "--sender", dead},
                              {"sync", "--receiver", dead},
                              {"wait", "--version", "1", "--receiver", dead},
                              {"wait", "--all", "--sender", dead},
                              {"verify", "--receiver", dead},
                              {"pause", "--receiver", dead},
                              {"resume", "--receiver", dead},
                              {"doctor", "--sender", dead}}) {
    CAPTURE(arguments[0]);
    arguments.insert(arguments.end(), {"--credentials", file});
    CHECK(RunTool(arguments) == (arguments[0] == "doctor" ? 1 : 3));
  }
  UseCredentials("");
}

TEST_CASE("an option that only another one gives a meaning is refused without that one") {
  const TempDir dir;
  const std::string dead = DeadAddress(), at = dir.path().string();
  CHECK(RunTool({"publish", at, "--version", "3", "--again"}) == 2);
  CHECK(RunTool({"publish", at, "--version", "3", "--inside", "actor"}) == 2);
  CHECK(RunTool({"status", "--interval", "2", "--sender", dead, "--receiver", dead}) == 2);
  CHECK(RunTool({"plan", "--hf", at, "--tensors"}) == 2);
  CHECK(RunTool({"sync", "--sender", dead}) == 2);
  CHECK(RunTool({"sync", "--via-sender", "--receiver", dead}) == 2);
  CHECK(RunTool({"sync", "--group", "g", "--sender", dead, "--receiver", dead}) == 2);
}

TEST_CASE("a wait for all is of receivers, and only it counts them") {
  CHECK(RunTool({"wait", "--at-least", "2"}) == 2);
  CHECK(RunTool({"wait", "--all", "--at-least", "0"}) == 2);
}

TEST_CASE("a wait for a history or for bytes takes the digits that publish prints") {
  const std::string dead = DeadAddress();
  for (const char* option : {"--lineage", "--root"}) {
    for (const char* text : {"", "xyz", "0x12", "693098ee ", "123456789012345678901234567890123"}) {
      CAPTURE(option, text);
      CHECK(RunTool({"wait", "--version", "1", option, text, "--receiver", dead}) == 2);
    }
    CHECK(RunTool({"wait", "--version", "1", option, "693098EE", "--receiver", dead}) != 2);
  }
}

TEST_CASE("a wait takes the address of the daemon that it asks, and refuses the other one's") {
  const std::string dead = DeadAddress();
  CHECK(RunTool({"wait", "--version", "1", "--sender", dead}) == 2);
  CHECK(RunTool({"wait", "--served", "--sender", dead}) == 2);
  CHECK(RunTool({"wait", "--version", "1", "--receiver", dead, "--sender", dead}) == 2);
  CHECK(RunTool({"wait", "--all", "--receiver", dead}) == 2);
  CHECK(RunTool({"wait", "--all", "--sender", dead, "--receiver", dead}) == 2);
  // Both daemons are away, so what is taken ends with the code of an unreachable one.
  CHECK(RunTool({"wait", "--version", "1", "--receiver", dead}) == 3);
  CHECK(RunTool({"wait", "--all", "--sender", dead}) == 3);
}

TEST_CASE("a daemon that is not there is exit code 3") {
  const TempDir dir;
  const std::string dead = DeadAddress();
  CHECK(RunTool({"status", "--sender", dead, "--receiver", dead}) == 3);
  CHECK(RunTool({"sync", "--receiver", dead}) == 3);
  CHECK(RunTool({"sync", "--via-sender", "--sender", dead}) == 3);
  CHECK(RunTool({"verify", "--receiver", dead}) == 3);
  CHECK(RunTool({"pause", "--receiver", dead}) == 3);
  CHECK(RunTool({"rollback", "--version", "3", "--sender", dead}) == 3);
  CHECK(RunTool({"watch", "--sender", dead}) == 3);
  CHECK(RunTool({"publish", dir.path().string(), "--version", "3", "--socket",
                 (dir.path() / "trainer.sock").string()}) == 3);
}

TEST_CASE("a child's end is seen with its status, and its output kept") {
  const TempDir dir;
  auto child = ChildProcess::Spawn("sh", {"sh", "-c", "echo first; echo last >&2; exit 7"},
                                   dir.path() / "log");
  REQUIRE(child.ok());
  CHECK((*child)->Wait(std::chrono::seconds(30)) == 7);
  CHECK_FALSE((*child)->CheckRunning().ok());
  CHECK((*child)->LogTail(1) == "    last\n");
  CHECK((*child)->LogTail(9) == "    first\n    last\n");
}

TEST_CASE("a child that does not heed SIGTERM is killed") {
  const TempDir dir;
  auto child = ChildProcess::Spawn(
      "sh", {"sh", "-c", "trap '' TERM; echo up; while :; do read x; done </dev/zero"},
      dir.path() / "log");
  REQUIRE(child.ok());
  while ((*child)->LogTail(1).empty()) REQUIRE((*child)->Running());
  (*child)->Stop(std::chrono::milliseconds(1));
  CHECK((*child)->Wait(std::chrono::milliseconds(0)) == 128 + 9);
}

}  // namespace
}  // namespace deltawire::cli::command_test
