// A replica as a member of a group: what it makes ready, what a reader sees meanwhile, and what it
// does on the word, in either number of buffers. Its sender is in memory.
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "receiver/buffer/buffer_names.h"
#include "receiver/replica/replica.h"
#include "tests/support/eventually.h"
#include "tests/support/replica_calls.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::receiver::replica_group_test {
namespace {

using testing::Eventually;
constexpr Hash128 kA{11, 12};
const auto kStays = [] { return false; };

/// A directory with a file system of its own, where that can be mounted.
class SmallFileSystem {
 public:
  SmallFileSystem() {
    mounted_ = ::mount("tmpfs", path().c_str(), "tmpfs", 0, "size=16m,mode=700") == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }
  const std::filesystem::path& path() const { return dir_.path(); }
  bool mounted() const { return mounted_; }
  void Fill() const {
    std::ofstream file(filler(), std::ios::binary);
    const std::string page(4096, 'x');
    while (file.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  void MakeRoom() const { std::filesystem::remove(filler()); }

 private:
  std::filesystem::path filler() const { return path() / "filler"; }
  TempDir dir_;
  bool mounted_ = false;
};

struct Member {
  explicit Member(ReplicaOptions o = {}) : options(std::move(o)) {
    options.model = "m";
    if (options.directory.empty()) options.directory = dir.path();
    options.huge_pages = false;
    Publish(1, FakeAgent::Make(agent.layout(), 1));
    Start();
    REQUIRE(Eventually([&] { return status().committed == Version(1); }));
    Tell(0, 0, 1);
    REQUIRE(Eventually([&] { return status().group == "g"; }));
  }
  void Start() {
    replica.reset();
    std::vector<std::unique_ptr<Upstream>> upstreams;
    upstreams.push_back(agent.MakeUpstream());
    auto started =
        Replica::Start(options, std::move(upstreams), FakeAgent::Transports({&agent}), pool, rates);
    REQUIRE(started.status() == absl::OkStatus());
    replica = std::move(*started);
  }
  void Publish(uint64_t version, FakeAgent::Chunks chunks, uint64_t epoch = 1) {
    contents[version] = chunks;
    agent.Publish({epoch, version}, std::move(chunks));
    ids[version] = agent.identity();
  }
  /// A little other than the version before.
  void Step(uint64_t version) { Publish(version, FakeAgent::Step(contents[version - 1], version)); }
  const Identity& Version(uint64_t version) const { return ids.at(version); }
  void Tell(uint64_t round, uint64_t prepare, uint64_t commit) {
    agent.Tell({.name = "g",
                .round = round,
                .prepare = prepare == 0 ? Identity{} : Version(prepare),
                .commit = commit == 0 ? Identity{} : Version(commit)});
  }
  ReplicaStatus status() const { return replica->status(); }
  /// What the sender last heard of the member's answer.
  GroupReport answer() const {
    const auto reports = agent.reports();
    return reports.empty() ? GroupReport{} : reports.back().group;
  }
  bool Answers(uint64_t round, bool prepared) const {
    return Eventually([&] { return answer().round == round && answer().prepared == prepared; });
  }
  bool Reaches(uint64_t version) const {
    return Eventually([&] { return status().committed == Version(version) && Holds(version); });
  }
  /// The file that a loader finds is that version.
  bool Holds(uint64_t version) const {
    return EndsIn(options.directory / kWeights, contents.at(version));
  }
  ino_t inode() const {
    struct stat file;
    return ::stat((options.directory / kWeights).c_str(), &file) == 0 ? file.st_ino : 0;
  }

  TempDir dir;
  ThreadPool pool{2};
  CoderRates rates;
  FakeAgent agent{"s0", kA, FakeLayout()};
  ReplicaOptions options;
  std::map<uint64_t, FakeAgent::Chunks> contents;
  std::map<uint64_t, Identity> ids;
  std::unique_ptr<Replica> replica;
};

TEST_CASE("a member prepares, and a reader sees nothing of it until the word") {
  const uint32_t buffers = GENERATE(1u, 2u);
  Member m({.buffers = buffers});
  m.Step(2);
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  // A report of every second may say so before the end of the round is noted.
  REQUIRE(Eventually([&] { return m.status().phase == ReceiverPhase::kPrepared; }));
  CHECK(m.status().prepared == m.Version(2));
  CHECK(m.status().committed == m.Version(1));
  CHECK(m.Holds(1));
  const int opens = m.agent.counts().opens;
  const ino_t before = m.inode();
  m.Tell(7, 0, 2);
  REQUIRE(m.Reaches(2));
  // All of it was here: the commit asked nobody for anything.
  CHECK(m.agent.counts().opens == opens);
  CHECK((m.inode() != before) == (buffers == 2));
  CHECK(m.status().commits == 2);
  CHECK(Eventually([&] { return m.status().prepared.empty(); }));
  // The next round goes the same way, from what the last one left.
  m.Step(3);
  m.Tell(8, 3, 2);
  REQUIRE(m.Answers(8, true));
  CHECK(m.Holds(2));
  m.Tell(8, 0, 3);
  CHECK(m.Reaches(3));
}

TEST_CASE("a member does not follow newer versions by itself") {
  Member m({.buffers = 2});
  const int opens = m.agent.counts().opens;
  m.Step(2);
  m.Step(3);
  REQUIRE(Eventually([&] { return m.status().newest == m.Version(3); }));
  // The replica has taken note of the version, and of two more beats after it.
  const auto reports = m.agent.reports().size();
  REQUIRE(Eventually([&] { return m.agent.reports().size() > reports + 2; }));
  CHECK(m.agent.counts().opens == opens);
  CHECK(m.status().committed == m.Version(1));
  // Taken out of the group, it follows again.
  m.agent.Tell({});
  CHECK(m.Reaches(3));
}

TEST_CASE("after an abort a member stays, and the next round goes on from what has come") {
  const uint32_t buffers = GENERATE(1u, 2u);
  Member m({.buffers = buffers});
  m.Step(2);
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  m.Tell(7, 0, 1);
  REQUIRE(Eventually([&] { return m.status().phase == ReceiverPhase::kIdle; }));
  CHECK(Eventually([&] { return m.status().prepared.empty(); }));
  CHECK(m.status().committed == m.Version(1));
  CHECK(m.Holds(1));
  m.Step(3);
  m.Tell(8, 3, 1);
  REQUIRE(m.Answers(8, true));
  CHECK(m.Holds(1));
  m.Tell(8, 0, 3);
  CHECK(m.Reaches(3));
}

TEST_CASE("a member that was killed after it prepared follows the decision when it is back") {
  const uint32_t buffers = GENERATE(1u, 2u);
  Member m({.buffers = buffers});
  m.Step(2);
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  m.replica.reset();
  SECTION("decided meanwhile, and a newer version is out") {
    m.Step(3);
    m.Tell(7, 0, 2);
    m.Start();
    CHECK(m.Reaches(2));
  }
  SECTION("not decided yet") {
    m.Start();
    REQUIRE(m.Answers(7, true));
    CHECK(m.Holds(1));
    m.Tell(7, 0, 2);
    CHECK(m.Reaches(2));
  }
  SECTION("aborted meanwhile") {
    m.Tell(8, 0, 1);
    m.Start();
    REQUIRE(m.Answers(8, false));
    CHECK(m.status().committed == m.Version(1));
    CHECK(m.Holds(1));
  }
}

TEST_CASE("with one file, what cannot be made ready beside it is refused, with the reason") {
  Member m({.buffers = 1});
  const bool leases = m.status().buffers_why.find("fresh file") == std::string::npos;
  if (!leases) return (void)std::puts("SKIPPED: no leases here");
  m.Publish(2, FakeAgent::Make(m.agent.layout(), 2));  // every chunk is another: they come whole
  m.agent.Forget({1, 1});
  m.Tell(7, 2, 1);
  REQUIRE(Eventually([&] { return !m.answer().refusal.empty(); }));
  CHECK(m.answer().refusal.find("buffers = 2") != std::string::npos);
  CHECK(m.status().committed == m.Version(1));
  CHECK(m.Holds(1));
  // Nobody is stuck: the abort comes, and a version that fits goes through.
  m.Tell(7, 0, 1);
  REQUIRE(m.Answers(7, false));
}

TEST_CASE("with one file and on-busy-reader = copy it is made ready in a fresh file") {
  Member m({.buffers = 1, .copy_for_reader = true});
  const ino_t before = m.inode();
  m.Publish(2, FakeAgent::Make(m.agent.layout(), 2));
  m.agent.Forget({1, 1});
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  CHECK(m.Holds(1));
  CHECK(m.inode() == before);
  m.Tell(7, 0, 2);
  REQUIRE(m.Reaches(2));
  CHECK(m.inode() != before);
}

TEST_CASE("a paused member gives up what it prepared, refuses, and follows when it is resumed") {
  Member m({.buffers = 2});
  m.Step(2);
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  REQUIRE(testing::PauseOf(*m.replica, kStays).ok());
  REQUIRE(Eventually([&] { return m.answer().refusal == "it is paused"; }));
  m.Tell(7, 0, 2);  // decided before that was heard
  REQUIRE(Eventually([&] { return m.answer().round == 7 && !m.answer().prepared; }));
  CHECK(m.Holds(1));
  m.replica->SetPaused(false);
  CHECK(m.Reaches(2));
}

TEST_CASE("an engine that reads the directory delays the commit, and not the preparing") {
  Member m({.buffers = 2});
  REQUIRE(m.replica->gate().Hold(m.Version(1), "engine"));
  m.Step(2);
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  m.Tell(7, 0, 2);
  REQUIRE(Eventually([&] { return m.status().phase == ReceiverPhase::kWaitingForReader; }));
  CHECK(m.Holds(1));
  m.replica->gate().Release("engine");
  CHECK(m.Reaches(2));
}

TEST_CASE("a full file system at the word makes a member late, until there is room") {
  const SmallFileSystem files;
  if (!files.mounted()) return (void)std::puts("SKIPPED: no file system can be mounted here");
  Member m({.directory = files.path(), .buffers = 2});
  m.contents[2] = FakeAgent::Step(m.contents[1], 2);
  m.agent.Publish({1, 2}, m.contents[2], /*attempt=*/1, /*side_files=*/5);
  m.ids[2] = m.agent.identity();
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  files.Fill();
  m.agent.Forget({1, 2});  // nobody is needed for the rest
  m.Tell(7, 0, 2);
  const auto says_why = [](const std::string& text) {
    return text.find("No space left") != std::string::npos;
  };
  REQUIRE(Eventually([&] { return says_why(m.answer().refusal); }));
  CHECK(m.answer().prepared);
  CHECK(Eventually([&] { return says_why(m.status().message); }));
  CHECK(m.status().committed == m.Version(1));
  CHECK(m.Holds(1));
  // The next round is not kept waiting, either.
  m.Tell(8, 2, 2);
  REQUIRE(Eventually([&] { return m.answer().round == 8 && says_why(m.answer().refusal); }));
  const int opens = m.agent.counts().opens;
  files.MakeRoom();
  REQUIRE(m.Reaches(2));
  CHECK(m.agent.counts().opens == opens);
  CHECK(Eventually([&] { return m.answer().round == 8 && m.answer().refusal.empty(); }));
}

TEST_CASE("a sync at a member brings it to its group's version, and takes no newer one") {
  Member m({.buffers = 2});
  m.Step(2);
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  const auto synced = testing::SyncOf(*m.replica, false, kStays);
  REQUIRE(synced.status() == absl::OkStatus());
  CHECK(m.status().committed == m.Version(1));
  // The round is still open, and is prepared again.
  REQUIRE(Eventually([&] { return m.status().prepared == m.Version(2); }));
  m.Tell(7, 0, 2);
  CHECK(m.Reaches(2));
}

TEST_CASE(
    "a chunk that goes bad under a prepared version is fetched again, and the round goes on") {
  Member m({.scrub_bytes_per_s = uint64_t{1} << 30, .buffers = 2});
  m.Step(2);
  m.Tell(7, 2, 1);
  REQUIRE(m.Answers(7, true));
  // The relay's leaves say that the chunk came with other bytes: as scrubbing finds it.
  m.replica->ReportCorrupt(m.agent.layout().fingerprint().Hex(), 3);
  REQUIRE(Eventually([&] { return m.status().scrub_mismatches > 0; }));
  REQUIRE(Eventually([&] { return m.status().prepared == m.Version(2) && m.Holds(1); }));
  m.Tell(7, 0, 2);
  CHECK(m.Reaches(2));
}

}  // namespace
}  // namespace deltawire::receiver::replica_group_test
