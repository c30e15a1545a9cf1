// The upkeep that is due, and its findings, on real files.
#include "receiver/replica/upkeep.h"

#include <catch2/catch.hpp>

#include "receiver/buffer/catch_up.h"
#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::upkeep_test {
namespace {

using Task = Upkeep::Task;

bool Never() { return false; }

/// An upkeep, and what its tasks change.
struct UpkeepRig {
  explicit UpkeepRig(Upkeep::Options options = {.model = "m"})
      : upkeep(std::move(options), {.gate = gate,
                                    .run = run,
                                    .line = line,
                                    .corrupt = corrupt,
                                    .downstream = downstream}) {}

  BufferGate gate{{.model = "m"}};
  RunState run{gate, true};
  ReplicaLine line{"m", gate};
  CorruptChunks corrupt;
  DownstreamLink downstream{nullptr, 0};
  Upkeep upkeep;
};

}  // namespace

TEST_CASE("upkeep: files are checked every second, and scrubbing waits for those who verify") {
  BufferRig rig({.buffers = 1, .huge_pages = false});
  REQUIRE(rig.Update(1).ok());
  UpkeepRig kept({.model = "m", .scrub_bytes_per_s = 1 << 20});
  Upkeep& upkeep = kept.upkeep;
  const Upkeep::Situation idle{.committed = true};
  const auto start = SteadyClock::now();
  REQUIRE(upkeep.Next(*rig.buffer, idle, start).task == Task::kCheck);
  upkeep.Run(Task::kCheck, *rig.buffer, nullptr, Never);
  CHECK(upkeep.totals().files_put_back == 0);
  CHECK(upkeep.Next(*rig.buffer, {.committed = true, .verifying = true}, start).task ==
        Task::kNothing);
  REQUIRE(upkeep.Next(*rig.buffer, idle, start).task == Task::kScrub);
  upkeep.Run(Task::kScrub, *rig.buffer, nullptr, Never);
  CHECK(upkeep.totals().scrubbed_bytes == rig.buffer->layout().total_bytes());
  CHECK(kept.corrupt.empty());
  const auto again = upkeep.Next(*rig.buffer, {.committed = true, .verifying = true}, start).again;
  CHECK(again > start);
  CHECK(upkeep.Next(*rig.buffer, idle, again).task == Task::kCheck);
}

TEST_CASE("upkeep: a scrub finds a chunk that has lost its digest") {
  BufferRig rig({.buffers = 1, .huge_pages = false});
  REQUIRE(rig.Update(1).ok());
  const_cast<std::byte&>(rig.buffer->bases().bytes(1)[17]) ^= std::byte{4};
  UpkeepRig kept({.model = "m", .scrub_bytes_per_s = 1 << 20});
  Upkeep& upkeep = kept.upkeep;
  upkeep.Run(Task::kScrub, *rig.buffer, nullptr, Never);
  CHECK(kept.corrupt.Take() == std::vector<uint32_t>{1});
}

TEST_CASE("upkeep: a small model is not scrubbed over and over") {
  BufferRig rig({.buffers = 1, .huge_pages = false});
  REQUIRE(rig.Update(1).ok());
  UpkeepRig kept({.model = "m", .scrub_bytes_per_s = uint64_t{1} << 40});
  const Upkeep::Situation idle{.committed = true};
  const auto start = SteadyClock::now();
  kept.upkeep.Run(Task::kCheck, *rig.buffer, nullptr, Never);
  REQUIRE(kept.upkeep.Next(*rig.buffer, idle, start).task == Task::kScrub);
  kept.upkeep.Run(Task::kScrub, *rig.buffer, nullptr, Never);
  const Upkeep::Choice next = kept.upkeep.Next(*rig.buffer, idle, start);
  CHECK(next.task == Task::kNothing);
  CHECK(next.again >= start + ScrubWalk::kShortest);
}

TEST_CASE("upkeep: a check of the files goes on in a pause, and a copy does not begin") {
  BufferRig rig({.buffers = 1, .huge_pages = false});
  REQUIRE(rig.Update(1).ok());
  UpkeepRig kept;
  kept.run.SetPaused(true);
  const auto start = SteadyClock::now();
  REQUIRE(kept.upkeep.Next(*rig.buffer, {.committed = true}, start).task == Task::kCheck);
  kept.upkeep.Run(Task::kCheck, *rig.buffer, nullptr, Never);
  CHECK(kept.upkeep.Next(*rig.buffer, {.committed = true}, start).task == Task::kNothing);

  BufferRig two({.buffers = 2, .huge_pages = false});
  if (!LacksSecondFile(*two.buffer)) return;  // no leases here
  kept.upkeep.Run(Task::kMakeSpare, *two.buffer, nullptr, Never);
  CHECK(LacksSecondFile(*two.buffer));
  CHECK(kept.run.settled());
}

TEST_CASE("upkeep: the second file is made before the first version, unless paused or failed") {
  BufferRig rig({.buffers = 2, .huge_pages = false});
  UpkeepRig kept;
  Upkeep& upkeep = kept.upkeep;
  const auto start = SteadyClock::now();
  if (!LacksSecondFile(*rig.buffer)) return;  // no leases here
  CHECK(upkeep.Next(*rig.buffer, {.paused = true}, start).task == Task::kNothing);
  REQUIRE(upkeep.Next(*rig.buffer, {}, start).task == Task::kMakeSpare);
  upkeep.Run(Task::kMakeSpare, *rig.buffer, nullptr, [] { return true; });
  if (LacksSecondFile(*rig.buffer)) {
    CHECK(upkeep.Next(*rig.buffer, {}, start).task == Task::kNothing);
    const auto again = upkeep.Next(*rig.buffer, {}, start).again;
    CHECK(again > start);
    REQUIRE(upkeep.Next(*rig.buffer, {}, again).task == Task::kMakeSpare);
    upkeep.Run(Task::kMakeSpare, *rig.buffer, nullptr, Never);
  }
  CHECK_FALSE(LacksSecondFile(*rig.buffer));
  CHECK(upkeep.Next(*rig.buffer, {}, start).task == Task::kNothing);
}

TEST_CASE("upkeep: the hidden file is brought up after a commit, and after those who are served") {
  for (const bool serves : {false, true}) {
    CAPTURE(serves);
    BufferRig rig({.buffers = 2, .huge_pages = false});
    UpkeepRig kept({.model = "m", .serves = serves});
    Upkeep& upkeep = kept.upkeep;
    CoderRates rates;
    PullSink sink(*rig.buffer, kept.gate, 1 << 20, rates);
    REQUIRE(rig.Update(1).ok());
    if (!CanCatchUp(*rig.buffer)) return;  // no leases here
    upkeep.Run(Task::kCheck, *rig.buffer, &sink, Never);
    const auto before = SteadyClock::now();
    upkeep.NoteCommit(*rig.buffer);
    const Upkeep::Situation idle{.committed = true};
    CHECK_FALSE(upkeep.MayCatchUp(idle, before - std::chrono::milliseconds(1)));
    const auto after = SteadyClock::now() + std::chrono::milliseconds(100);
    CHECK_FALSE(upkeep.MayCatchUp({.committed = true, .corrupt = true}, after));
    CHECK_FALSE(upkeep.MayCatchUp({.committed = true, .paused = true}, after));
    CHECK(upkeep.MayCatchUp(idle, after));
    if (serves) CHECK_FALSE(upkeep.MayCatchUp(idle, before + std::chrono::milliseconds(99)));
    upkeep.Run(Task::kCatchUp, *rig.buffer, &sink, Never);
    CHECK(kept.corrupt.empty());
    CHECK_FALSE(upkeep.MayCatchUp(idle, after + std::chrono::hours(1)));
  }
}

}  // namespace deltawire::receiver::upkeep_test
