// A sender that was told to use a GPU on a machine that may have none.
#include "sender/agent/diff/gpu_diff.h"

#include <catch2/catch.hpp>

namespace deltawire::sender::gpu_diff_test {
namespace {

TEST_CASE("without a GPU or without asking for one the CPU diffs") {
  auto layout = Layout::Create({{"w", DType::kBF16, {64}}});
  REQUIRE(layout.ok());
  auto chunks = ChunkTable::Create(*layout);
  REQUIRE(chunks.ok());
  const kernels::DigestKey key(1);
  std::vector<std::byte> half(layout->total_bytes());
  const Bytes halves[] = {half};
  CHECK(GpuDiff::Create("m", GpuUse::kOff, *chunks, key, halves) == nullptr);
  kernels::GpuInfo gpu;
  const bool there = kernels::FindGpu(0, &gpu).ok();
  for (const GpuUse use : {GpuUse::kAuto, GpuUse::kHostStaged}) {
    std::string where;
    CHECK((GpuDiff::Create("m", use, *chunks, key, halves, &where) != nullptr) == there);
    CHECK(there == (where.find("the CPU (") == std::string::npos));
  }
}

}  // namespace
}  // namespace deltawire::sender::gpu_diff_test
