// Shards that the CPU cannot read, gathered over Gloo between real processes, each with a fake CUDA
// runtime of its own.
#include <catch2/catch.hpp>

#include "sender/export/device/foreign_collective.h"
#include "sender/export/megatron/megatron_gather.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/export/device_rank.h"
#include "tests/unit/export/ranks.h"

namespace deltawire::testing::foreign_gather_test {
namespace {

constexpr uint64_t kSeed = 81;
constexpr const char* kParallel = "tp=2,ep=2,etp=1";

std::string GatherAsRank(int r, const std::string& dir, uint64_t bucket_bytes, int fail_on) {
  Rank rank("float32", kParallel, static_cast<uint32_t>(r), kSeed + static_cast<uint64_t>(r));
  for (size_t i = 0; i < rank.live.size(); ++i) {
    rank.Put(i, static_cast<Kind>((i + static_cast<size_t>(r)) % 3));
  }
  if (r == fail_on) rank.fail_read = 2;
  std::vector<std::byte> out(rank.planned.plan.layout().total_bytes(), std::byte{0x5a});
  auto gloo = NewGlooCollective(Loopback(dir, "job", r, 2), Soon());
  if (!gloo.ok()) return gloo.status().ToString();
  auto sources = ForeignCollective::Create(**gloo, rank.live);
  if (!sources.ok()) return sources.status().ToString();
  std::vector<mcore::LiveParam> params;
  for (const LiveTensor& t : rank.live) params.push_back(t.param);
  GatherOptions options;
  options.bucket_bytes = bucket_bytes;
  options.deadline = Soon();
  const auto stats = GatherToHf(
      **sources, rank.planned.plan, rank.matches, params,
      [&](size_t i) { return (*sources)->source(i); },
      [&](uint32_t t) { return rank.Tensor(out, t); }, rank.pool, options);
  if (!stats.ok()) return std::string(MessageOf(stats.status()));
  if (stats->peak_buffer_bytes > 2 * bucket_bytes) return "more than two buckets alive";
  if (rank.largest_read > bucket_bytes) return "a read is larger than a bucket";
  if (rank.reads == 0) return "nothing was read";
  if (r != 0) return "ok";
  std::vector<std::byte> wanted(out.size(), std::byte{0x5a});
  for (uint32_t other = 0; other < 2; ++other) {
    Rank("float32", kParallel, other, kSeed + other).WriteTo(wanted);
  }
  return out == wanted ? "ok" : "the gathered tensors are not the shards'";
}

TEST_CASE("devices' and callbacks' shards are gathered over two buckets, bit for bit") {
  const uint64_t bucket = GENERATE(256, 4096, 1 << 20);
  CAPTURE(bucket, kSeed);
  TempDir dir;
  Ranks ranks(2, [&](int r, const Line&) { return GatherAsRank(r, dir.path(), bucket, -1); });
  for (int r = 0; r < 2; ++r) CHECK(ranks.Hear(r) == "ok");
}

TEST_CASE("a callback that fails in a gather ends it on every rank") {
  const int rank = GENERATE(0, 1);
  CAPTURE(rank, kSeed);
  TempDir dir;
  Ranks ranks(2, [&](int r, const Line&) { return GatherAsRank(r, dir.path(), 1024, rank); });
  for (int r = 0; r < 2; ++r) {
    CHECK_THAT(ranks.Hear(r), Catch::Contains("the trainer's copy failed"));
  }
}

}  // namespace
}  // namespace deltawire::testing::foreign_gather_test
