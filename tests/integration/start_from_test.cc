// A new receiver takes its first bytes from a model directory, and fetches only what differs; and
// directories of others that hang.
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <memory>

#include "tests/support/daemons.h"

namespace deltawire::testing::start_from_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "m";

/// A directory as somebody else's: the weights that `receiver` has committed, and nothing more.
fs::path CopyOf(const ReceiverProcess& receiver, const fs::path& to) {
  fs::create_directories(to);
  fs::copy_file(receiver.dir() / "model.safetensors", to / "model.safetensors");
  return to;
}

bool Has(const ReceiverProcess& receiver, const std::string& text) {
  return ReadText(receiver.log()).find(text) != std::string::npos;
}

/// Changes the last byte of the weights.
void Spoil(const fs::path& directory) {
  std::fstream file(directory / "model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get() ^ 0x40);
  file.seekp(-1, std::ios::end);
  file.put(last);
}

/// A file system whose server never answers: whoever looks into it hangs, as with NFS when its
/// server is gone. Ends for all with this object.
class Hung {
 public:
  explicit Hung(fs::path at) : at_(std::move(at)), fd_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    fs::create_directories(at_);
    if (fd_ < 0) return;
    const std::string options =
        fmt::format("fd={},rootmode=40000,user_id={},group_id={}", fd_, getuid(), getgid());
    mounted_ = ::mount("hung", at_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
  }
  ~Hung() {
    if (fd_ >= 0) ::close(fd_);
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const fs::path& path() const { return at_; }

 private:
  const fs::path at_;
  const int fd_;
  bool mounted_ = false;
};

}  // namespace

TEST_CASE("a directory that hangs holds up neither a receiver's end nor its other work") {
  ShmDir root;
  const Hung hung(root.path() / "hung");
  if (!hung.mounted()) {
    WARN("only root can mount a file system that hangs, where there is /dev/fuse");
    return;
  }
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 1, 6);
  Trainer other(sender.socket(), "other", 1, 7);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(other.Publish(1).ok());
  std::unique_ptr<ReceiverProcess> receiver;
  SECTION("of first bytes: other models are pulled") {
    const fs::path directory = root.path() / "of-other";
    receiver = std::make_unique<ReceiverProcess>(
        root.path(), "r", sender.control(), kModel,
        std::vector<std::string>{"--model", fmt::format("other={}", directory.native())},
        hung.path() / "model");
    REQUIRE(Eventually([&] { return other.Compare(directory) == ""; }));
    CHECK(Eventually([&] { return Has(*receiver, "taking its first bytes from"); }));
    CHECK(receiver->Status().committed().version() == 0);
  }
  SECTION("of an engine: versions are committed") {
    receiver = std::make_unique<ReceiverProcess>(
        root.path(), "r", sender.control(), kModel,
        std::vector<std::string>{"--engine",
                                 fmt::format("disk-delta={}", (hung.path() / "deltas").native())});
    REQUIRE(receiver->WaitCommitted(1));
    CHECK(Eventually([&] { return Has(*receiver, "load of version 1"); }));
  }
  receiver->child().Signal(SIGTERM);
  CHECK(receiver->child().Wait(std::chrono::seconds(30)) == 0);
}

TEST_CASE("a new receiver takes its first bytes from a directory and fetches what differs") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 8, 5);
  REQUIRE(trainer.Publish(1).status() == absl::OkStatus());
  ReceiverProcess first(root.path(), "first", sender.control(), kModel);
  REQUIRE(first.WaitCommitted(1));
  const uint64_t whole = first.Status().last_pull().payload_bytes();
  CHECK(whole > 8'000'000);
  const fs::path same = CopyOf(first, root.path() / "same");
  const fs::path spoilt = CopyOf(first, root.path() / "spoilt");
  Spoil(spoilt);

  const auto start = [&](const std::string& id, const fs::path& from) {
    return std::make_unique<ReceiverProcess>(root.path(), id, sender.control(), kModel,
                                             std::vector<std::string>{}, from);
  };
  SECTION("all of it") {
    const auto receiver = start("r", same);
    REQUIRE(receiver->WaitCommitted(1));
    CHECK(receiver->Status().last_pull().payload_bytes() == 0);
    CHECK(trainer.Compare(receiver->dir()) == "");
    // It follows as any other.
    trainer.Step();
    REQUIRE(trainer.Publish(2).status() == absl::OkStatus());
    REQUIRE(receiver->WaitCommitted(2));
    CHECK(receiver->Status().last_pull().chunks_full() == 0);
    CHECK(trainer.Compare(receiver->dir()) == "");
  }
  SECTION("all but a chunk with another byte") {
    const auto receiver = start("r", spoilt);
    REQUIRE(receiver->WaitCommitted(1));
    CHECK(receiver->Status().last_pull().chunks_full() == 1);
    CHECK(receiver->Status().last_pull().payload_bytes() < whole);
    CHECK(trainer.Compare(receiver->dir()) == "");
  }
  SECTION("nothing, where there is no model") {
    const auto receiver = start("r", root.path() / "nowhere");
    REQUIRE(receiver->WaitCommitted(1));
    CHECK(receiver->Status().last_pull().payload_bytes() == whole);
    CHECK(trainer.Compare(receiver->dir()) == "");
    CHECK(Has(*receiver, "nothing was taken from "));
  }
  SECTION("what a receiver left behind is taken up as it is") {
    auto receiver = start("r", same);
    REQUIRE(receiver->WaitCommitted(1));
    receiver->child().Kill();
    receiver = start("r", spoilt);
    REQUIRE(receiver->WaitCommitted(1));
    CHECK(receiver->Status().last_pull().chunks_full() == 0);
    CHECK(trainer.Compare(receiver->dir()) == "");
  }
}

}  // namespace deltawire::testing::start_from_test
