// What is committed is wholly one published version, even when a version's number comes again with
// other bytes, when files are changed behind a daemon's back, or when memory goes bad.
// Every case here once ended with wrong weights and a status that said that all was well.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "common/layout/model_dir.h"
#include "tests/support/bad_memory.h"
#include "tests/support/daemons.h"

namespace deltawire::testing::trust_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "m";
const char* const kWeights = "model.safetensors";

fs::path ActiveHalf(SenderProcess& sender) {
  const auto dir = sender.dir() / kModel;
  const auto state = StateReader::Open(dir / ".deltawire.state");
  REQUIRE(state.ok());
  return dir / fmt::format("half-{}.safetensors", state->active());
}

/// The bytes of the data section, with which `file` ends; "" if the file is shorter than that.
std::string DataOf(const fs::path& file, const Layout& layout) {
  const std::string all = ReadText(file);
  return all.size() < layout.total_bytes() ? "" : all.substr(all.size() - layout.total_bytes());
}

std::string ContentOf(Trainer& trainer) {
  return {reinterpret_cast<const char*>(trainer.content().data()), trainer.content().size()};
}

/// A reader that knows nothing of deltawire: it has mapped the file and closed its descriptor.
class PlainReader {
 public:
  explicit PlainReader(const fs::path& file) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    struct stat info {};
    REQUIRE(fstat(fd, &info) == 0);
    size_ = static_cast<size_t>(info.st_size);
    base_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(base_ != MAP_FAILED);
    close(fd);
  }
  ~PlainReader() { munmap(base_, size_); }
  PlainReader(const PlainReader&) = delete;
  PlainReader& operator=(const PlainReader&) = delete;
  bool Is(const std::string& file) const {
    return file.size() == size_ && std::memcmp(base_, file.data(), size_) == 0;
  }

 private:
  void* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

TEST_CASE("a sender that starts anew with the same version number is another history") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  {
    Trainer first(sender.socket(), kModel, 4, 101);
    REQUIRE(first.Publish(1).ok());
    REQUIRE(receiver.WaitCommitted(1));
    REQUIRE(first.Compare(receiver.dir()) == "");
  }
  sender.child().Kill();
  fs::remove_all(sender.dir());
  fs::create_directories(sender.dir());
  sender.Start();
  Trainer second(sender.socket(), kModel, 4, 102);
  REQUIRE(second.Publish(1).status() == absl::OkStatus());
  INFO(ReadText(receiver.log()));
  CHECK(Eventually([&] { return second.Compare(receiver.dir()) == ""; }));
  CHECK(receiver.Status().committed().version() == 1);
  CHECK(receiver.Status().committed().lineage() == sender.Status(kModel).newest().id().lineage());
  CHECK(receiver.Status().committed().root() == sender.Status(kModel).newest().id().root());
}

TEST_CASE("a sender's byte that went bad before the first pull is never committed") {
  ShmDir root;
  SenderProcess sender(root.path(), {"--scrub-bytes-per-s", "0"});
  Trainer trainer(sender.socket(), kModel, 4, 103);
  REQUIRE(trainer.Publish(1).ok());
  Flip(ActiveHalf(sender), trainer.layout(), 300'000);
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel,
                           {"--scrub-bytes-per-s", "0"});
  // Either it is committed, which is wrong, or the pull fails and says why.
  REQUIRE(Eventually([&] {
    const auto s = receiver.Status();
    return s.committed().epoch() != 0 || s.message().find("digest") != std::string::npos;
  }));
  CHECK(receiver.Status().committed().epoch() == 0);
  CHECK_FALSE(fs::exists(receiver.dir() / kWeights));
  REQUIRE(trainer.Publish(2).status() == absl::OkStatus());
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("a base that went bad at the sender makes no wrong weights") {
  ShmDir root;
  SenderProcess sender(root.path(), {"--scrub-bytes-per-s", "0"});
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel,
                           {"--scrub-bytes-per-s", "0"});
  Trainer trainer(sender.socket(), kModel, 4, 104);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  for (uint64_t v = 2; v <= 20; ++v) {
    CAPTURE(v);
    Flip(ActiveHalf(sender), trainer.layout(), 300'000);
    trainer.Step(0.001);
    REQUIRE(trainer.Publish(v).status() == absl::OkStatus());
    REQUIRE(receiver.WaitCommitted(v));
    REQUIRE(trainer.Compare(receiver.dir()) == "");
    REQUIRE(DataOf(ActiveHalf(sender), trainer.layout()) == ContentOf(trainer));
  }
}

TEST_CASE("a plain reader's mapping never changes under it, with one buffer and with two") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel,
                           {"--buffers", buffers, "--on-busy-reader", "copy"});
  Trainer trainer(sender.socket(), kModel, 4, 105);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  const std::string before = ReadText(receiver.dir() / kWeights);
  {
    const PlainReader reader(receiver.dir() / kWeights);
    REQUIRE(reader.Is(before));
    for (uint64_t v = 2; v <= 4; ++v) {
      trainer.Step(0.05);
      REQUIRE(trainer.Publish(v).ok());
      REQUIRE(receiver.WaitCommitted(v));
      CHECK(trainer.Compare(receiver.dir()) == "");
      CHECK(reader.Is(before));
    }
  }
  trainer.Step(0.05);
  REQUIRE(trainer.Publish(5).ok());
  REQUIRE(receiver.WaitCommitted(5));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("with one buffer an update waits for a reader, and the name is there meanwhile") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel, {"--buffers", "1"});
  Trainer trainer(sender.socket(), kModel, 4, 106);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  const std::string before = ReadText(receiver.dir() / kWeights);
  {
    const PlainReader reader(receiver.dir() / kWeights);
    trainer.Step(0.05);
    REQUIRE(trainer.Publish(2).ok());
    // The status names the process that has the file open: this one.
    CHECK(Eventually([&] {
      return receiver.Status().readers().find(std::to_string(getpid())) != std::string::npos;
    }));
    CHECK(receiver.Status().committed().version() == 1);
    CHECK(Eventually([&] { return fs::exists(receiver.dir() / kWeights); }));
    CHECK(reader.Is(before));
  }
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("with two buffers the name is there through a full pull") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel, {"--buffers", "2"});
  Trainer trainer(sender.socket(), kModel, 4, 107);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  std::atomic<bool> done{false};
  std::atomic<int> missing{0};
  std::atomic<int> opened{0};
  std::thread opener([&] {
    while (!done) {
      const int fd = open((receiver.dir() / kWeights).c_str(), O_RDONLY | O_CLOEXEC);
      ++(fd < 0 ? missing : opened);
      if (fd >= 0) close(fd);
    }
  });
  for (uint64_t v = 2; v <= 8; ++v) {
    for (std::byte& b : trainer.content()) b = ~b;  // every chunk is cheaper whole
    REQUIRE(trainer.Publish(v).ok());
    if (!receiver.WaitCommitted(v)) break;
  }
  done = true;
  opener.join();
  CHECK(receiver.Status().committed().version() == 8);
  CHECK(trainer.Compare(receiver.dir()) == "");
  CHECK(missing == 0);
  CHECK(opened > 100);
}

TEST_CASE("side files belong to their version, and stale ones go with it") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  const Layout layout = *Layout::Create({{"a", DType::kBF16, {1024}}});
  TrainerClient client(sender.socket(), kModel);
  const auto publish = [&](uint64_t version, std::vector<SideFile> files, char fill) {
    REQUIRE(client.Register(layout, files).ok());
    auto offload = client.Begin(version);
    REQUIRE(offload.status() == absl::OkStatus());
    const std::string bytes(layout.total_bytes(), fill);
    REQUIRE((*offload)->Write(0, AsBytes(bytes)).ok());
    REQUIRE((*offload)->Ready().ok());
    REQUIRE(client.WaitPublished(version).ok());
  };
  publish(1, {{"config.json", "{\"v\": 1}"}, {"old.json", "old"}}, 'a');
  REQUIRE(receiver.WaitCommitted(1));
  CHECK(ReadText(receiver.dir() / "old.json") == "old");
  // Side files that are registered belong to the version that is published next, so until then the
  // receiver keeps those of version 1, also when the sender restarts.
  REQUIRE(client.Register(layout, {{"config.json", "{\"v\": 2}"}, {"new.json", "new"}}).ok());
  sender.Restart();
  REQUIRE(Eventually([&] { return receiver.Status().attached(); }));
  CHECK(ReadText(receiver.dir() / "config.json") == "{\"v\": 1}");
  publish(2, {{"config.json", "{\"v\": 2}"}, {"new.json", "new"}}, 'b');
  REQUIRE(receiver.WaitCommitted(2));
  CHECK(ReadText(receiver.dir() / "config.json") == "{\"v\": 2}");
  CHECK(ReadText(receiver.dir() / "new.json") == "new");
  CHECK_FALSE(fs::exists(receiver.dir() / "old.json"));
}

TEST_CASE("what is removed or changed by hand under a living receiver is put back") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 108);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  fs::remove(receiver.dir() / kWeights);
  CHECK(Eventually([&] { return trainer.Compare(receiver.dir()) == ""; }));
  fs::remove(receiver.dir() / "config.json");
  const std::string config = "{\"model_type\": \"test\"}";
  CHECK(Eventually([&] { return ReadText(receiver.dir() / "config.json") == config; }));
  std::ofstream(receiver.dir() / "config.json") << "by hand";
  CHECK(Eventually([&] { return ReadText(receiver.dir() / "config.json") == config; }));
  Flip(receiver.dir() / kWeights, trainer.layout(), 300'000);
  CHECK(Eventually([&] { return trainer.Compare(receiver.dir()) == ""; }));
}

TEST_CASE("bytes that changed while a receiver was down are not served under the old name") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel,
                           {"--scrub-bytes-per-s", "0"});
  Trainer trainer(sender.socket(), kModel, 4, 109);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  receiver.child().Kill();
  Flip(receiver.dir() / kWeights, trainer.layout(), 300'000);
  receiver.Start();
  CHECK(Eventually([&] { return trainer.Compare(receiver.dir()) == ""; }));
  CHECK(Eventually([&] { return receiver.Status().committed().version() == 1; }));
}

TEST_CASE("a receiver without its state file takes its own directory up anew") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 110);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  receiver.child().Kill();
  fs::remove(receiver.dir() / ".deltawire.state");
  receiver.Start();
  INFO(ReadText(receiver.log()));
  REQUIRE(receiver.WaitCommitted(1, std::chrono::seconds(10)));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("a scalar that changes every step does not end what a rollback can reach") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 111);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  const std::vector<std::byte> first = trainer.content();
  for (uint64_t v = 2; v <= 3; ++v) {
    trainer.Step();
    // All eight bytes of the fp64 scalar change, so the scalar is cheaper whole than as a delta.
    for (size_t t = 0; t < trainer.layout().size(); ++t) {
      if (trainer.layout().tensor(t).name != "scalar") continue;
      for (size_t i = 0; i < 8; ++i) {
        std::byte& b = trainer.content()[trainer.layout().offset(t) + i];
        b = ~b;
      }
    }
    REQUIRE(trainer.Publish(v).ok());
    REQUIRE(receiver.WaitCommitted(v));
  }
  REQUIRE(sender.Rollback(kModel, 1).status() == absl::OkStatus());
  trainer.content() = first;
  REQUIRE(Eventually([&] { return receiver.Status().committed().epoch() == 2; }));
  CHECK(trainer.Compare(receiver.dir()) == "");
}

TEST_CASE("a model is replaced while a receiver is attached") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), kModel);
  Trainer trainer(sender.socket(), kModel, 4, 112);
  REQUIRE(trainer.Publish(1).ok());
  REQUIRE(receiver.WaitCommitted(1));
  for (int round = 0; round < 5; ++round) {
    const Layout layout =
        *Layout::Create({{"a", DType::kBF16, {1024u + static_cast<uint64_t>(round)}}});
    TrainerClient client(sender.socket(), kModel);
    REQUIRE(client.Register(layout, {{"config.json", "{}"}}, {.replace = true}).status() ==
            absl::OkStatus());
    auto offload = client.Begin(1);
    REQUIRE(offload.status() == absl::OkStatus());
    const std::string bytes(layout.total_bytes(), static_cast<char>('a' + round));
    REQUIRE((*offload)->Write(0, AsBytes(bytes)).ok());
    REQUIRE((*offload)->Ready().ok());
    REQUIRE(client.WaitPublished(1).status() == absl::OkStatus());
    INFO(ReadText(receiver.log()));
    CHECK(Eventually([&] { return DataOf(receiver.dir() / kWeights, layout) == bytes; }));
  }
}

}  // namespace deltawire::testing::trust_test
