// Directories and files that others made, where the daemons are told to keep theirs: refused at the
// start, and not a byte, mode or time of them changes.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>

#include "tests/support/daemons.h"
#include "tests/support/snapshot.h"

namespace deltawire::testing::stranger_dir_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "m";

void Write(const fs::path& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

/// A HF directory, as a trainer leaves it under umask 002.
void MakeCheckpoint(const fs::path& dir) {
  fs::create_directories(dir);
  Write(dir / "model.safetensors", "a stranger's weights", 0644);
  Write(dir / "config.json", "{}", 0644);
  REQUIRE(::chmod(dir.c_str(), 0775) == 0);
}

/// How the receiver ends that is to keep its model in `dir`, and its log.
int StartReceiver(const std::string& dir, const fs::path& log) {
  const auto child = Spawn("deltawire-receiver",
                           {"--sender", fmt::format("127.0.0.1:{}", FreePort()), "--model",
                            fmt::format("{}={}", kModel, dir), "--control-listen",
                            fmt::format("127.0.0.1:{}", FreePort())},
                           log);
  return child->Wait(std::chrono::seconds(20));
}

TEST_CASE("a receiver leaves a directory that is not its own as it is") {
  ShmDir root;
  const fs::path dir = root.path() / "there";
  std::string named = dir.native(), why;
  SECTION("a checkpoint") {
    MakeCheckpoint(dir);
    why = "exists and is not a receiver's";
  }
  SECTION("a checkpoint that an earlier version has locked") {
    MakeCheckpoint(dir);
    Write(dir / ".deltawire.lock", "", 0600);
    why = "exists and is not a receiver's";
  }
  SECTION("a directory with other files") {
    fs::create_directories(dir / "side");
    Write(dir / "notes.txt", "mine", 0664);
    why = "which deltawire did not write";
  }
  SECTION("a directory of many users, such as /dev/shm") {
    fs::create_directories(dir);
    Write(dir / "another-users", "x", 0644);
    REQUIRE(::chmod(dir.c_str(), 01777) == 0);
    why = "has mode 1777";
  }
  SECTION("the same, empty") {
    fs::create_directories(dir);
    REQUIRE(::chmod(dir.c_str(), 01777) == 0);
    why = "has mode 1777";
  }
  SECTION("a link to an empty directory") {
    fs::create_directories(root.path() / "target");
    fs::create_symlink(root.path() / "target", dir);
    named += GENERATE(as<std::string>(), "", "/");
    why = "is a link";
  }
  SECTION("a file") {
    Write(dir, "mine", 0644);
    why = "is not a directory";
  }
  const auto before = SnapshotOf(root.path());
  const fs::path log = root.path().native() + ".log";
  CHECK(StartReceiver(named, log) == 1);
  const std::string said = ReadText(log);
  fs::remove(log);
  CAPTURE(said);
  CHECK(said.find(dir.native()) != std::string::npos);
  CHECK(said.find(why) != std::string::npos);
  CHECK(SnapshotOf(root.path()) == before);
}

TEST_CASE("a sender leaves a directory with a model's name as it is") {
  ShmDir root;
  SenderProcess sender(root.path());
  fs::create_directories(sender.dir() / kModel / "side");
  Write(sender.dir() / kModel / "side" / "mine", "x", 0644);
  Write(sender.dir() / kModel / "half-0.safetensors", "x", 0664);
  REQUIRE(::chmod((sender.dir() / kModel).c_str(), 0775) == 0);
  const auto before = SnapshotOf(sender.dir() / kModel);
  Trainer trainer(sender.socket(), kModel, 1, 1);
  const Status refused = trainer.TryPublish(1).status();
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(std::string(MessageOf(refused)).find("which deltawire did not write") != std::string::npos);
  CHECK(SnapshotOf(sender.dir() / kModel) == before);
  sender.Restart();
  CHECK(Trainer(sender.socket(), "another", 1, 1).Publish(1).ok());
  CHECK(SnapshotOf(sender.dir() / kModel) == before);
}

TEST_CASE("a sender removes no file that lies where its socket is to be") {
  ShmDir root;
  const fs::path data = root.path() / "data", file = data / "trainer.sock";
  fs::create_directory(data);
  Write(file, "mine", 0644);
  const std::string before = DescribeFile(file);
  const fs::path log = root.path() / "log";
  const auto child = Spawn(
      "deltawire-sender",
      {"--data-dir", data.string(), "--control-listen", fmt::format("127.0.0.1:{}", FreePort()),
       "--bulk-listen", fmt::format("127.0.0.1:{}", FreePort())},
      log);
  CHECK(child->Wait(std::chrono::seconds(20)) == 1);
  CHECK(ReadText(log).find(file.native() + " is not a socket of this user's") != std::string::npos);
  CHECK(DescribeFile(file) == before);
}

TEST_CASE("a receiver whose directory gives way to another's waits, and comes back") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel,
                           {"--buffers", GENERATE("1", "2")});
  Trainer trainer(sender.socket(), kModel, 1, 6);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  const fs::path away = root.path() / "away", target = root.path() / "target";
  const auto says = [&](const std::string& text) {
    return Eventually([&] { return receiver.Status().message().find(text) != std::string::npos; });
  };
  receiver.child().Signal(SIGSTOP);
  fs::rename(receiver.dir(), away);
  std::string why;
  SECTION("a link to where it is now") {
    fs::create_symlink(away, receiver.dir());
    why = "is a link";
  }
  SECTION("a link to another's directory") {
    MakeCheckpoint(target);
    fs::create_symlink(target, receiver.dir());
    why = "is a link";
  }
  SECTION("a file") {
    Write(receiver.dir(), "mine", 0644);
    why = "is not a directory";
  }
  SECTION("another's directory") {
    MakeCheckpoint(receiver.dir());
    why = "which deltawire did not write";
  }
  const auto in_its_place = [&] {
    auto all = SnapshotOf(fs::is_directory(receiver.dir()) ? receiver.dir() : root.path());
    std::erase_if(all,
                  [](const auto& file) { return file.first.find("log") != std::string::npos; });
    return all;
  };
  const std::string place = DescribeFile(receiver.dir());
  std::map<std::string, std::string> before;
  if (fs::is_directory(receiver.dir()) && !fs::equivalent(receiver.dir(), away)) {
    before = in_its_place();
  }
  receiver.child().Signal(SIGCONT);
  REQUIRE(says(why));
  CHECK(receiver.Status().committed().version() == 0);
  CHECK(DescribeFile(receiver.dir()) == place);
  if (!before.empty()) CHECK(in_its_place() == before);
  // The directory comes back. Its versions go on.
  fs::remove_all(receiver.dir());
  fs::rename(away, receiver.dir());
  REQUIRE(receiver.WaitCommitted(1));
  REQUIRE(Eventually([&] { return trainer.Compare(receiver.dir()) == ""; }));
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

}  // namespace
}  // namespace deltawire::testing::stranger_dir_test
