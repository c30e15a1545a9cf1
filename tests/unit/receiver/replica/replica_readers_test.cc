// A replica whose files others read, hold or remove: whom it waits for, and which bytes and names
// they see meanwhile. Its senders are in memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "common/shm/delta_file.h"
#include "receiver/buffer/buffer_names.h"
#include "receiver/replica/replica.h"
#include "tests/support/denied_leases.h"
#include "tests/support/next_commit.h"
#include "tests/unit/receiver/replica/replica_rig.h"

namespace deltawire::receiver::replica_readers_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A reader that has the weights mapped, but no descriptor of them open.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) {
    const int fd = ::open(file.c_str(), O_RDONLY);
    REQUIRE(fd >= 0);
    size_ = std::filesystem::file_size(file);
    at_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(at_ != MAP_FAILED);
    ::close(fd);
  }
  ~Reader() { ::munmap(at_, size_); }
  std::string bytes() const { return {static_cast<const char*>(at_), size_}; }

 private:
  void* at_ = nullptr;
  size_t size_ = 0;
};

TEST_CASE("with one file an update waits for a reader, and is told of in the status") {
  ReplicaRig s;
  if (!s.StartsWithOneFile()) return;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  const Identity before = s.committed();
  auto reader = std::make_unique<Reader>(s.dir.path() / "model.safetensors");
  const std::string read = reader->bytes();
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks);
  REQUIRE(
      Eventually([&] { return s.replica->status().phase == ReceiverPhase::kWaitingForReader; }));
  CHECK_FALSE(s.replica->status().readers.empty());
  CHECK(s.committed() == before);
  CHECK(reader->bytes() == read);
  CHECK(testing::PauseOf(*s.replica, kStays).ok());  // must not wait for the reader
  s.replica->SetPaused(false);
  reader.reset();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(s.replica->status().worst_reader_wait_seconds > 0);
}

TEST_CASE("a wait for a reader that ends with an error is not told of any longer") {
  ReplicaRig s;
  if (!s.StartsWithOneFile()) return;
  const Reader reader(s.dir.path() / "model.safetensors");
  s.agent().Publish({1, 2}, FakeAgent::Make(s.agent().layout(), 2));
  REQUIRE(
      Eventually([&] { return s.replica->status().phase == ReceiverPhase::kWaitingForReader; }));
  // The weights cannot be renamed to a name that a directory has.
  for (const char* name : kHidden) {
    std::error_code taken;
    REQUIRE(
        Eventually([&] { return std::filesystem::create_directory(s.dir.path() / name, taken); }));
  }
  const auto failures = [&] { return s.replica->status().pull_failures; };
  REQUIRE(Eventually([&] { return failures() > 0; }));
  const double waited = s.replica->status().worst_reader_wait_seconds;
  const uint64_t before = failures();
  REQUIRE(Eventually([&] { return failures() > before; }));
  CHECK(s.replica->status().worst_reader_wait_seconds == waited);
}

TEST_CASE("a wait for an engine is told of and counted, and a pause ends it") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  ReplicaRig s;
  FakeAgent::Chunks chunks = s.Begin({.buffers = buffers});
  REQUIRE(Eventually([&] { return s.replica->gate().Hold(s.agent().identity(), "engine e"); }));
  const auto waits = [&] {
    const ReplicaStatus status = s.replica->status();
    return status.phase == ReceiverPhase::kWaitingForReader && status.readers == "engine e";
  };
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks);
  REQUIRE(Eventually(waits));
  CHECK(testing::PauseOf(*s.replica, kStays).ok());  // must not wait for the engine
  CHECK(s.replica->status().readers.empty());
  CHECK(s.replica->status().phase == ReceiverPhase::kPaused);
  const double first = s.replica->status().reader_wait_seconds;
  CHECK(first > 0);
  CHECK(s.replica->status().worst_reader_wait_seconds == first);
  s.replica->SetPaused(false);
  REQUIRE(Eventually(waits));
  s.replica->gate().Release("engine e");
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(s.replica->status().readers.empty());
  CHECK(s.replica->status().reader_wait_seconds > first);
}

TEST_CASE("what an engine holds beyond its time is taken from it") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  ReplicaRig s;
  FakeAgent::Chunks chunks = s.Begin({.buffers = buffers});
  const auto until = SteadyClock::now() + milliseconds(150);
  REQUIRE(
      Eventually([&] { return s.replica->gate().Hold(s.agent().identity(), "engine e", until); }));
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks);
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(SteadyClock::now() >= until);
  CHECK(s.Holds(chunks));
  s.replica->gate().Release("engine e");  // late, and of no effect on others
}

TEST_CASE("no engine takes the directory while a commit waits for others that have it") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  ReplicaRig s;
  FakeAgent::Chunks chunks = s.Begin({.buffers = buffers});
  const Identity before = s.agent().identity();
  REQUIRE(Eventually([&] { return s.replica->gate().Hold(before, "engine a"); }));
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks);
  REQUIRE(
      Eventually([&] { return s.replica->status().phase == ReceiverPhase::kWaitingForReader; }));
  CHECK_FALSE(s.replica->gate().Hold(before, "engine b"));
  CHECK_FALSE(s.replica->gate().Hold(before, "engine a"));
  // A wait that ends without a commit leaves nothing behind.
  CHECK(testing::PauseOf(*s.replica, kStays).ok());
  CHECK(s.replica->gate().Hold(before, "engine b"));
  s.replica->SetPaused(false);
  REQUIRE(
      Eventually([&] { return s.replica->status().phase == ReceiverPhase::kWaitingForReader; }));
  CHECK_FALSE(s.replica->gate().Hold(before, "engine c"));
  s.replica->gate().Release("engine a");
  CHECK_FALSE(s.replica->gate().Hold(before, "engine a"));
  s.replica->gate().Release("engine b");
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(Eventually([&] { return s.replica->gate().Hold(s.agent().identity(), "engine c"); }));
}

TEST_CASE("no engine that retries out of step is let in while a commit waits for others") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  constexpr milliseconds kHold{400};  // twice --engine-timeout-ms
  ReplicaRig s;
  FakeAgent::Chunks chunks = s.Begin({.buffers = buffers});
  const Identity before = s.agent().identity();
  std::atomic<bool> stop{false}, waits{false};
  std::atomic<int> held{0}, let_in{0};
  std::vector<std::thread> engines;
  for (int i = 0; i < 3; ++i) {
    engines.emplace_back([&, i] {
      const std::string name = fmt::format("engine {}", i);
      std::this_thread::sleep_for(kHold * i / 3);  // out of step
      while (!stop) {
        const auto until = SteadyClock::now() + kHold;
        const bool late = waits;
        if (s.replica->gate().Hold(before, name, until)) {
          ++held;
          if (late) ++let_in;
          std::this_thread::sleep_until(until - milliseconds(50));
          s.replica->gate().Release(name);
        } else {
          std::this_thread::sleep_for(milliseconds(5));
        }
      }
    });
  }
  CHECK(Eventually([&] { return held >= 3; }));
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks);
  // The commit does not wait if it meets a moment without a hold.
  CHECK(Eventually([&] {
    return s.replica->status().phase == ReceiverPhase::kWaitingForReader ||
           s.committed() == s.agent().identity();
  }));
  waits = true;
  CHECK(s.Reaches(s.agent().identity()));
  stop = true;
  for (std::thread& engine : engines) engine.join();
  CHECK(let_in == 0);
}

TEST_CASE("a pause while the only file is half updated waits until the weights are there again") {
  ReplicaRig s;
  if (!s.StartsWithOneFile()) return;
  const auto second = s.StopHalfWay();
  CHECK(testing::PauseOf(*s.replica, [] { return true; }).code() == StatusCode::kCancelled);
  std::atomic<bool> paused{false};
  Status answered;
  std::thread operator_calls([&] {
    answered = testing::PauseOf(*s.replica, kStays);
    paused = true;
  });
  const uint64_t failures = s.replica->status().pull_failures;
  CHECK(Eventually([&] { return s.replica->status().pull_failures > failures; }));
  CHECK_FALSE(paused);
  s.agent().Set([](FakeAgent::Faults& f) { f.leave_out.clear(); });
  CHECK(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(second));
  operator_calls.join();
  CHECK(answered == absl::OkStatus());
  // From here on it is paused.
  const int opens = s.agent().counts().opens;
  s.agent().Publish({1, 3}, FakeAgent::Make(s.agent().layout(), 3));
  REQUIRE(Eventually([&] { return s.replica->status().newest.id.version == 3; }));
  REQUIRE(Eventually([&] { return s.replica->status().phase == ReceiverPhase::kPaused; }));
  CHECK(s.agent().counts().opens == opens);
  CHECK(s.Holds(second));
}

TEST_CASE("a pause soon after a restart in the middle of an update waits for the weights, too") {
  ReplicaRig s;
  if (!s.StartsWithOneFile()) return;
  const auto second = s.StopHalfWay();
  s.replica.reset();
  s.Start({.buffers = 1});
  CHECK(testing::PauseOf(*s.replica, [] { return true; }).code() == StatusCode::kCancelled);
  s.agent().Set([](FakeAgent::Faults& f) { f.leave_out.clear(); });
  CHECK(testing::PauseOf(*s.replica, kStays) == absl::OkStatus());
  CHECK(s.committed() == s.agent().identity());
  CHECK(s.Holds(second));
}

TEST_CASE("a version whose commit fails behind the weights' name is told of all the same") {
  ReplicaRig s;
  FakeAgent::Chunks chunks = s.Begin({}, 100);
  const auto first = testing::NextCommit(*s.replica, 0, kStays);
  REQUIRE(first);
  const auto list = s.dir.path() / ".deltawire.receiver" / "installed";
  std::filesystem::remove(list);
  std::filesystem::create_directories(list / "in the way");
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks, 1, 200);
  const auto begin = SteadyClock::now();
  const auto second = testing::NextCommit(*s.replica, first->serial,
                                          [&] { return SteadyClock::now() > begin + seconds(20); });
  REQUIRE(second);
  CHECK(second->id == s.agent().identity());
  CHECK(s.Holds(chunks));
  CHECK(s.Read("config.json") == "{\"side\": 200}");
  // The check says what is wrong, and mends it when it can.
  CHECK(Eventually([&] { return s.replica->status().phase == ReceiverPhase::kFailed; }));
  std::filesystem::remove_all(list);
  CHECK(Eventually([&] { return s.replica->status().phase == ReceiverPhase::kIdle; }));
  CHECK(std::filesystem::is_regular_file(list));
  CHECK(s.committed() == s.agent().identity());
}

TEST_CASE("two files without leases: the delta of each version is kept, however many there were") {
  const testing::DeniedLeases denied(EINVAL);
  ReplicaRig s;
  FakeAgent::Chunks chunks =
      s.Begin({.staging_bytes = 400, .delta_file_bytes = 1 << 20, .buffers = 2});
  const auto deltas = s.dir.path() / kDeltaFolder;
  for (uint64_t v = 2; v <= 20; ++v) {
    CAPTURE(v);
    chunks = FakeAgent::Step(chunks, v);
    s.agent().Publish({1, v}, chunks);
    REQUIRE(s.Reaches(s.agent().identity()));
    const auto file = deltas / fmt::format("{:012}", v - 1);
    REQUIRE(Eventually([&] { return std::filesystem::exists(file); }));
    const auto delta = DeltaFile::Open(file);
    REQUIRE(delta.ok());
    CHECK(delta->head().to == s.agent().identity());
    REQUIRE_FALSE(delta->entries().empty());
    for (const DeltaFileEntry& entry : delta->entries()) CHECK_FALSE(entry.whole());
  }
}

TEST_CASE("with one file and the option copy, a reader keeps the old file") {
  ReplicaRig s;
  FakeAgent::Chunks chunks =
      s.Begin({.buffers = 1, .reader_grace = milliseconds(30), .copy_for_reader = true});
  const Reader reader(s.dir.path() / "model.safetensors");
  const std::string read = reader.bytes();
  for (uint64_t v = 2; v < 5; ++v) {
    chunks = v == 3 ? FakeAgent::Make(s.agent().layout(), v) : FakeAgent::Step(chunks, v);
    s.agent().Publish({1, v}, chunks);
    REQUIRE(s.Reaches(s.agent().identity()));
    CHECK(s.Holds(chunks));
  }
  CHECK(reader.bytes() == read);
}

TEST_CASE("with two files the name is always there, and what a reader has does not change") {
  ReplicaRig s;
  FakeAgent::Chunks chunks = s.Begin({.buffers = 2});
  std::atomic<bool> stop{false};
  std::atomic<int> missing{0}, opened{0};
  std::thread loader([&] {
    while (!stop) {
      const int fd = ::open((s.dir.path() / "model.safetensors").c_str(), O_RDONLY);
      ++(fd < 0 ? missing : opened);
      if (fd >= 0) ::close(fd);
    }
  });
  const Reader reader(s.dir.path() / "model.safetensors");
  const std::string read = reader.bytes();
  for (uint64_t v = 2; v < 30; ++v) {
    chunks = v % 7 == 0 ? FakeAgent::Make(s.agent().layout(), v) : FakeAgent::Step(chunks, v);
    s.agent().Publish({1, v}, chunks);
    REQUIRE(s.Reaches(s.agent().identity()));
    REQUIRE(s.Holds(chunks));
  }
  stop = true;
  loader.join();
  CHECK(missing == 0);
  CHECK(opened > 0);
  CHECK(reader.bytes() == read);
  CHECK(testing::VerifyOf(*s.replica, false, kStays)->bad_chunks == 0);
}

/// The hidden weight file that exists, or an empty path.
std::filesystem::path HiddenFile(const std::filesystem::path& dir) {
  for (const char* name : kHidden) {
    if (std::filesystem::exists(dir / name)) return dir / name;
  }
  return {};
}

/// Says so and returns false where every update goes to a fresh file.
bool HasLeases(const ReplicaRig& s) {
  REQUIRE(Eventually([&] { return !s.replica->status().buffers_why.empty(); }));
  const bool leases = s.replica->status().buffers_why.find("fresh file") == std::string::npos;
  if (!leases) std::puts("SKIPPED: no leases here");
  return leases;
}

TEST_CASE("the second of two files is made while the first version is waited for") {
  ReplicaRig s;
  s.Start({.buffers = 2});
  if (!HasLeases(s)) return;
  const auto both = [&] {
    return std::filesystem::exists(s.dir.path() / kHidden[0]) &&
           std::filesystem::exists(s.dir.path() / kHidden[1]);
  };
  REQUIRE(Eventually(both));
  struct stat spare;
  REQUIRE(::stat((s.dir.path() / kHidden[1]).c_str(), &spare) == 0);
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  REQUIRE(s.Reaches(s.agent().identity()));
  REQUIRE(Eventually([&] { return EndsIn(HiddenFile(s.dir.path()), chunks); }));
  struct stat hidden;
  REQUIRE(::stat(HiddenFile(s.dir.path()).c_str(), &hidden) == 0);
  CHECK(hidden.st_ino == spare.st_ino);
}

TEST_CASE("weights and side files that somebody removes or changes are put back") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  ReplicaRig s;
  const auto chunks = s.Begin({.buffers = buffers}, 5);
  const std::string config = s.Read("config.json");
  std::filesystem::remove(s.dir.path() / "config.json");
  CHECK(Eventually([&] { return s.Read("config.json") == config; }, seconds(5)));
  std::ofstream(s.dir.path() / "config.json") << "{}";
  CHECK(Eventually([&] { return s.Read("config.json") == config; }, seconds(5)));
  std::filesystem::remove(s.dir.path() / "model.safetensors");
  CHECK(Eventually([&] { return s.Holds(chunks); }, seconds(5)));
  CHECK(Eventually([&] { return s.replica->status().files_put_back >= 3; }, seconds(5)));
  CHECK(s.committed() == s.agent().identity());
}

}  // namespace
}  // namespace deltawire::receiver::replica_readers_test
