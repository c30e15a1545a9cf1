// As much of the gather over NCCL as runs without two devices: where NCCL cannot work, every rank
// gets an error. Transfers are not run here.
#include <catch2/catch.hpp>
#include <utility>

#include "sender/export/gather/nccl_collective.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/export/ranks.h"

namespace deltawire::testing::nccl_test {
namespace {

TEST_CASE("without NCCL or a device, every rank gets the reason") {
  TempDir dir;
  // No machine has a device of this number.
  Ranks ranks(2, [&](int rank, const Line&) -> std::string {
    auto control = NewGlooCollective(Loopback(dir.path(), "job", rank, 2), Soon());
    if (!control.ok()) return control.status().ToString();
    return NewNcclCollective(std::move(*control), 1'000'000, Soon()).status().ToString();
  });
  for (int r = 0; r < 2; ++r) {
    CAPTURE(r);
    const std::string said = ranks.Hear(r);
    CHECK_THAT(said, Catch::Contains("CUDA") || Catch::Contains("built without NCCL"));
    CHECK_THAT(said, !Catch::StartsWith("OK"));
  }
}

}  // namespace
}  // namespace deltawire::testing::nccl_test
