// What a pull round says of itself when others depend on it: whose fault a failure was, and whether
// the recorded delta is the whole change. Agents are in memory.
#include <catch2/catch.hpp>

#include "receiver/buffer/recovery.h"
#include "tests/unit/receiver/pull/round_rig.h"

namespace deltawire::receiver::pull_fault_test {
namespace {

void Break(StatusOr<net::PullEnd>& end) { end = absl::UnavailableError("the stream broke"); }

}  // namespace

TEST_CASE("pull round: what an earlier process brought is not missing from a recorded delta") {
  RoundRig s(1, 2, 1 << 20);
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  // The update to version 2 was killed when one chunk of it had come.
  const auto second = Changed(first, 2);
  s.Publish({1, 2}, second);
  REQUIRE(*s.buffer->update().Begin());
  s.buffer->bases().MarkUnknown(3);
  const MutableBytes place = s.buffer->bases().chunk(3);
  std::copy(second[3].begin(), second[3].end(), place.begin());
  s.buffer->bases().Set(3, 2, kernels::Best().digest(s.buffer->key(), second[3]));
  s.sink.reset();
  const auto lock = s.lock;
  s.buffer.reset();
  s.buffer = *RecoverBuffer(s.dir.path(), lock, {.buffers = 2, .huge_pages = false});
  s.sink = std::make_unique<PullSink>(*s.buffer, s.gate, 1 << 20, s.rates);
  REQUIRE(s.buffer->update().interrupted());
  REQUIRE(*s.buffer->update().Begin());
  const auto round = s.Round(s.Newest());
  REQUIRE(s.Run(*round) == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), second));
  CHECK(round->stats().chunks_full + round->stats().chunks_delta == second.size() - 1);
  CHECK(round->delta() == nullptr);
  // The next one is complete.
  const auto third = Changed(second, 3);
  s.Publish({1, 3}, third);
  const auto next = s.Round(s.Newest());
  const Identity before = s.buffer->committed();
  REQUIRE(s.Run(*next) == absl::OkStatus());
  REQUIRE(next->delta() != nullptr);
  CHECK(next->delta_from() == before);
  CHECK(next->delta()->chunks().size() == third.size());
}

TEST_CASE("pull round: an agent is at fault for its stream and bytes and not for what fails here") {
  RoundRig s;
  const auto chunks = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, chunks);
  const auto fault = [&](auto&& spoil) {
    const auto round = s.Round(s.Newest());
    spoil();
    REQUIRE_FALSE(s.Run(*round).ok());
    return round->fault().code();
  };
  s.at().at_end = Break;
  CHECK(fault([] {}) == StatusCode::kUnavailable);
  s.at().at_end = [](StatusOr<net::PullEnd>& end) { end->identity.root ^= 1; };
  CHECK(fault([] {}) == StatusCode::kDataLoss);
  s.at().at_end = nullptr;
  // The commit fails, since a directory has the name of a side file.
  std::filesystem::create_directories(s.dir.path() / "config.json" / "of-somebody");
  CHECK(fault([] {}) == StatusCode::kCancelled);
  std::filesystem::remove_all(s.dir.path() / "config.json");
  s.gate.SetLimit(BufferGate::Limit::kKeepName);  // the buffer must not be changed
  const auto second = Changed(chunks, 2);
  s.Publish({1, 2}, second);
  CHECK(fault([] {}) == StatusCode::kCancelled);
}

}  // namespace deltawire::receiver::pull_fault_test
