// The words of the daemons' logs and of a receiver's status about waits, recoveries and
// directories: a wait is no failure, and each event is said once.
#include <sys/vfs.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <memory>

#include "common/shm/dir_lock.h"
#include "tests/support/daemons.h"

namespace deltawire::testing::words_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "m";
constexpr const char* kMadeAnew =
    "was removed or moved by another process; making it anew and pulling the model whole";

size_t CountIn(const fs::path& log, const std::string& text) {
  const std::string all = ReadText(log);
  size_t count = 0;
  for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++count;
  return count;
}

bool Listens(const SenderProcess& sender) {
  return Eventually([&] { return CountIn(sender.log(), "trainers at") > 0; });
}

/// Stops `child` meanwhile, or it could make files in the directory that is being removed.
void RemoveUnder(const cli::ChildProcess& child, const fs::path& dir) {
  child.Signal(SIGSTOP);
  fs::remove_all(dir);
  child.Signal(SIGCONT);
}

bool IsInMemory(const fs::path& dir) {
  constexpr long kTmpfs = 0x01021994;
  struct statfs at;
  REQUIRE(::statfs(dir.c_str(), &at) == 0);
  return at.f_type == kTmpfs;
}

}  // namespace

TEST_CASE("waiting for a first version is no failure, and attaching is said") {
  ShmDir root;
  SenderProcess sender(root.path());
  REQUIRE(Listens(sender));
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(Eventually([&] { return receiver.Status().phase() == "waiting for version"; }));
  CHECK(receiver.Status().message() ==
        fmt::format("waiting for a version: sender {}: no model \"m\" is registered with this "
                    "sender (it has: none yet)",
                    sender.control()));
  const auto sync = receiver.Sync();
  CHECK(MessageOf(sync.status()).find("model \"m\": waiting for a version") !=
        std::string_view::npos);
  Trainer trainer(sender.socket(), kModel, 1, 1);
  REQUIRE_FALSE(trainer.TryPublish(1, {0}).ok());  // registers the model, and publishes nothing
  const std::string nothing = fmt::format("sender {} has published nothing yet", sender.control());
  REQUIRE(Eventually([&] { return receiver.Status().message() == nothing; }));
  CHECK(receiver.Status().phase() == "waiting for version");
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  REQUIRE(Eventually([&] { return receiver.Status().phase() == "idle"; }));
  const std::string attached = fmt::format("model m: attached to sender {}", sender.control());
  CHECK(CountIn(receiver.log(), attached) == 1);
  CHECK(CountIn(receiver.log(), "waiting for a version") == 1);
  CHECK(CountIn(receiver.log(), " warning ") == 0);
  CHECK(CountIn(receiver.log(), " error ") == 0);

  sender.Restart();
  REQUIRE(Eventually([&] { return CountIn(receiver.log(), attached) == 2; }));
  CHECK(CountIn(receiver.log(), "the connection to sender") == 1);
  REQUIRE(Eventually([&] { return receiver.Status().phase() == "idle"; }));
}

TEST_CASE("a new lineage is said when it is followed") {
  ShmDir root;
  SenderProcess sender(root.path());
  auto trainer = std::make_unique<Trainer>(sender.socket(), kModel, 1, 2);
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(trainer->Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  CHECK(CountIn(receiver.log(), "new lineage") == 0);
  sender.child().Kill();
  fs::remove_all(sender.dir());
  fs::create_directories(sender.dir());
  sender.Start();
  REQUIRE(Listens(sender));
  // A sender that has lost the model is worth a warning, and is waited for all the same.
  REQUIRE(Eventually([&] { return receiver.Status().phase() == "waiting for version"; }));
  CHECK(CountIn(receiver.log(), " warning deltawire-receiver: model m: waiting for a version") ==
        1);
  trainer = std::make_unique<Trainer>(sender.socket(), kModel, 1, 3);
  REQUIRE(trainer->Publish(1).ok());
  REQUIRE(Eventually([&] { return trainer->Compare(receiver.dir()) == ""; }));
  CHECK(CountIn(receiver.log(), "model m: the sender has begun a new lineage, ") == 1);
}

TEST_CASE("a directory that is removed under a running receiver is made anew, and said once") {
  ShmDir root;
  SenderProcess sender(root.path());
  const std::string buffers = GENERATE("1", "2");
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel, {"--buffers", buffers});
  Trainer trainer(sender.socket(), kModel, 1, 4);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  RemoveUnder(receiver.child(), receiver.dir());
  REQUIRE(Eventually([&] { return trainer.Compare(receiver.dir()) == ""; }));
  // The file and the status are there a moment before the line.
  REQUIRE(Eventually([&] { return CountIn(receiver.log(), "version 1 committed") == 2; }));
  REQUIRE(receiver.WaitCommitted(1));
  CHECK(CountIn(receiver.log(), kMadeAnew) == 1);
  // It is the receiver's own directory again: locked, updated, and taken up after a restart.
  CHECK(DirLock::Acquire(receiver.dir()).status().code() == StatusCode::kAlreadyExists);
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(trainer.Compare(receiver.dir()) == "");
  CHECK(receiver.Status().last_pull().chunks_delta() > 0);
  receiver.Restart();
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(CountIn(receiver.log(), "taken up at version 2") == 1);
}

TEST_CASE("a directory that another process has taken meanwhile is named once, until it is free") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 1, 5);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  receiver.child().Signal(SIGSTOP);
  fs::remove_all(receiver.dir());
  const std::string owned = fmt::format("is owned by process {}", ::getpid());
  {
    const auto taken = DirLock::Acquire(receiver.dir());
    receiver.child().Signal(SIGCONT);
    REQUIRE(taken.ok());
    REQUIRE(
        Eventually([&] { return receiver.Status().message().find(owned) != std::string::npos; }));
    CHECK(receiver.Status().phase() == "failed");
    CHECK(receiver.Status().committed().version() == 0);
  }
  REQUIRE(Eventually([&] { return trainer.Compare(receiver.dir()) == ""; }));
  CHECK(CountIn(receiver.log(), owned) == 1);
}

TEST_CASE("a data directory on a disk is said once") {
  ShmDir shm;
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path() / "words_test_data";
  const std::shared_ptr<void> removed(nullptr, [&](void*) { fs::remove_all(beside); });
  for (const fs::path& root : {shm.path(), beside}) {
    fs::create_directories(root);
    const size_t want = IsInMemory(root) ? 0 : 1;
    CAPTURE(root, want);
    SenderProcess sender(root);
    REQUIRE(Listens(sender));
    CHECK(CountIn(sender.log(), "sender is on a disk, so each version is written to that disk") ==
          want);
    ReceiverProcess receiver(root, "r", sender.control(), kModel,
                             {"--model", "second", "--data-dir", (root / "data").string()});
    REQUIRE(Eventually([&] { return CountIn(receiver.log(), "kernels") > 0; }));
    CHECK(CountIn(receiver.log(), "r is on a disk, ") == want);
    CHECK(CountIn(receiver.log(), "second is on a disk, ") == want);
  }
}

}  // namespace deltawire::testing::words_test
