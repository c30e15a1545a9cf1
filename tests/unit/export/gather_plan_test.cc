// MakeBuckets and PlaceBucket lose nothing, exceed no bound, and cut no item that fits.
#include "sender/export/gather/gather_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace deltawire::gather_plan_test {
namespace {

uint64_t Padded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

TEST_CASE("buckets hold every byte of every item once and in order") {
  const uint64_t seed = GENERATE(1, 2, 3, 4, 5, 6, 7, 8);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const uint64_t bucket_bytes = 64 * (1 + random() % 40);
  std::vector<GatherItem> items;
  for (size_t i = 0; i < 200; ++i) {
    items.push_back({static_cast<uint32_t>(random() % 5), random() % (1 + bucket_bytes * 5 / 2)});
    if (random() % 5 == 0) items.back().bytes = 0;
  }
  const auto plan = MakeBuckets(items, bucket_bytes);
  REQUIRE(plan.ok());
  uint64_t item = 0, offset = 0;
  for (const GatherBucket& bucket : *plan) {
    REQUIRE(!bucket.empty());
    uint64_t padded = 0;
    for (const GatherPiece& p : bucket) {
      REQUIRE(p.item == item);
      REQUIRE(p.rank == items[item].rank);
      REQUIRE(p.offset == offset);
      REQUIRE(p.offset % kGatherAlignment == 0);
      padded += Padded(p.bytes);
      offset += p.bytes;
      const bool whole = p.offset == 0 && p.bytes == items[item].bytes;
      REQUIRE((whole || items[item].bytes > bucket_bytes));
      REQUIRE((p.bytes > 0 || items[item].bytes == 0));
      if (offset == items[item].bytes) {
        ++item;
        offset = 0;
      }
    }
    REQUIRE(padded <= bucket_bytes);

    for (const int root : {0, 3}) {
      const BucketPlaces places = PlaceBucket(bucket, 5, root);
      REQUIRE(places.all_bytes <= bucket_bytes);
      REQUIRE(places.others_bytes <= places.all_bytes);
      // No two pieces share a byte, and each lies in its rank's range.
      std::vector<bool> taken(places.all_bytes);
      for (size_t i = 0; i < bucket.size(); ++i) {
        const auto& range = places.rank[bucket[i].rank];
        if (bucket[i].bytes == 0) continue;
        REQUIRE(places.piece_offset[i] % kGatherAlignment == 0);
        REQUIRE(places.piece_offset[i] >= range.offset);
        REQUIRE(places.piece_offset[i] + bucket[i].bytes <= range.offset + range.bytes);
        if (bucket[i].rank != static_cast<uint32_t>(root)) {
          REQUIRE(range.offset + range.bytes <= places.others_bytes);
        }
        for (uint64_t b = 0; b < bucket[i].bytes; ++b) {
          REQUIRE(!taken[places.piece_offset[i] + b]);
          taken[places.piece_offset[i] + b] = true;
        }
      }
    }
  }
  REQUIRE(item == items.size());
}

TEST_CASE("a bucket may be full to the byte, and no items need no bucket") {
  REQUIRE(MakeBuckets({}, 64)->empty());
  REQUIRE(!MakeBuckets({}, 0).ok());
  REQUIRE(!MakeBuckets({}, 100).ok());
  const std::vector<GatherItem> exact = {{0, 64}, {1, 64}, {0, 0}, {2, 1}, {1, 64}};
  const auto plan = MakeBuckets(exact, 128);
  REQUIRE(plan->size() == 2);
  REQUIRE((*plan)[0] == GatherBucket{{0, 0, 0, 64}, {1, 1, 0, 64}, {2, 0, 0, 0}});
  REQUIRE((*plan)[1] == GatherBucket{{3, 2, 0, 1}, {4, 1, 0, 64}});
  // These sizes need more than 32 bits.
  const std::vector<GatherItem> large = {{0, 1ULL << 40}};
  const auto cut = MakeBuckets(large, 1ULL << 38);
  REQUIRE(cut->size() == 4);
  REQUIRE((*cut)[3] == GatherBucket{{0, 0, 3ULL << 38, 1ULL << 38}});
}

TEST_CASE("a single piece's range is the piece itself") {
  const BucketPlaces places = PlaceBucket({{0, 1, 0, 70}, {1, 2, 0, 0}, {2, 2, 0, 5}}, 3, 0);
  REQUIRE(places.rank[1].bytes == 70);
  REQUIRE(places.rank[2].bytes == 5);
  REQUIRE(places.rank[2].offset == 128);
  REQUIRE(places.rank[0].bytes == 0);
}

TEST_CASE("a plan's hash sees every field and where buckets end") {
  const std::vector<GatherBucket> plan = {{{0, 1, 64, 10}, {1, 0, 0, 3}}, {{2, 1, 0, 7}}};
  REQUIRE(HashPlan(plan) == HashPlan(plan));
  std::vector<std::vector<GatherBucket>> others(6, plan);
  others[0][0][0].item = 9;
  others[1][0][0].rank = 0;
  others[2][0][0].offset = 0;
  others[3][0][0].bytes = 11;
  others[4] = {{plan[0][0]}, {plan[0][1], plan[1][0]}};
  std::swap(others[5][0][0], others[5][0][1]);
  for (size_t i = 0; i < others.size(); ++i) {
    CAPTURE(i);
    REQUIRE(!(HashPlan(others[i]) == HashPlan(plan)));
  }
}

}  // namespace
}  // namespace deltawire::gather_plan_test
