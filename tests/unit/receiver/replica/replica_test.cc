// A replica whose senders are in memory: what it commits, what it does not, and how soon it is
// right again after a fault. No sockets.
#include "receiver/replica/replica.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/bad_memory.h"
#include "tests/support/denied_leases.h"
#include "tests/unit/receiver/attach/scripted_upstream.h"
#include "tests/unit/receiver/replica/replica_rig.h"

namespace deltawire::receiver::replica_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Hash128 kC{15, 16};

TEST_CASE("a caller that goes at once leaves a sync without a request, which is no pull") {
  ReplicaRig s;
  s.Begin();
  // Some of them go between the look for a request and its taking.
  for (int n = 0; n < 3000; ++n) {
    const auto request = s.replica->AskSync(false);
    REQUIRE(request.status() == absl::OkStatus());
    s.replica->requests().Forget(*request);
  }
  CHECK(s.Sync().ok());
}

TEST_CASE("versions are followed, whole first and then by delta") {
  ReplicaRig s;
  FakeAgent::Chunks chunks = s.Begin();
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

TEST_CASE("an event is a beat if it says what the one before said, and asks for nothing") {
  const SenderEvent first{
      .number = 1,
      .newest = {.identity = {.lineage = kC, .id = {1, 2}, .root = 3, .attempt = 4},
                 .delta_bytes = 5}};
  SenderEvent next = first;
  next.number = 2;
  CHECK(IsBeat(first, next));
  const auto differs = [&](const std::function<void(SenderEvent&)>& change) {
    SenderEvent other = next;
    change(other);
    return !IsBeat(first, other);
  };
  CHECK(differs([](SenderEvent& e) { e.newest.identity.id.version = 3; }));
  CHECK(differs(
      [](SenderEvent& e) { e.newest.identity.attempt = 5; }));  // another offload of the state
  CHECK(differs([](SenderEvent& e) { e.sync_request = 1; }));
  CHECK(differs([](SenderEvent& e) { e.relay.fetched_bytes = 1; }));
  CHECK(differs([](SenderEvent& e) { e.group.prepare = e.newest.identity; }));
  CHECK(differs([](SenderEvent& e) { e.assignment.emplace(); }));
  CHECK(differs([](SenderEvent& e) { e.incoming.version = e.newest.identity; }));
  SenderEvent asks = first;
  asks.sync_request = 7;
  CHECK_FALSE(IsBeat(asks, asks));
}

TEST_CASE("a beat that brings a version back which was given up is acted on at once") {
  ReplicaRig s;
  s.Begin();
  Identity coming = s.agent().identity();
  coming.id.version = 2;
  coming.root = 0;
  coming.attempt = 7;
  const int before = s.agent().counts().opens;
  const Identity base = s.agent().identity();
  s.agent().Set([&](FakeAgent::Faults& f) { f.coming = {coming, base}; });
  // What is coming is asked for after each beat, 20 ms apart, and not after the replica's own
  // reports alone, which are a second apart.
  const auto start = SteadyClock::now();
  CHECK(Eventually([&] { return s.agent().counts().opens >= before + 40; }));
  CHECK(SteadyClock::now() - start < seconds(20));
}

TEST_CASE("each commit tells of its stages once, and a pull that fails of none") {
  ReplicaRig s;
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
  CHECK(s.replica->commits().recent().empty());
  s.agent().Set([](FakeAgent::Faults& f) { f.flip.clear(); });
  REQUIRE(Eventually([&] { return count() == 7; }));
  const auto recent = s.replica->commits().recent();
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
    ReplicaRig s;
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
  ReplicaRig s;
  s.Begin({}, 100);
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
  ReplicaRig s;
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.agent().Set([](FakeAgent::Faults& f) { f.flip[3] = 2; });
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  CHECK(s.replica->status().repaired_chunks == 2);
  const auto suspects = s.agent().counts().corrupt;
  REQUIRE(suspects.size() == 3);
  CHECK(suspects[0].empty());
  CHECK(suspects[1] == std::vector<uint32_t>{3});
}

TEST_CASE("a chunk that never comes right is never committed, and named") {
  ReplicaRig s;
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
  ReplicaRig s;
  const auto first = s.Begin();
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
  ReplicaRig s(2);
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
  ReplicaRig s(2);
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
    ReplicaRig s;
    FakeAgent::Chunks chunks = s.Begin();
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
  ReplicaRig s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.agent().Set([](FakeAgent::Faults& f) { f.fail_opens = 3; });
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.agent().counts().opens == 4);
  CHECK(s.agent().counts().attaches == 1);
  CHECK(s.agent().counts().describes == 1);
}

TEST_CASE("a long pull is no silence: reports go on, with the last event's number") {
  ReplicaRig s;
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

TEST_CASE("reports of two threads arrive in the order in which they were made") {
  ReplicaRig s;
  s.Begin();
  const Identity before = s.committed();
  Identity after = before;
  after.id.version = 2;
  const auto says = [](const ReceiverReport& r, const Identity& oldest) {
    return r.engines.engines == 1U && r.engines.oldest == oldest;
  };
  const auto has_arrived = [&](const Identity& oldest) {
    return std::ranges::any_of(s.agent().reports(),
                               [&](const ReceiverReport& r) { return says(r, oldest); });
  };
  std::atomic<bool> entered{false}, late_came_first{false};
  s.agent().Set([&](FakeAgent::Faults& f) {
    f.sending = [&](const ReceiverReport& r) {
      if (!says(r, before) || entered.exchange(true)) return;
      late_came_first = Eventually([&] { return has_arrived(after); }, milliseconds(300));
    };
  });
  std::jthread first([&] { s.replica->agents().SetEngines({.engines = 1, .oldest = before}); });
  REQUIRE(Eventually([&] { return entered.load(); }));
  std::jthread second([&] { s.replica->agents().SetEngines({.engines = 1, .oldest = after}); });
  first.join();
  second.join();
  CHECK_FALSE(late_came_first);
  CHECK(Eventually([&] { return has_arrived(after); }));
  CHECK(says(s.agent().reports().back(), after));
  s.agent().Set([](FakeAgent::Faults& f) { f.sending = nullptr; });
}

TEST_CASE("pause returns when nothing changes, and ends a pull that has changed nothing") {
  ReplicaRig s;
  const auto first = s.Begin();
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
  CHECK(testing::PauseOf(*s.replica, kStays).ok());
  CHECK(ended);
  CHECK(s.replica->status().phase == ReceiverPhase::kPaused);
  CHECK(s.committed() == before);
  CHECK(s.Holds(first));
  s.agent().Set([](FakeAgent::Faults& f) { f.before_end = nullptr; });
  CHECK(s.Sync().ok());  // a sync works while paused
  CHECK(s.committed() == s.agent().identity());
  s.agent().Publish({1, 3}, FakeAgent::Step(first, 7));
  s.replica->SetPaused(false);
  CHECK(s.Reaches(s.agent().identity()));
}

TEST_CASE("without a version to pull the phase is a wait, and no failure") {
  ReplicaRig s;
  s.Start();
  REQUIRE(
      Eventually([&] { return s.replica->status().phase == ReceiverPhase::kWaitingForVersion; }));
  CHECK(s.replica->status().message == "sender s0 has published nothing yet");
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  REQUIRE(s.Reaches(s.agent().identity()));
  REQUIRE(Eventually([&] { return s.replica->status().phase == ReceiverPhase::kIdle; }));
  CHECK(s.replica->status().message.empty());
}

TEST_CASE("an attachment that ends says whether the upstream has gone or only has no version yet") {
  const TempDir dir;
  ThreadPool pool(1);
  CoderRates rates;
  auto scripted = std::make_unique<ScriptedUpstream>("s:1");
  ScriptedUpstream& sender = *scripted;
  sender.Refuse(absl::NotFoundError("sender s:1: Attach: no such model"));
  std::vector<std::unique_ptr<Upstream>> upstreams;
  upstreams.push_back(std::move(scripted));
  const auto replica = Replica::Start(
      {.model = "m", .directory = dir.path()}, std::move(upstreams),
      [](const net::PullTarget&) { return std::unique_ptr<net::PullTransport>(); }, pool, rates);
  REQUIRE(replica.ok());
  const auto shows = [&](ReceiverPhase phase, const std::string& message) {
    return Eventually([&] {
      const ReplicaStatus status = (*replica)->status();
      return status.phase == phase && status.message == message;
    });
  };
  CHECK(
      shows(ReceiverPhase::kWaitingForVersion, "waiting for a version: sender s:1: no such model"));
  CHECK(MessageOf((*replica)->AskSync(false).status()) ==
        "model \"m\": waiting for a version: sender s:1: no such model");
  sender.Refuse(absl::AbortedError("fetching it itself"));
  CHECK(shows(ReceiverPhase::kWaitingForVersion,
              "waiting for a version: sender s:1: fetching it itself"));
  sender.Refuse(absl::UnavailableError("refused"));
  CHECK(shows(ReceiverPhase::kFailed, "cannot attach to sender s:1: refused"));
  CHECK(MessageOf((*replica)->AskSync(false).status()) ==
        "model \"m\" has no sender: cannot attach to sender s:1: refused");
  sender.Refuse(absl::OkStatus());
  REQUIRE(Eventually([&] { return sender.attached(); }));
  sender.Tell();
  CHECK(shows(ReceiverPhase::kWaitingForVersion, "sender s:1 has published nothing yet"));
  sender.Refuse(absl::UnavailableError("refused"));
  sender.End(absl::UnavailableError("reset"));
  CHECK(shows(ReceiverPhase::kFailed, "cannot attach to sender s:1: refused"));
}

/// Removes `dir` at once: a replica that made files there meanwhile would keep it from being empty.
void MoveAway(const std::filesystem::path& dir) {
  const std::filesystem::path away = dir.native() + "_away";
  std::filesystem::rename(dir, away);
  std::filesystem::remove_all(away);
}

TEST_CASE("a directory that was removed is made anew, and the version in it is a new commit") {
  ReplicaRig s;
  const uint32_t buffers = GENERATE(1u, 2u);
  const auto chunks = s.Begin({.buffers = buffers});
  MoveAway(s.dir.path());
  REQUIRE(Eventually([&] { return s.replica->status().commits == 2; }));
  CHECK(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(chunks));
  // The commit is counted before the pull that made it has ended.
  CHECK(Eventually([&] { return s.replica->status().phase == ReceiverPhase::kIdle; }));
  CHECK(std::filesystem::exists(s.dir.path() / ".deltawire.lock"));
  const auto next = FakeAgent::Step(chunks, 2);
  s.agent().Publish({1, 2}, next);
  CHECK(s.Reaches(s.agent().identity()));
  CHECK(s.Holds(next));
}

TEST_CASE("without its state file a running receiver makes its directory anew") {
  ReplicaRig s;
  const auto chunks = s.Begin();
  std::filesystem::remove(s.dir.path() / ".deltawire.state");
  REQUIRE(Eventually([&] { return s.replica->status().commits == 2; }));
  CHECK(s.Holds(chunks));
}

TEST_CASE("a receiver that does not follow makes a removed directory, and pulls when told to") {
  ReplicaRig s;
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  s.Start({.follow = false});
  REQUIRE(Eventually([&] { return s.Sync().ok(); }));
  MoveAway(s.dir.path());
  REQUIRE(Eventually([&] { return s.committed().empty(); }));
  CHECK(s.replica->gate().version().Ready().empty());
  REQUIRE(s.Sync().ok());
  CHECK(s.Holds(chunks));
}

TEST_CASE("an orchestrator's request is answered by its number") {
  ReplicaRig s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.Start({.follow = false});
  REQUIRE(Eventually([&] { return s.replica->status().attached; }));
  CHECK(s.committed().empty());
  s.agent().Ask(77);
  REQUIRE(Eventually([&] {
    for (const ReceiverReport& r : s.agent().reports()) {
      if (r.sync_request == 77) return r.phase == ReceiverPhase::kCommitted;
    }
    return false;
  }));
  CHECK(s.committed() == s.agent().identity());
}

TEST_CASE("verify finds what memory lost, repairs it, and ends when its caller has gone") {
  ReplicaRig s;
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  s.agent().Publish({1, 1}, chunks);
  // With two files the receiver would copy the lost chunk from the hidden one by itself, perhaps
  // before verify looks.
  s.Start({.buffers = 1});
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(testing::VerifyOf(*s.replica, false, kStays)->bad_chunks == 0);
  CHECK(testing::VerifyOf(*s.replica, false, [] { return true; }).status().code() ==
        StatusCode::kCancelled);
  testing::FlipByte(s.dir.path() / "model.safetensors", -3);
  const auto found = testing::VerifyOf(*s.replica, false, kStays);
  REQUIRE(found.ok());
  CHECK(found->bad_tensors == std::vector<std::string>{"t5"});
  const auto repaired = testing::VerifyOf(*s.replica, true, kStays);
  REQUIRE(repaired.ok());
  CHECK(repaired->repaired);
  CHECK(s.Holds(chunks));
}

TEST_CASE("a version that cannot be hidden for its repair stays committed until it can") {
  ReplicaRig s;
  const auto chunks = s.Begin({.buffers = 1});
  const std::filesystem::path hidden[] = {s.dir.path() / ".model.safetensors.partial",
                                          s.dir.path() / ".model.safetensors.partial2"};
  for (const auto& name : hidden) std::filesystem::create_directory(name);
  testing::FlipByte(s.dir.path() / "model.safetensors", -3);
  const Status refused = testing::VerifyOf(*s.replica, true, kStays).status();
  CHECK(refused.message().find("rename") != std::string::npos);
  CHECK(s.committed() == s.agent().identity());
  CHECK(s.replica->gate().Hold(s.agent().identity(), "engine"));
  CHECK(s.replica->status().repaired_chunks == 0);
  s.replica->gate().Release("engine");
  for (const auto& name : hidden) std::filesystem::remove(name);
  CHECK(Eventually([&] { return s.replica->status().repaired_chunks == 1 && s.Holds(chunks); }));
}

TEST_CASE("verify ends though a scrub is always due") {
  ReplicaRig s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.Start({.scrub_bytes_per_s = uint64_t{1} << 50});
  REQUIRE(s.Reaches(s.agent().identity()));
  const auto deadline = SteadyClock::now() + std::chrono::seconds(20);
  const auto found =
      testing::VerifyOf(*s.replica, false, [&] { return SteadyClock::now() > deadline; });
  CHECK(found.status() == absl::OkStatus());
}

}  // namespace
}  // namespace deltawire::receiver::replica_test
