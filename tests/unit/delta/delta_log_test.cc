#include "common/delta/delta_log.h"

#include <catch2/catch.hpp>
#include <random>

namespace deltawire::delta_log_test {
namespace {

constexpr uint64_t kChunkSize = 10'000;

// A log over one chunk table, and beside it the digest that each chunk had at each state.
class History {
 public:
  explicit History(uint32_t chunks, uint64_t limit = uint64_t{1} << 30)
      : log_(limit), digests_(1, std::vector<uint64_t>(chunks)) {
    for (uint32_t c = 0; c < chunks; ++c) digests_[0][c] = 1000 + c;
    ids_.push_back({1, 1});
  }

  struct Change {
    uint32_t chunk;
    size_t payload;  // 0: the chunk goes whole
  };
  void Publish(StateId id, const std::vector<Change>& changes, uint64_t salt = 7) {
    DeltaBuilder builder(uint64_t{1} << 40);
    std::vector<uint64_t> now = digests_.back();
    for (const Change& change : changes) {
      ChunkDelta d;
      d.chunk = change.chunk;
      d.digest_before = now[change.chunk];
      now[change.chunk] = now[change.chunk] * 31 + salt;
      d.digest_after = now[change.chunk];
      builder.Add(d, std::vector<std::byte>(change.payload));
    }
    log_.Append(builder.Finish(ids_.back(), id));
    ids_.push_back(id);
    digests_.push_back(now);
  }

  ChunkPlan Plan(uint32_t chunk, size_t held_state) const {
    return PlanWith(chunk, ids_[held_state].version, digests_[held_state][chunk]);
  }
  ChunkPlan PlanWith(uint32_t chunk, uint64_t version, uint64_t digest) const {
    return PlanChunk(log_.View(), chunk, version, digest, digests_.back()[chunk], kChunkSize);
  }
  DeltaLog& log() { return log_; }
  uint64_t digest(size_t state, uint32_t chunk) const { return digests_[state][chunk]; }

 private:
  DeltaLog log_;
  std::vector<std::vector<uint64_t>> digests_;
  std::vector<StateId> ids_;
};

}  // namespace

TEST_CASE("a chunk is sent as nothing, one delta, a chain or whole") {
  History h(4);
  h.Publish({1, 2}, {{0, 50}, {1, 60}});
  h.Publish({1, 3}, {{1, 70}, {2, 0}});
  using Kind = ChunkPlan::Kind;
  CHECK(h.Plan(0, 2).kind == Kind::kNothing);
  CHECK(h.Plan(3, 0).kind == Kind::kNothing);
  const ChunkPlan one = h.Plan(0, 0);
  CHECK(one.kind == Kind::kDelta);
  REQUIRE(one.chain.size() == 1);
  CHECK(one.chain[0]->digest_after == h.digest(2, 0));
  const ChunkPlan chain = h.Plan(1, 0);
  REQUIRE(chain.kind == Kind::kDelta);
  REQUIRE(chain.chain.size() == 2);
  CHECK(chain.chain[0]->digest_after == chain.chain[1]->digest_before);
  CHECK(h.Plan(1, 1).chain.size() == 1);
  CHECK(h.Plan(2, 0).kind == Kind::kFull);
  CHECK(!h.Plan(2, 0).base_refused);
}

TEST_CASE("a base is accepted by its digest, not by its number") {
  History h(2);
  h.Publish({1, 2}, {{0, 50}});
  CHECK(h.PlanWith(0, 1, h.digest(0, 0) + 1).kind == ChunkPlan::Kind::kFull);
  CHECK(h.PlanWith(0, 1, h.digest(0, 0) + 1).base_refused);
  CHECK(h.PlanWith(0, 99, h.digest(0, 0)).base_refused);
  // No delta changed this chunk, but the base with this digest is still not ours.
  CHECK(h.PlanWith(1, 1, 12345).base_refused);
  // A base with the right digest is right, whatever version number it claims.
  CHECK(h.PlanWith(0, 99, h.digest(1, 0)).kind == ChunkPlan::Kind::kNothing);
  CHECK(!h.PlanWith(0, ~uint64_t{0}, 0).base_refused);
  CHECK(h.PlanWith(0, ~uint64_t{0}, h.digest(1, 0)).kind == ChunkPlan::Kind::kFull);
}

TEST_CASE("after a rollback a reused version number finds the state that it means") {
  History h(1);
  h.Publish({1, 2}, {{0, 50}}, 7);
  h.Publish({2, 1}, {{0, 50}}, 8);  // a rollback to version 1
  h.Publish({2, 2}, {{0, 50}}, 9);  // a second version 2, with other bytes
  h.Publish({2, 3}, {{0, 50}}, 10);
  CHECK(h.Plan(0, 1).chain.size() == 3);  // from the first version 2
  CHECK(h.Plan(0, 3).chain.size() == 1);  // from the second version 2
  CHECK(h.Plan(0, 0).chain.size() == 4);
  CHECK(h.Plan(0, 2).chain.size() == 2);
}

TEST_CASE("the log keeps to its bound and still holds the newest") {
  History h(64, 40'000);
  for (uint64_t v = 2; v <= 30; ++v) h.Publish({1, v}, {{static_cast<uint32_t>(v % 64), 5000}});
  // Each delta takes a slab of at least 16 KiB, so the bound has room for the newest two.
  CHECK(h.log().bytes() <= 40'000);
  CHECK(h.log().View().size() == 2);
  CHECK(h.log().View().back()->to() == StateId{1, 30});
  CHECK(h.Plan(30 % 64, 28).kind == ChunkPlan::Kind::kDelta);
  CHECK(h.Plan(28 % 64, 0).base_refused);
  h.log().Clear();
  CHECK(h.log().bytes() == 0);
  CHECK(h.log().View().empty());
}

TEST_CASE("a chunk that a pull has sent already is lifted by the deltas since, or sent whole") {
  History h(2);
  h.Publish({1, 2}, {{0, 50}});
  h.Publish({1, 3}, {{0, 50}});
  const LogView log = h.log().View();
  CHECK(PlanLift(log, 0, 0, kChunkSize).kind == ChunkPlan::Kind::kNothing);
  CHECK(PlanLift(log, 0, 1, kChunkSize).chain.size() == 1);
  CHECK(PlanLift(log, 0, 2, kChunkSize).chain.size() == 2);
  CHECK(PlanLift(log, 1, 2, kChunkSize).kind == ChunkPlan::Kind::kNothing);
  // The log does not go back three deltas.
  CHECK(PlanLift(log, 0, 3, kChunkSize).kind == ChunkPlan::Kind::kFull);
}

TEST_CASE("a chain of deltas that is too large is not folded, and the chunk is sent whole") {
  History h(1);
  for (uint64_t v = 2; v <= 9; ++v) h.Publish({1, v}, {{0, 6000}});
  CHECK(h.Plan(0, 7).kind == ChunkPlan::Kind::kDelta);
  CHECK(h.Plan(0, 2).kind == ChunkPlan::Kind::kDelta);  // 36,000 bytes are at most 4 x 10,000
  CHECK(h.Plan(0, 0).kind == ChunkPlan::Kind::kFull);   // 48,000 bytes are more
}

TEST_CASE("random histories: every plan's chain leads from the held digest to the newest") {
  const uint64_t seed = 20240611;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto chunks = static_cast<uint32_t>(1 + random() % 6);
    History h(chunks);
    const size_t states = 1 + random() % 8;
    for (size_t s = 0; s < states; ++s) {
      std::vector<History::Change> changes;
      for (uint32_t c = 0; c < chunks; ++c) {
        if (random() % 2) changes.push_back({c, random() % 5 == 0 ? 0 : 1 + random() % 300});
      }
      h.Publish({1, 2 + s}, changes, random());
    }
    for (uint32_t c = 0; c < chunks; ++c) {
      for (size_t held = 0; held <= states; ++held) {
        const ChunkPlan plan = h.Plan(c, held);
        CAPTURE(round, c, held);
        REQUIRE(!plan.base_refused);
        if (plan.kind != ChunkPlan::Kind::kDelta) continue;
        uint64_t digest = h.digest(held, c);
        for (const ChunkDelta* d : plan.chain) {
          REQUIRE(d->digest_before == digest);
          digest = d->digest_after;
        }
        REQUIRE(digest == h.digest(states, c));
      }
    }
  }
}

}  // namespace deltawire::delta_log_test
