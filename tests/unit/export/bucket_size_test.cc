// How large buckets become where the ranks' free memory decides.
#include "sender/export/gather/bucket_size.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"
#include "tests/unit/export/ranks.h"

namespace deltawire::testing::bucket_size_test {
namespace {

constexpr uint64_t kGiB = 1ULL << 30;

BucketNeeds Auto(uint64_t host, uint64_t host_free, uint64_t device_free = UINT64_MAX,
                 uint64_t row = 64) {
  return {kAutoBucketBytes, row, host, host_free, device_free};
}

TEST_CASE("buckets follow the rank that has least, and the ranks that share a host") {
  const auto bytes = [](std::vector<BucketNeeds> ranks) { return BucketBytesFor(ranks).value(); };
  CHECK(bytes({Auto(1, 64 * kGiB), Auto(2, 64 * kGiB)}) == kLargestAutoBucket);
  CHECK(bytes({Auto(1, 64 * kGiB), Auto(2, kGiB)}) == kGiB / 8);
  CHECK(bytes({Auto(1, kGiB), Auto(1, kGiB)}) == kGiB / 16);
  CHECK(bytes({Auto(1, 64 * kGiB, 2 * kGiB), Auto(2, 64 * kGiB, kGiB)}) == kGiB / 8);
  CHECK(bytes({Auto(1, 8 * 100)}) == 64);
  CHECK(bytes({Auto(1, 8 * 200)}) == 192);
  CHECK(bytes({Auto(1, 0)}) == 64);
  CHECK(bytes({Auto(1, 0), Auto(2, kGiB, UINT64_MAX, 4097)}) == 4160);
  CHECK(bytes({Auto(1, UINT64_MAX)}) == kLargestAutoBucket);
}

TEST_CASE("a size that is asked for is kept, and must be asked for everywhere") {
  const BucketNeeds asks{4096, 9999, 0, 0, 0};
  CHECK(BucketBytesFor(std::vector{asks, asks}).value() == 4096);
  const auto status = BucketBytesFor(std::vector{asks, Auto(1, kGiB)}).status();
  CHECK(status.code() == StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(MessageOf(status)), Catch::Contains("rank 1"));
}

TEST_CASE("all ranks agree on one size") {
  TempDir dir;
  Ranks ranks(3, [&](int rank, const Line&) {
    auto gloo = NewGlooCollective(Loopback(dir.path(), "job", rank, 3), Soon());
    if (!gloo.ok()) return gloo.status().ToString();
    const uint64_t row = rank == 1 ? kGiB + 1 : 64;
    const auto bytes = AgreeBucketBytes(**gloo, kAutoBucketBytes, row, Soon());
    const auto differ = AgreeBucketBytes(**gloo, rank == 2 ? 128 : 64, 1, Soon());
    return std::to_string(bytes.value_or(0)) + " " + std::to_string(differ.ok());
  });
  for (int r = 0; r < 3; ++r) CHECK(ranks.Hear(r) == std::to_string(kGiB + 64) + " 0");
}

}  // namespace
}  // namespace deltawire::testing::bucket_size_test
