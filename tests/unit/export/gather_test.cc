// Gathers between real processes over loopback: contents, memory, overlap, and plans that differ
// between ranks.
#include <catch2/catch.hpp>
#include <random>

#include "tests/support/temp_dir.h"
#include "tests/unit/export/ranks.h"

namespace deltawire::testing::gather_test {
namespace {

std::string Text(const Status& s) { return s.ok() ? "OK" : s.ToString(); }

// Runs one gather of seeded items and checks every promise of GatherBuckets. Returns "ok", or what
// is wrong.
std::string GatherOnce(CountingCollective& collective, uint64_t seed, size_t n,
                       uint64_t bucket_bytes) {
  SeededItems items(seed, RandomItems(seed, collective.size(), n, bucket_bytes));
  const auto plan = MakeBuckets(items.items(), bucket_bytes);
  if (!plan.ok()) return Text(plan.status());
  const bool root = collective.rank() == collective.root();
  size_t next = 0;
  std::string wrong;
  const auto consume = [&](size_t b, std::span<const Bytes> pieces) -> Status {
    if (!root || b != next++) wrong = "consumed on another rank or out of order";
    if (collective.counts().pending != (b + 1 < plan->size() ? 1 : 0)) {
      wrong = fmt::format("bucket {}: {} transfers beside it", b, collective.counts().pending);
    }
    return items.Consume((*plan)[b], pieces);
  };
  GatherOptions options;
  options.bucket_bytes = bucket_bytes;
  options.deadline = Soon();
  const auto stats =
      GatherBuckets(collective, *plan, items.Source(collective.rank()), consume, options);
  if (!stats.ok()) return Text(stats.status());
  if (!wrong.empty()) return wrong;
  if (collective.counts().live_bytes != 0) return "memory is left";
  if (collective.counts().peak_bytes > 2 * bucket_bytes) return "more than two buckets alive";
  if (stats->peak_buffer_bytes > 2 * bucket_bytes) return "stats: more than two buckets alive";
  if (collective.counts().peak_pending > 2) return "more than two transfers";
  if (root && next != plan->size()) return "not every bucket was consumed";
  uint64_t own = 0;
  for (const GatherItem& i : items.items()) {
    own += root && i.rank == static_cast<uint32_t>(collective.root()) ? i.bytes : 0;
  }
  if (stats->own_bytes != own) return "stats: own bytes";
  return root ? items.Check() : "ok";
}

TEST_CASE("gathered bytes are the sources' for several numbers of ranks and roots") {
  const int size = GENERATE(1, 2, 4, 5);
  const bool last_is_root = GENERATE(false, true);
  const bool hidden = GENERATE(false, true);
  const uint64_t seed = 100 * size + last_is_root;
  CAPTURE(size, last_is_root, hidden, seed);
  TempDir dir;
  Ranks ranks(size, [&](int rank, const Line&) -> std::string {
    const int root = last_is_root ? size - 1 : 0;
    auto gloo = NewGlooCollective(Loopback(dir.path(), "job", rank, size, root), Soon());
    if (!gloo.ok()) return Text(gloo.status());
    for (const uint64_t bucket_bytes : {64u, 4096u, 1u << 20}) {
      CountingCollective collective(std::move(*gloo));
      if (hidden) collective.HideSources();
      const std::string result =
          GatherOnce(collective, seed + bucket_bytes, bucket_bytes < 100 ? 20 : 60, bucket_bytes);
      if (result != "ok") return fmt::format("bucket_bytes {}: {}", bucket_bytes, result);
      *gloo = collective.Release();
    }
    return "ok";
  });
  for (int r = 0; r < size; ++r) {
    CAPTURE(r);
    CHECK(ranks.Hear(r) == "ok");
  }
}

TEST_CASE("single pieces travel from where they lie, and buffers can be kept") {
  TempDir dir;
  Ranks ranks(3, [&](int rank, const Line&) -> std::string {
    auto gloo = NewGlooCollective(Loopback(dir.path(), "job", rank, 3), Soon());
    if (!gloo.ok()) return Text(gloo.status());
    CountingCollective collective(std::move(*gloo));
    SeededItems items(7, {{1, 1000}, {2, 2048}, {0, 500}, {1, 70'000}, {2, 3}});
    const auto plan = MakeBuckets(items.items(), 4096);
    GatherBuffers buffers;
    GatherOptions options;
    options.bucket_bytes = 4096;
    options.buffers = &buffers;
    const GatherSource source = items.Source(rank);
    for (int round = 0; round < 2; ++round) {
      SeededItems round_items(7, items.items());
      const auto stats = GatherBuckets(
          collective, *plan, source,
          [&](size_t b, std::span<const Bytes> p) { return round_items.Consume((*plan)[b], p); },
          options);
      if (!stats.ok()) return Text(stats.status());
      if (rank == 0 && round_items.Check() != "ok") return round_items.Check();
      if (stats->staged_bytes != 0) return fmt::format("{} bytes staged", stats->staged_bytes);
      if (rank != 0 && collective.counts().peak_bytes != 0) return "a buffer for nothing";
      if (rank == 1 && stats->network_bytes != 71'000) return "other bytes were sent";
    }
    if (rank == 0 && collective.counts().peak_bytes != collective.counts().live_bytes) {
      return "buffers were not kept";
    }
    return "ok";
  });
  for (int r = 0; r < 3; ++r) CHECK(ranks.Hear(r) == "ok");
}

TEST_CASE("AllGather brings bytes of any size to every rank, and Barrier waits for all") {
  const int size = GENERATE(1, 2, 5);
  CAPTURE(size);
  TempDir dir;
  Ranks ranks(size, [&](int rank, const Line& line) -> std::string {
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank, size, size / 2), Soon());
    if (!c.ok()) return Text(c.status());
    const auto given = [](int r, int round) {
      const size_t bytes = round == 0 ? 0 : r * r * r * 20'000 + round;
      return std::vector<std::byte>(r == 3 ? 0 : bytes, std::byte(r + 16 * round));
    };
    for (int round = 0; round < 4; ++round) {
      const auto all = (*c)->AllGather(given(rank, round), Soon());
      if (!all.ok()) return Text(all.status());
      if (all->size() != static_cast<size_t>(size)) return "another number of ranks";
      for (int r = 0; r < size; ++r) {
        if ((*all)[r] != given(r, round)) return fmt::format("round {}: rank {} differs", round, r);
      }
    }
    std::vector<std::byte> too_much(Collective::kMaxMetadataBytes + 1);
    if ((*c)->AllGather(too_much, Soon()).ok()) return "took too much";
    if (rank == size - 1) {
      line.Say("at the barrier");
      line.AwaitGo();
    }
    const Status s = (*c)->Barrier(Soon());
    line.Say("behind it");
    return Text(s);
  });
  REQUIRE(ranks.Hear(size - 1) == "at the barrier");
  ranks.Go(size - 1);
  for (int r = 0; r < size; ++r) {
    CHECK(ranks.Hear(r) == "behind it");
    CHECK(ranks.Hear(r) == "OK");
  }
}

TEST_CASE("plans that differ are refused on every rank before the first byte") {
  TempDir dir;
  Ranks ranks(4, [&](int rank, const Line& line) -> std::string {
    auto gloo = NewGlooCollective(Loopback(dir.path(), "job", rank, 4), Soon());
    if (!gloo.ok()) return Text(gloo.status());
    CountingCollective collective(std::move(*gloo));
    std::vector<GatherItem> items = {{1, 10}, {2, 20}, {3, 30}};
    if (rank >= 2) items[1].bytes += rank;
    const auto plan = MakeBuckets(items, 64);
    const auto never = [&](auto...) -> Status { return absl::InternalError("called"); };
    const auto refused =
        GatherBuckets(collective, *plan,
                      [&](uint64_t) -> StatusOr<Bytes> { return absl::InternalError("called"); },
                      never, {.bucket_bytes = 64});
    line.Say(Text(refused.status()));
    if (collective.counts().peak_pending != 0) return "something moved";
    // The ranks' plans are equal, but their buckets are larger than the option says: every rank
    // gets the same error.
    const auto large = MakeBuckets(std::vector<GatherItem>{{1, 128}}, 128);
    const auto above =
        GatherBuckets(collective, *large,
                      [&](uint64_t) -> StatusOr<Bytes> { return absl::InternalError("called"); },
                      never, {.bucket_bytes = 64});
    line.Say(Text(above.status()));
    // The collective still works after both errors.
    return GatherOnce(collective, 5, 10, 4096);
  });
  for (int r = 0; r < 4; ++r) {
    CAPTURE(r);
    const std::string refused = ranks.Hear(r);
    CHECK_THAT(refused, Catch::StartsWith("FAILED_PRECONDITION"));
    CHECK_THAT(refused, Catch::Contains("rank(s) 2, 3 differs"));
    CHECK_THAT(ranks.Hear(r), Catch::StartsWith("INVALID_ARGUMENT"));
    CHECK(ranks.Hear(r) == "ok");
  }
}

}  // namespace
}  // namespace deltawire::testing::gather_test
