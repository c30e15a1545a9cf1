#include "common/base/trace.h"

#include <catch2/catch.hpp>

namespace deltawire::trace_test {
namespace {

Identity State(uint64_t epoch, uint64_t version, uint64_t attempt) {
  return {.lineage = {1, 2}, .id = {epoch, version}, .root = 3, .attempt = attempt};
}

TEST_CASE("trace: whatever differs between agents and receivers is not in it") {
  const TraceId trace = TraceOf(State(1, 7, 5));
  CHECK(trace == TraceOf(7, 5));  // at BeginOffload, when there is no root yet
  Identity whole = State(1, 7, 5);
  whole.lineage = {11, 12};
  whole.root = 13;
  CHECK(TraceOf(whole) == trace);
  CHECK(TraceOf(State(4, 7, 5)) == trace);  // one agent was rolled back more often than others
}

TEST_CASE("trace: another version, or the same one offloaded again, has another") {
  const TraceId trace = TraceOf(State(1, 7, 5));
  CHECK_FALSE(TraceOf(State(1, 8, 5)) == trace);  // a trainer that gives all offloads one attempt
  CHECK_FALSE(TraceOf(State(1, 7, 6)) == trace);
  CHECK_FALSE(TraceOf(State(1, 5, 7)) == trace);
}

TEST_CASE("trace: without an attempt the lineage tells versions apart") {
  Identity other = State(1, 7, 0);
  other.lineage = {1, 9};
  CHECK_FALSE(TraceOf(State(1, 7, 0)) == TraceOf(other));
  CHECK_FALSE(TraceOf(State(1, 7, 0)) == TraceOf(State(2, 7, 0)));
}

TEST_CASE("trace: its text has a fixed form, and the id of a version never changes") {
  CHECK(ToString(TraceOf(Identity{})) == "trace=0000000000000000");
  CHECK(ToString(TraceId{0xab}) == "trace=00000000000000ab");
  // XXH3-64 of 07 00 .. 00 05 00 .. 00.
  CHECK(ToString(TraceOf(7, 5)) == "trace=d947481440ec474b");
}

}  // namespace
}  // namespace deltawire::trace_test
