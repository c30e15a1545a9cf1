// A replica's pause and stop, beside the use of its buffer.
#include "receiver/replica/run_state.h"

#include <catch2/catch.hpp>

#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::run_state_test {
namespace {

using Use = RunState::Use;

}  // namespace

TEST_CASE("run state: a pause ends a pull that follows, and is complete when the use has ended") {
  BufferRig rig({.buffers = 1, .huge_pages = false});
  REQUIRE(rig.Update(1).ok());
  BufferGate gate({.model = "m"});
  gate.version().TakeUp(*rig.buffer);
  RunState run(gate, true);
  CHECK(run.follows());
  REQUIRE(run.Begin(Use::kFollow));
  CHECK_FALSE(run.EndsPull());
  CHECK(run.SetPaused(true));
  CHECK_FALSE(run.follows());
  CHECK(run.EndsPull());
  CHECK_FALSE(run.settled());
  run.End();
  CHECK(run.settled());
  CHECK_FALSE(run.Begin(Use::kFollow));
  CHECK(run.settled());
  REQUIRE(run.Begin(Use::kUpkeep));
  CHECK_FALSE(run.settled());
  run.End();
  CHECK_FALSE(run.SetPaused(false));
  CHECK(run.Begin(Use::kFollow));
}

TEST_CASE("run state: a pause lets a caller's pull and a half-updated file's pull go on") {
  BufferRig rig({.buffers = 1, .huge_pages = false});
  REQUIRE(rig.Update(1).ok());
  BufferGate gate({.model = "m"});
  gate.version().TakeUp(*rig.buffer);
  RunState run(gate, true);
  REQUIRE(run.Begin(Use::kRequest));
  CHECK_FALSE(run.SetPaused(true));
  CHECK_FALSE(run.EndsPull());
  run.End();
  CHECK(run.settled());

  gate.EndChangeWithoutName();
  CHECK_FALSE(run.settled());
  CHECK(run.Begin(Use::kFollow));
  CHECK_FALSE(run.EndsPull());
  CHECK_FALSE(run.SetPaused(true));
  run.Stop();
  CHECK(run.EndsPull());
  CHECK(run.settled());
  CHECK_FALSE(run.SetPaused(false));  // a stop is for good
  CHECK(run.stopping());
}

}  // namespace deltawire::receiver::run_state_test
