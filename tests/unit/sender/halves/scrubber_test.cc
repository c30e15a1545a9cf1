// Memory that goes bad under published versions: which chunks are found, from which bytes they are
// restored, and which are left alone since nobody can tell what they should be.
#include "sender/agent/halves/scrubber.h"

#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/bad_memory.h"
#include "tests/support/eventually.h"
#include "tests/unit/sender/hand_published.h"
#include "tests/unit/sender/sender_model.h"

namespace deltawire::sender::scrubber_test {
namespace {

using test::HandPublished;
using testing::Eventually;

class Fixture : public HandPublished {
 public:
  explicit Fixture(uint64_t seed, std::vector<TensorMeta> tensors = FourTensors(),
                   const std::vector<ChunkRange>& part = {})
      : HandPublished(seed, uint64_t{1} << 30, std::move(tensors), part),
        scrubber_(facts, halves()) {}

  Scrubber* operator->() { return &scrubber_; }

  void Flip(uint32_t half, uint32_t chunk) {
    testing::Flip(halves().path(half), layout, chunks[chunk].offset + 11);
  }
  /// Compares a chunk under a lease, which Scrubber::Check requires.
  void Check(const Published& state, uint32_t chunk) {
    const auto lease = halves().Lease(state.half, state.info.identity);
    REQUIRE(lease != nullptr);
    scrubber_.Check(state, chunk);
  }
  /// Checks the totals, except for the bytes.
  bool Found(uint64_t mismatches, uint64_t repaired) const {
    const ScrubTotals totals = scrubber_.totals();
    CAPTURE(totals.mismatches, totals.repaired);
    CHECK(totals.mismatches == mismatches);
    CHECK(totals.repaired == repaired);
    return totals.mismatches == mismatches && totals.repaired == repaired;
  }

 private:
  Scrubber scrubber_;
};

std::vector<uint32_t> DamagedIn(const Published& state, uint32_t chunks) {
  std::vector<uint32_t> damaged;
  for (uint32_t c = 0; c < chunks; ++c) {
    if (state.damaged[c] != 0) damaged.push_back(c);
  }
  return damaged;
}

TEST_CASE("scrubber: turn by turn it compares every owned chunk and no other") {
  const uint64_t seed = 31;
  CAPTURE(seed);
  // The model is larger than one turn. Others own its first and last chunk, and one between.
  std::vector<TensorMeta> tensors;
  for (int t = 0; t < 12; ++t) tensors.push_back({fmt::format("t{}", t), DType::kI8, {80'000}});
  Fixture f(seed, std::move(tensors), {{1, 6}, {7, 11}});
  const auto state = f.Publish({.version = 1});
  const auto lease = f.halves().Lease(state->half, state->info.identity);
  const uint64_t round = f.owned.bytes(f.chunks);
  uint64_t bytes = 0;
  const auto turns = [&](uint64_t until) {
    while (bytes < until) {
      const auto pause = f->CheckNext(*state, 1'000'000'000);
      const uint64_t now = f->totals().bytes - bytes;
      REQUIRE(now > 0);
      REQUIRE(now < round);
      CHECK(pause == std::chrono::nanoseconds(now));
      bytes += now;
    }
  };
  turns(2 * round);
  CHECK(f.Found(0, 0));
  std::vector<uint32_t> mine;
  for (uint32_t c = 0; c < f.chunks.size(); ++c) {
    f.Flip(state->half, c);
    if (f.owned.contains(c)) mine.push_back(c);
  }
  const uint64_t before = bytes;
  turns(before + round);
  CHECK(DamagedIn(*state, f.chunks.size()) == mine);
  turns(before + 3 * round);
  CHECK(f.Found(mine.size(), 0));
}

TEST_CASE("scrubber: a bad chunk is out of use as long as it is bad and counted once") {
  Fixture f(32);
  const auto state = f.Publish({.version = 1});
  f.Flip(state->half, 1);
  const std::vector<std::byte> bad = f.HalfNow(state->half);
  for (int again = 0; again < 2; ++again) {
    for (uint32_t c = 0; c < f.chunks.size(); ++c) f.Check(*state, c);
    CHECK(DamagedIn(*state, f.chunks.size()) == std::vector<uint32_t>{1});
    CHECK(f.Found(1, 0));
    CHECK(f.HalfNow(state->half) == bad);
  }
  f.Flip(state->half, 1);
  f.Check(*state, 1);
  CHECK(state->damaged[1] == 0);
  f.Flip(state->half, 1);
  f.Check(*state, 1);
  CHECK(f.Found(2, 0));
  // Chunks that a publish finds bad are counted too.
  f->CountCorrupt(2, GENERATE(false, true));
  CHECK(f.Found(3, 0));
}

TEST_CASE("scrubber: a bad chunk comes back from the version before and the newest delta") {
  const uint64_t seed = GENERATE(33, 34, 35);
  CAPTURE(seed);
  Fixture f(seed);
  f.Publish({.version = 1});
  f.Publish({.version = 2, .chunks = {0, 1, 2, 3}});
  // Chunks 0 and 2 change. Of chunks 1 and 3 the other half has the same bytes.
  const auto state = f.Publish({.version = 3, .chunks = {0, 2}});
  const std::vector<std::byte> other = f.HalfNow(1 - state->half);
  for (uint32_t c = 0; c < f.chunks.size(); ++c) f.Flip(state->half, c);
  for (uint32_t c = 0; c < f.chunks.size(); ++c) {
    CAPTURE(c);
    f.Check(*state, c);
    CHECK(state->damaged[c] == 0);
    CHECK(f.Found(c + 1, c + 1));
  }
  CHECK(f.HalfNow(state->half) == f.versions()[2].bytes);
  CHECK(f.HalfNow(1 - state->half) == other);
}

TEST_CASE("scrubber: what the other half cannot tell stays as it is and out of use") {
  Fixture f(36);
  f.Publish({.version = 1});
  std::shared_ptr<const Published> state;
  const auto publish = [&](const test::NextVersion& next) { state = f.Publish(next); };
  SECTION("it has gone bad there too") {
    publish({.version = 2, .chunks = {0}});
    for (const uint32_t c : {0, 1}) f.Flip(1 - state->half, c);
  }
  SECTION("it has changed by more than is kept") {
    publish({.version = 2, .chunks = {0, 1}, .payload_limit = 0});
  }
  SECTION("the trainer is writing there") {
    publish({.version = 2, .chunks = {0}});
    f.HandOut(1 - state->half);
  }
  SECTION("no delta is known since a restart") {
    publish({.version = 2, .chunks = {0}});
    f.Restart();
    state = f.store().newest();
  }
  SECTION("it has a version that the newest delta does not begin at") {
    publish({.version = 2, .chunks = {0, 1}});
    publish({.version = 3, .chunks = {0, 1}});
    // The other half gets version 1, from which the newest delta does not lead on.
    const uint32_t other = 1 - state->half;
    f.HandOut(other);
    f.halves().Commit(other, f.versions()[0].identity, f.versions()[0].digests);
  }
  const std::vector<std::byte> other = f.HalfNow(1 - state->half);
  for (const uint32_t c : {0, 1}) f.Flip(state->half, c);
  const std::vector<std::byte> bad = f.HalfNow(state->half);
  for (const uint32_t c : {0, 1, 2}) f.Check(*state, c);
  CHECK(DamagedIn(*state, f.chunks.size()) == std::vector<uint32_t>{0, 1});
  CHECK(f.Found(2, 0));
  CHECK(f.HalfNow(state->half) == bad);
  CHECK(f.HalfNow(1 - state->half) == other);
}

TEST_CASE("scrubber: a chunk is put right once nobody else reads it and the other half is there") {
  Fixture f(37);
  f.Publish({.version = 1});
  const auto state = f.Publish({.version = 2, .chunks = {0}});
  f.Flip(state->half, 0);
  const std::vector<std::byte> bad = f.HalfNow(state->half);
  double waited = 0;
  std::shared_ptr<const void> reader;
  const bool read = GENERATE(false, true);
  CAPTURE(read);
  if (read) {
    reader = f.halves().Lease(state->half, state->info.identity);
  } else {
    // The other half is drained for the trainer, which has not begun to write.
    const auto grace = std::chrono::milliseconds(1);
    REQUIRE(f.halves().Drain(1 - state->half, grace, nullptr, &waited).ok());
  }
  f.Check(*state, 0);
  CHECK(state->damaged[0] == 1);
  CHECK(f.Found(1, 0));
  CHECK(f.HalfNow(state->half) == bad);
  reader = nullptr;
  f.halves().GiveBack(1 - state->half);
  f.Check(*state, 0);
  CHECK(state->damaged[0] == 0);
  CHECK(f.Found(1, 1));
  CHECK(f.HalfNow(state->half) == f.versions()[1].bytes);
}

TEST_CASE("scrubber: what a publish writes into the other half is none of its business") {
  Fixture f(38);
  f.Publish({.version = 1});
  const auto old = f.Publish({.version = 2, .chunks = {0, 1}});
  const auto lease = f.halves().Lease(old->half, old->info.identity);
  f.HandOut(1 - old->half);
  for (std::byte& b : f.halves().writable(1 - old->half)) b = std::byte{77};
  for (uint32_t c = 0; c < f.chunks.size(); ++c) f->Check(*old, c);
  CHECK(f.Found(0, 0));
  const auto now = f.Publish({.version = 3, .chunks = {0}});
  // A check of a state that was overtaken looks at that state's half, and marks that state alone.
  f.Flip(old->half, 0);
  f.Flip(old->half, 1);
  const std::vector<std::byte> bad = f.HalfNow(old->half);
  for (uint32_t c = 0; c < f.chunks.size(); ++c) f->Check(*old, c);
  CHECK(DamagedIn(*old, f.chunks.size()) == std::vector<uint32_t>{0, 1});
  CHECK(DamagedIn(*now, f.chunks.size()).empty());
  CHECK(f.Found(2, 0));
  CHECK(f.HalfNow(old->half) == bad);
  CHECK(f.HalfNow(now->half) == f.versions()[2].bytes);
}

TEST_CASE("scrubber: many that doubt one chunk count it once and leave it right") {
  const uint64_t seed = 39;
  CAPTURE(seed);
  Fixture f(seed);
  f.Publish({.version = 1});
  const auto state = f.Publish({.version = 2, .chunks = {0}});
  f.Flip(state->half, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        const auto lease = f.halves().Lease(state->half, state->info.identity);
        f->Check(*state, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  f.Check(*state, 0);
  CHECK(state->damaged[0] == 0);
  CHECK(f.Found(1, 1));
  CHECK(f.HalfNow(state->half) == f.versions()[1].bytes);
}

TEST_CASE("scrubber: an idle model is read no faster than it is told to") {
  SenderModel m({.scrub_bytes_per_s = 1});
  REQUIRE(m.Publish(1).ok());
  // A restarted model has something to scrub from its first moment. The first turn reads one chunk,
  // which is larger than a turn should be; at 1 byte per second the next turn is weeks away.
  m.Restart();
  const uint64_t turn = m->chunks()[0].bytes;
  REQUIRE(Eventually([&] { return m->scrubber().totals().bytes > 0; }));
  for (uint64_t v = 2; v <= 4; ++v) {
    REQUIRE(m.Publish(v).ok());
    CHECK(m->scrubber().totals().bytes == turn);
  }
}

}  // namespace
}  // namespace deltawire::sender::scrubber_test
