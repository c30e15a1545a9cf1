// A replica whose senders are in memory: what it commits, what it does not, and how soon it is
// right again after a fault. No sockets.
#include "receiver/replica.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <mutex>
#include <set>

#include "common/shm/delta_file.h"
#include "receiver/buffer_names.h"
#include "tests/support/bad_memory.h"
#include "tests/support/denied_leases.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/fake_upstream.h"

namespace deltawire::receiver {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
constexpr Hash128 kA{11, 12}, kB{13, 14}, kC{15, 16};

const auto kStays = [] { return false; };

struct Setup {
  explicit Setup(size_t agents = 1) {
    const Layout layout = FakeLayout();
    if (agents == 1) {
      all.push_back(std::make_unique<FakeAgent>("s0", kA, layout));
    } else {
      all.push_back(
          std::make_unique<FakeAgent>("s0", kA, layout, std::vector<ChunkRange>{{0, 2}, {5, 6}}));
      all.push_back(std::make_unique<FakeAgent>("s1", kB, layout, std::vector<ChunkRange>{{2, 5}}));
    }
  }
  FakeAgent& agent(size_t i = 0) { return *all[i]; }
  void Start(ReplicaOptions options = {}) {
    options.model = "m";
    options.directory = dir.path();
    options.huge_pages = false;
    std::vector<std::unique_ptr<Upstream>> upstreams;
    std::vector<FakeAgent*> agents;
    for (const auto& a : all) {
      upstreams.push_back(a->MakeUpstream());
      agents.push_back(a.get());
    }
    auto started =
        Replica::Start(options, std::move(upstreams), FakeAgent::Transports(agents), pool, rates);
    INFO(started.status());
    REQUIRE(started.ok());
    replica = std::move(*started);
  }
  /// Starts with one file, which is brought to version 1. Without leases, which the case is about,
  /// says so and returns false.
  bool StartsWithOneFile() {
    agent().Publish({1, 1}, FakeAgent::Make(agent().layout(), 1));
    Start({.buffers = 1});
    REQUIRE(Reaches(agent().identity()));
    const bool leases = replica->status().buffers_why.find("fresh file") == std::string::npos;
    if (!leases) std::puts("SKIPPED: no leases here");
    return leases;
  }
  /// Publishes version 2, all of whose chunks come whole but for the last one, which stays away:
  /// the only file is then half updated. Returns the version's chunks.
  FakeAgent::Chunks StopHalfWay() {
    const auto second = FakeAgent::Make(agent().layout(), 2);
    agent().Set([](FakeAgent::Faults& f) { f.leave_out = {5}; });
    agent().Publish({1, 2}, second);
    REQUIRE(Eventually([&] { return replica->status().pull_failures > 0; }));
    REQUIRE(committed().empty());
    return second;
  }
  Identity committed() const { return replica->status().committed; }
  bool Reaches(const Identity& id) {
    return Eventually([&] { return committed() == id; });
  }
  StatusOr<Commit> Sync(bool full = false) {
    return replica->Sync(
        full, [](const ReplicaStatus&) {}, kStays);
  }
  std::string Read(const std::string& name) const { return ReadText(dir.path() / name); }
  /// The file that a loader finds ends in these bytes.
  bool Holds(const FakeAgent::Chunks& chunks) const {
    return EndsIn(dir.path() / "model.safetensors", chunks);
  }

  TempDir dir;
  ThreadPool pool{2};
  CoderRates rates;
  std::vector<std::unique_ptr<FakeAgent>> all;
  std::unique_ptr<Replica> replica;
};

TEST_CASE("versions are followed, whole first and then by delta") {
  Setup s;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(s.agent().counts().chunks_full == chunks.size());
  for (uint64_t v = 2; v < 10; ++v) {
    chunks = FakeAgent::Step(chunks, v);
    s.agent().Publish({1, v}, chunks);
    REQUIRE(s.Reaches(s.agent().identity()));
    CHECK(s.Holds(chunks));
  }
  CHECK(s.agent().counts().chunks_full == chunks.size());
  CHECK(s.agent().counts().describes == 1);
  CHECK(s.agent().counts().attaches == 1);
}

TEST_CASE("each commit tells of its stages once, and a pull that fails of none") {
  Setup s;
  std::mutex mu;
  std::vector<std::pair<Stage, double>> told;
  std::set<std::string> models;
  ReplicaOptions options;
  options.stages = [&](const StageEnd& end) {
    std::lock_guard lock(mu);
    told.emplace_back(end.stage, end.seconds);
    models.emplace(end.model);
  };
  const auto count = [&] {
    std::lock_guard lock(mu);
    return told.size();
  };
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.agent().Set([](FakeAgent::Faults& f) { f.flip[3] = 1000; });
  s.Start(options);
  REQUIRE(Eventually([&] { return s.replica->status().pull_failures >= 2; }));
  CHECK(count() == 0);
  CHECK(s.replica->recent().empty());
  s.agent().Set([](FakeAgent::Faults& f) { f.flip.clear(); });
  REQUIRE(Eventually([&] { return count() == 7; }));
  const auto recent = s.replica->recent();
  REQUIRE(recent.size() == 1);
  CHECK(recent[0].id == s.agent().identity());
  const CommitTimes times = recent[0].times;
  CHECK(told == std::vector<std::pair<Stage, double>>{{Stage::kQueue, times.queue},
                                                      {Stage::kAhead, times.ahead},
                                                      {Stage::kTransfer, times.transfer},
                                                      {Stage::kStage, times.stage},
                                                      {Stage::kReaders, times.readers},
                                                      {Stage::kApply, times.apply},
                                                      {Stage::kCommit, times.commit}});
  // The version was told of before the pulls that failed, the shortest pause between which is 25
  // ms.
  CHECK(times.queue > 0.025);
  CHECK(times.transfer > 0);
  CHECK(times.stage > 0);
  CHECK(times.commit > 0);
  CHECK(times.readers == 0);
  const PullStats& stats = recent[0].stats;
  CHECK(times.transfer + times.apply + times.commit <= stats.seconds + 0.001);
  REQUIRE(s.Sync(true).ok());  // the same version again is no commit
  CHECK(count() == 7);
  CHECK(models == std::set<std::string>{"m"});
}

TEST_CASE("status says how many buffers there are, and why") {
  struct {
    uint32_t buffers;
    bool in_place, leases;
    uint32_t taken;
    std::string why;
  } const cases[] = {
      {0, false, true, 2, "memory has room for the model twice"},
      {1, false, true, 1, "as configured"},
      {2, false, true, 2, "as configured"},
      {1, true, true, 1, "as configured; changed under whoever reads them"},
      {1, false, false, 1, "as configured; every version in a fresh file: "},
  };
  for (const auto& c : cases) {
    CAPTURE(c.why);
    std::optional<testing::DeniedLeases> denied;
    if (!c.leases) denied.emplace(EINVAL);
    Setup s;
    s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
    ReplicaOptions options;
    options.buffers = c.buffers;
    options.unsafe_in_place = c.in_place;
    s.Start(options);
    REQUIRE(s.Reaches(s.agent().identity()));
    const ReplicaStatus status = s.replica->status();
    CHECK(status.buffers == c.taken);
    CHECK(status.buffers_why.substr(0, c.why.size()) == c.why);
    CHECK((status.buffers_why == c.why) == c.leases);
  }
}

TEST_CASE("the same number with other bytes, by a sender that was wiped, is pulled") {
  Setup s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1), 1, 100);
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Read("config.json") == "{\"side\": 100}");
  FakeAgent::Chunks other = FakeAgent::Make(s.agent().layout(), 2);
  other[0] = FakeAgent::Make(s.agent().layout(), 1)[0];
  const uint64_t moved = s.agent().counts().chunks_full;
  s.agent().Wipe(kC);
  s.agent().Publish({1, 1}, other, 2, 200);
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(other));
  // Chunk 0 is the same as before, so it stayed.
  CHECK(s.agent().counts().chunks_full == moved + other.size() - 1);
  CHECK(s.Read("config.json") == "{\"side\": 200}");
}

TEST_CASE("a whole chunk that comes with other bytes is asked for again, as a suspect") {
  Setup s;
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.agent().Set([](FakeAgent::Faults& f) { f.flip[3] = 2; });
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(s.replica->status().repaired_chunks == 2);
  const auto suspects = s.agent().counts().suspects;
  REQUIRE(suspects.size() == 3);
  CHECK(suspects[0].empty());
  CHECK(suspects[1] == std::vector<uint32_t>{3});
}

TEST_CASE("a chunk that never comes right is never committed, and named") {
  Setup s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.agent().Set([](FakeAgent::Faults& f) { f.flip[3] = 1000; });
  s.Start();
  REQUIRE(Eventually(
      [&] { return s.replica->status().message.find("tensor t3") != std::string::npos; }));
  CHECK(s.replica->status().message.find("memory") != std::string::npos);
  CHECK(s.committed().empty());
  CHECK(s.Read("model.safetensors").empty());
  s.agent().Set([](FakeAgent::Faults& f) { f.flip.clear(); });
  CHECK(s.Reaches(s.agent().identity()));
}

TEST_CASE("a sender that leaves a chunk of a delta out is noticed, and nothing is committed") {
  Setup s;
  const auto first = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, first);
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  auto second = first;
  for (auto& c : second) c[0] ^= std::byte{1};
  s.agent().Set([](FakeAgent::Faults& f) { f.leave_out = {2}; });
  s.agent().Publish({1, 2}, second);
  REQUIRE(Eventually([&] { return s.replica->status().root_mismatches > 0; }));
  CHECK(s.replica->status().message.find("left out") != std::string::npos);
  CHECK_FALSE(s.committed() == s.agent().identity());
  s.agent().Set([](FakeAgent::Faults& f) { f.leave_out.clear(); });
  CHECK(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(second));
}

TEST_CASE("parts of different attempts never meet") {
  Setup s(2);
  const auto first = FakeAgent::Make(s.agent().layout(), 1);
  for (size_t i = 0; i < 2; ++i) s.agent(i).Publish({1, 49}, first, 49);
  s.Start();
  REQUIRE(Eventually([&] { return s.committed().id == StateId{1, 49}; }));
  CHECK(s.Holds(first));
  const Identity before = s.committed();
  CHECK(before.root == s.agent(0).identity().root + s.agent(1).identity().root);

  s.agent(0).Publish({1, 50}, FakeAgent::Step(first, 1), 50);  // s1's rank died in attempt 50
  const auto redone = FakeAgent::Step(first, 2);
  s.agent(1).Publish({1, 50}, redone, 51);
  REQUIRE(Eventually(
      [&] { return s.replica->status().message.find("one attempt") != std::string::npos; }));
  CHECK(s.committed() == before);
  CHECK(s.Holds(first));
  CHECK(s.Sync().ok());  // it answers with the newest state that all have
  CHECK(s.committed() == before);
  s.agent(0).Publish({1, 50}, redone, 51);
  REQUIRE(Eventually([&] { return s.committed().id == StateId{1, 50}; }));
  CHECK(s.Holds(redone));
}

TEST_CASE("what one agent brought is not fetched again when another's pull fails") {
  Setup s(2);
  const auto first = FakeAgent::Make(s.agent().layout(), 1);
  for (size_t i = 0; i < 2; ++i) s.agent(i).Publish({1, 1}, first, 1);
  s.Start();
  REQUIRE(Eventually([&] { return s.committed().id == StateId{1, 1}; }));
  auto second = first;
  for (auto& c : second) c[0] ^= std::byte{1};
  std::atomic<int> failures{0};
  s.agent(1).Set([&](FakeAgent::Faults& f) {
    f.before_end = [&] {
      if (failures++ == 0) s.agent(1).Set([](FakeAgent::Faults& g) { g.fail_opens = 1; });
    };
    f.leave_out = {};
  });
  s.agent(1).Set([](FakeAgent::Faults& f) { f.leave_out = {2, 3, 4}; });
  for (size_t i = 0; i < 2; ++i) s.agent(i).Publish({1, 2}, second, 2);
  REQUIRE(Eventually([&] { return s.replica->status().root_mismatches > 0; }));
  const uint64_t brought = s.agent(0).counts().chunks_delta;
  CHECK(brought == 3);
  s.agent(1).Set([](FakeAgent::Faults& f) { f.leave_out.clear(); });
  REQUIRE(Eventually([&] { return s.committed().id == StateId{1, 2}; }));
  CHECK(s.Holds(second));
}

TEST_CASE("a lost event, a mute sender and a broken connection are mended within five seconds") {
  for (const int fault : {0, 1, 2}) {
    CAPTURE(fault);
    Setup s;
    FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
    s.agent().Publish({1, 1}, chunks);
    s.Start();
    REQUIRE(s.Reaches(s.agent().identity()));
    chunks = FakeAgent::Step(chunks, 5);
    s.agent().Set([fault](FakeAgent::Faults& f) {
      if (fault == 0) f.lose_events = 1;
      if (fault == 1) f.mute = true;
    });
    s.agent().Publish({1, 2}, chunks);
    if (fault == 1) {
      REQUIRE(Eventually([&] { return s.agent().counts().attaches > 1; }, seconds(5)));
      s.agent().Set([](FakeAgent::Faults& f) { f.mute = false; });
    }
    if (fault == 2) s.agent().Disconnect();
    CHECK(Eventually([&] { return s.committed() == s.agent().identity(); }, seconds(5)));
    CHECK(s.agent().counts().describes == 1);
    CHECK(s.agent().counts().side_files == 0);
  }
}

TEST_CASE("a failed pull ends the pull, not the attachment") {
  Setup s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.agent().Set([](FakeAgent::Faults& f) { f.fail_opens = 3; });
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.agent().counts().opens == 4);
  CHECK(s.agent().counts().attaches == 1);
  CHECK(s.agent().counts().describes == 1);
}

TEST_CASE("a long pull is no silence: reports go on, with the last event's number") {
  Setup s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  std::atomic<bool> hold{true};
  s.agent().Set(
      [&](FakeAgent::Faults& f) { f.before_end = [&] { Eventually([&] { return !hold; }); }; });
  s.Start();
  size_t before = 0;
  REQUIRE(Eventually([&] {
    before = s.agent().reports().size();
    return s.replica->status().phase == ReceiverPhase::kPulling;
  }));
  CHECK(Eventually(
      [&] {
        const auto reports = s.agent().reports();
        return reports.size() > before + 1 && reports.back().event > 10;
      },
      seconds(5)));
  CHECK(s.agent().counts().attaches == 1);
  hold = false;
  CHECK(s.Reaches(s.agent().identity()));
}

TEST_CASE("pause returns when nothing changes, and ends a pull that has changed nothing") {
  Setup s;
  const auto first = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, first);
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  const Identity before = s.committed();
  std::atomic<bool> at_end{false}, ended{false};
  s.agent().Set([&](FakeAgent::Faults& f) {
    f.before_end = [&] {
      at_end = true;
      ended = Eventually([&] { return s.agent().counts().cancels > 0; });
    };
  });
  s.agent().Publish({1, 2}, FakeAgent::Step(first, 1));
  REQUIRE(Eventually([&] { return at_end.load(); }));
  CHECK(s.replica->SetPaused(true, kStays).ok());
  CHECK(ended);
  CHECK(s.replica->status().phase == ReceiverPhase::kPaused);
  CHECK(s.committed() == before);
  CHECK(s.Holds(first));
  s.agent().Set([](FakeAgent::Faults& f) { f.before_end = nullptr; });
  CHECK(s.Sync().ok());  // a sync works while paused
  CHECK(s.committed() == s.agent().identity());
  s.agent().Publish({1, 3}, FakeAgent::Step(first, 7));
  CHECK(s.replica->SetPaused(false, kStays).ok());
  CHECK(s.Reaches(s.agent().identity()));
}

TEST_CASE("an orchestrator's request is answered by its number") {
  Setup s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.Start({.follow = false});
  REQUIRE(Eventually([&] { return s.replica->status().attached; }));
  CHECK(s.committed().empty());
  s.agent().Ask(77);
  REQUIRE(Eventually([&] {
    for (const Report& r : s.agent().reports()) {
      if (r.sync_request == 77) return r.phase == ReceiverPhase::kCommitted;
    }
    return false;
  }));
  CHECK(s.committed() == s.agent().identity());
}

TEST_CASE("verify finds what memory lost, repairs it, and ends when its caller has gone") {
  Setup s;
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  // With two files the receiver would copy the lost chunk from the hidden one by itself, perhaps
  // before verify looks.
  s.Start({.buffers = 1});
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.replica->Verify(false, kStays)->bad_chunks == 0);
  CHECK(s.replica->Verify(false, [] { return true; }).status().code() == StatusCode::kCancelled);
  testing::FlipByte(s.dir.path() / "model.safetensors", -3);
  const auto found = s.replica->Verify(false, kStays);
  REQUIRE(found.ok());
  CHECK(found->bad_tensors == std::vector<std::string>{"t5"});
  const auto repaired = s.replica->Verify(true, kStays);
  REQUIRE(repaired.ok());
  CHECK(repaired->repaired);
  CHECK(s.Holds(chunks));
}

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
  Setup s;
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
  CHECK(s.replica->SetPaused(true, kStays).ok());  // must not wait for the reader
  CHECK(s.replica->SetPaused(false, kStays).ok());
  reader.reset();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(s.replica->status().worst_reader_wait_seconds > 0);
}

TEST_CASE("a wait for a reader that ends with an error is not told of any longer") {
  Setup s;
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
  Setup s;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.Start({.buffers = buffers});
  REQUIRE(s.Reaches(s.agent().identity()));
  REQUIRE(Eventually([&] { return s.replica->Hold(s.agent().identity(), "engine e"); }));
  const auto waits = [&] {
    const ReplicaStatus status = s.replica->status();
    return status.phase == ReceiverPhase::kWaitingForReader && status.readers == "engine e";
  };
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks);
  REQUIRE(Eventually(waits));
  CHECK(s.replica->SetPaused(true, kStays).ok());  // must not wait for the engine
  CHECK(s.replica->status().readers.empty());
  CHECK(s.replica->status().phase == ReceiverPhase::kPaused);
  const double first = s.replica->status().reader_wait_seconds;
  CHECK(first > 0);
  CHECK(s.replica->status().worst_reader_wait_seconds == first);
  CHECK(s.replica->SetPaused(false, kStays).ok());
  REQUIRE(Eventually(waits));
  s.replica->Release("engine e");
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(s.replica->status().readers.empty());
  CHECK(s.replica->status().reader_wait_seconds > first);
}

TEST_CASE("what an engine holds beyond its time is taken from it") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  Setup s;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.Start({.buffers = buffers});
  REQUIRE(s.Reaches(s.agent().identity()));
  const auto until = SteadyClock::now() + milliseconds(150);
  REQUIRE(Eventually([&] { return s.replica->Hold(s.agent().identity(), "engine e", until); }));
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks);
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(SteadyClock::now() >= until);
  CHECK(s.Holds(chunks));
  s.replica->Release("engine e");  // late, and of no effect on others
}

TEST_CASE("a pause while the only file is half updated waits until the weights are there again") {
  Setup s;
  if (!s.StartsWithOneFile()) return;
  const auto second = s.StopHalfWay();
  CHECK(s.replica->SetPaused(true, [] { return true; }).code() == StatusCode::kCancelled);
  std::atomic<bool> paused{false};
  Status answered;
  std::thread operator_calls([&] {
    answered = s.replica->SetPaused(true, kStays);
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
  Setup s;
  if (!s.StartsWithOneFile()) return;
  const auto second = s.StopHalfWay();
  s.replica.reset();
  s.Start({.buffers = 1});
  CHECK(s.replica->SetPaused(true, [] { return true; }).code() == StatusCode::kCancelled);
  s.agent().Set([](FakeAgent::Faults& f) { f.leave_out.clear(); });
  CHECK(s.replica->SetPaused(true, kStays) == absl::OkStatus());
  CHECK(s.committed() == s.agent().identity());
  CHECK(s.Holds(second));
}

TEST_CASE("a version whose commit fails behind the weights' name is told of all the same") {
  Setup s;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks, 1, 100);
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  const auto first = s.replica->WaitCommit(0, kStays);
  REQUIRE(first);
  const auto list = s.dir.path() / ".deltawire.receiver" / "installed";
  std::filesystem::remove(list);
  std::filesystem::create_directories(list / "in the way");
  chunks = FakeAgent::Step(chunks, 9);
  s.agent().Publish({1, 2}, chunks, 1, 200);
  const auto begin = SteadyClock::now();
  const auto second = s.replica->WaitCommit(
      first->serial, [&] { return SteadyClock::now() > begin + seconds(20); });
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
  Setup s;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.Start({.staging_bytes = 400, .delta_file_bytes = 1 << 20, .buffers = 2});
  REQUIRE(s.Reaches(s.agent().identity()));
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
  Setup s;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.Start({.buffers = 1, .reader_grace = milliseconds(30), .copy_for_reader = true});
  REQUIRE(s.Reaches(s.agent().identity()));
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
  Setup s;
  FakeAgent::Chunks chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.Start({.buffers = 2});
  REQUIRE(s.Reaches(s.agent().identity()));
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
  CHECK(s.replica->Verify(false, kStays)->bad_chunks == 0);
}

TEST_CASE("weights and side files that somebody removes or changes are put back") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  Setup s;
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks, 1, 5);
  s.Start({.buffers = buffers});
  REQUIRE(s.Reaches(s.agent().identity()));
  const std::string config = s.Read("config.json");
  std::filesystem::remove(s.dir.path() / "config.json");
  CHECK(Eventually([&] { return s.Read("config.json") == config; }, seconds(5)));
  std::ofstream(s.dir.path() / "config.json") << "{}";
  CHECK(Eventually([&] { return s.Read("config.json") == config; }, seconds(5)));
  std::filesystem::remove(s.dir.path() / "model.safetensors");
  CHECK(Eventually([&] { return s.Holds(chunks); }, seconds(5)));
  CHECK(s.replica->status().files_put_back >= 3);
  CHECK(s.committed() == s.agent().identity());
}

}  // namespace
}  // namespace deltawire::receiver
