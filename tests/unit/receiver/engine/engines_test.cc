// What an engine's driver does with time and with the directory, and what those who watch the
// engines of a model are told. The engine is a function, and the directory a variable.
#include "receiver/engine/engines.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <thread>

#include "tests/support/eventually.h"

namespace deltawire::receiver::engines_test {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;
using Clock = std::chrono::steady_clock;
using Result = EngineAnswer::Result;

Identity Version(uint64_t version) { return {Hash128{1, 2}, {1, version}, version * 1000, 0}; }

/// A directory that any engine may hold at any time.
struct FakeSource : EngineSource {
  Identity Ready() override { return Version(version); }
  bool Hold(const Identity&, const std::string&, Clock::time_point until) override {
    held_since = Clock::now();
    held_until = until;
    return true;
  }
  void Release(const std::string&) override { released = true; }

  std::atomic<uint64_t> version{0};
  std::atomic<Clock::time_point> held_since{}, held_until{};
  std::atomic<bool> released{false};
};

struct FakeHook : EngineHook {
  using Answers =
      std::function<EngineAnswer(EngineCall call, const Identity& to, milliseconds limit)>;
  explicit FakeHook(Answers a) : answers(std::move(a)) {}
  EngineAnswer Make(EngineCall call, const Identity& to, milliseconds limit) override {
    return answers(call, to, limit);
  }
  void Cancel() override {}
  const Answers answers;
};

/// The next event that a watch is told of; nullopt: none came in time.
std::optional<Engines::Served> NextServed(Engines& engines, uint64_t seen) {
  std::optional<Engines::Served> served;
  Eventually([&] {
    auto after = engines.ServedAfter(seen);
    if (!after.ok()) return true;
    served = *std::move(after);
    return served.has_value();
  });
  return served;
}

EngineDriver::Settings Engine(const std::string& text, milliseconds call_limit) {
  return {.options = *ParseEngine(text),
          .model = {"m", "/dev/shm/m"},
          .policy = {.first_pause = milliseconds(1), .longest_pause = milliseconds(5)},
          .call_limit = call_limit};
}

}  // namespace

TEST_CASE("however many requests a hold covers, it ends after twice the time of one") {
  constexpr milliseconds kLimit{200};
  FakeSource source;
  std::atomic<int> late{0}, holds{0};
  std::atomic<bool> reloads{false};
  const auto slow = [&](EngineCall call, const Identity&, milliseconds limit) -> EngineAnswer {
    if (call == EngineCall::kClear || call == EngineCall::kProbe) return {};
    if (call == EngineCall::kResume) return {};  // holds nothing
    EngineAnswer held;
    held.held = Version(9);  // another one than what is committed
    if (call == EngineCall::kAsk) return held;
    const auto begin = Clock::now();
    if (begin + limit > source.held_since.load() + 2 * kLimit + milliseconds(20)) ++late;
    if (call == EngineCall::kPause) reloads = true;
    // As an engine that answers each time, just in time.
    const auto takes = std::min(limit, kLimit * 3 / 4);
    Eventually([&] { return Clock::now() >= begin + takes; }, kLimit * 2);
    if (takes == limit) return {Result::kUnsure, "nothing in time", {}};
    const bool refused = call == EngineCall::kPrepare || call == EngineCall::kAttach;
    if (call == EngineCall::kPrepare) ++holds;
    return refused ? EngineAnswer{Result::kRefused, "another version", {}} : EngineAnswer{};
  };
  Engines engines({Engine("vllm=http://a:1", kLimit)}, source,
                  [&](const EngineDriver::Settings&) { return std::make_unique<FakeHook>(slow); });
  source.version = 1;
  engines.NoteReady();
  // The second attempt is to detach the engine and let it read the directory.
  REQUIRE(Eventually([&] { return reloads && holds >= 3; }));
  CHECK(late == 0);
  // Whatever becomes of the calls, the directory is let go.
  CHECK(source.held_until.load() - source.held_since.load() <= 2 * kLimit + milliseconds(120));
  CHECK(source.released);
  engines.Stop();
}

TEST_CASE("each version that an engine begins to serve is told once") {
  FakeSource source;
  const auto at_once = [](EngineCall, const Identity&, milliseconds) { return EngineAnswer{}; };
  Engines engines(
      {Engine("http=http://a:1", milliseconds(1000)),
       Engine("http=http://a:2", milliseconds(1000))},
      source, [&](const EngineDriver::Settings&) { return std::make_unique<FakeHook>(at_once); });
  constexpr uint64_t kVersions = 20'000;
  std::thread trainer([&] {
    while (source.version < kVersions) {
      ++source.version;
      engines.NoteReady();
    }
  });
  std::map<std::string, uint64_t> told;
  uint64_t seen = 0;
  int again = 0;
  while (told["a:1/"] < kVersions || told["a:2/"] < kVersions) {
    const auto served = NextServed(engines, seen);
    REQUIRE(served);
    CHECK(served->serial > seen);
    seen = served->serial;
    uint64_t& before = told[served->engine.name];
    again += served->engine.served.id.version <= before;
    before = served->engine.served.id.version;
  }
  trainer.join();
  CHECK(again == 0);
}

TEST_CASE("who waits for a version is told of the oldest that an engine serves") {
  FakeSource source;
  std::atomic<bool> second_refuses{false};
  Engines engines({Engine("http=http://a:1", milliseconds(1000)),
                   Engine("http=http://a:2", milliseconds(1000))},
                  source, [&](const EngineDriver::Settings& s) {
                    const bool second = s.options.address.port == 2;
                    return std::make_unique<FakeHook>(
                        [&, second](EngineCall, const Identity&, milliseconds) -> EngineAnswer {
                          if (second && second_refuses) return {Result::kRefused, "no", {}};
                          return {};
                        });
                  });
  CHECK(OldestServed(engines.views()) == Identity{});
  CHECK(OldestServed({}) == Identity{});
  source.version = 7;
  engines.NoteReady();
  REQUIRE(Eventually([&] { return ServedByAll(engines.views()) == Version(7); }));
  CHECK(OldestServed(engines.views()) == Version(7));
  // A view shows a version before the event that tells of it, so both events are taken first.
  uint64_t seen = 0;
  for (const char* what : {"one engine's event of version 7", "the other's"}) {
    INFO(what);
    const auto told = NextServed(engines, seen);
    REQUIRE(told);
    CHECK(told->engine.served == Version(7));
    seen = told->serial;
  }
  second_refuses = true;
  source.version = 8;
  engines.NoteReady();
  REQUIRE(Eventually([&] { return engines.views()[0].served == Version(8); }));
  const auto served = NextServed(engines, seen);
  REQUIRE(served);
  CHECK(served->engine.served == Version(8));
  CHECK(served->all == Identity{});
  CHECK(served->oldest == Version(7));
  // A watch is called at each event, and when the engines stop.
  std::atomic<int> calls{0};
  const auto listener = engines.OnServed([&] { ++calls; });
  source.version = 9;
  engines.NoteReady();
  CHECK(Eventually([&] { return calls == 1; }));
  engines.Stop();
  CHECK(calls == 2);
  CHECK(absl::IsUnavailable(engines.ServedAfter(0).status()));
}

TEST_CASE("the oldest that an engine serves goes by lineage and epoch before the number") {
  const auto serving = [](std::vector<Identity> ids) {
    std::vector<EngineDriver::View> views(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) views[i].served = ids[i];
    return views;
  };
  const Hash128 lineage{1, 2}, anew{3, 4};
  const Identity tenth{lineage, {1, 10}, 10, 0}, back{lineage, {2, 5}, 5, 0},
      first{anew, {1, 1}, 1};
  // A rollback to 5: the engine that still serves 10 is the one that is behind.
  CHECK(OldestServed(serving({back, tenth})) == tenth);
  CHECK(OldestServed(serving({tenth, back, back})) == tenth);
  CHECK(OldestServed(serving({tenth, first})) == Identity{});
  CHECK(OldestServed(serving({first, tenth})) == Identity{});
  Identity other = tenth;  // the same number with other bytes
  other.root = 11;
  CHECK(OldestServed(serving({tenth, other})) == Identity{});
  CHECK(OldestServed(serving({tenth, Identity{}})) == Identity{});
  CHECK(OldestServed(serving({Identity{}, tenth})) == Identity{});
  CHECK(OldestServed(serving({back, back})) == back);
}

TEST_CASE("whoever is told of a call may look at all engines until the last of them has ended") {
  FakeSource source;
  source.version = 1;
  std::atomic<bool> called{false}, ending{false}, first_gone{false};
  // The second engine answers when the first one is gone, if that goes before.
  const auto answer = [&](EngineCall, const Identity&, milliseconds) -> EngineAnswer {
    called = true;
    Eventually([&] { return ending.load(); });
    Eventually([&] { return first_gone.load(); }, milliseconds(300));
    return {};
  };
  struct First : FakeHook {
    First(Answers a, std::atomic<bool>& g) : FakeHook(std::move(a)), gone(g) {}
    ~First() override { gone = true; }
    std::atomic<bool>& gone;
  };
  auto engines = std::make_unique<Engines>(
      std::vector{Engine("exec=/bin/first", milliseconds(5000)),
                  Engine("exec=/bin/second", milliseconds(5000))},
      source, [&](const EngineDriver::Settings& s) -> std::unique_ptr<EngineHook> {
        if (s.options.command.front() == "/bin/second") {
          return std::make_unique<FakeHook>(answer);
        }
        return std::make_unique<First>(
            [](EngineCall, const Identity&, milliseconds) { return EngineAnswer{}; }, first_gone);
      });
  std::atomic<size_t> seen{0};
  const auto listener = engines->OnCalled([&, raw = engines.get()] {
    if (ending) seen = raw->views().size();
  });
  engines->NoteReady();
  REQUIRE(Eventually([&] { return called.load(); }));
  ending = true;
  engines.reset();
  CHECK(seen == 2);
}

}  // namespace deltawire::receiver::engines_test
