// kernels/gpu_scatter.h against the scalar oracle, bitwise. Compiled into two programs: gpu_test
// runs it on a device, where there is one, and cuda_pipeline_test on a runtime that only pretends.
#include <catch2/catch.hpp>

#include "tests/unit/kernels/gpu_scatter_model.h"
#include "tests/unit/kernels/gpu_skips.h"

namespace deltawire::kernels::test {
namespace {

TEST_CASE("GPU scatter adds chains of deltas at all places and takes them back") {
  if (NoGpu()) return;
  const uint64_t seed = 61;
  CAPTURE(seed);
  Random random(seed);
  for (const unsigned width : kWidths) {
    for (const double density : {0.001, 0.05, 0.6, 1.0}) {
      for (const Change how : kChanges) {
        CAPTURE(width, density, static_cast<int>(how));
        ScatterModel model(width, 3, density, how, random);
        std::unique_ptr<GpuScatter> scatter;
        RequireGpu(GpuScatter::Create(0, model.boxes(), &scatter));
        RequireGpu(scatter->Load(model.items()));
        REQUIRE(model.Holds(0));
        RequireGpu(scatter->Queue(false, nullptr));
        RequireGpu(scatter->Wait(nullptr));
        REQUIRE(model.Holds(3));
        RequireGpu(scatter->Queue(true, nullptr));
        RequireGpu(scatter->Wait(nullptr));
        REQUIRE(model.Holds(0));
      }
    }
  }
}

TEST_CASE("GPU scatter takes one update after the other") {
  if (NoGpu()) return;
  const uint64_t seed = 62;
  CAPTURE(seed);
  Random random(seed);
  ScatterModel model(2, 4, 0.02, Change::kSmall, random);
  std::unique_ptr<GpuScatter> scatter;
  RequireGpu(GpuScatter::Create(0, model.boxes(), &scatter));
  for (size_t version = 0; version < 4; ++version) {
    RequireGpu(scatter->Load(model.items(version, 1)));
    RequireGpu(scatter->Queue(false, nullptr));
    RequireGpu(scatter->Wait(nullptr));
    REQUIRE(model.Holds(version + 1));
  }
  RequireGpu(scatter->Load({}));
  RequireGpu(scatter->Queue(false, nullptr));
  RequireGpu(scatter->Wait(nullptr));
  REQUIRE(model.Holds(4));
}

TEST_CASE("GPU scatter refuses what it could not carry out, before it writes") {
  if (NoGpu()) return;
  Random random(63);
  ScatterModel model(2, 1, 0.1, Change::kAny, random);
  std::unique_ptr<GpuScatter> scatter;
  RequireGpu(GpuScatter::Create(0, model.boxes(), &scatter));
  const std::vector<GpuScatterItem> sound = model.items();
  std::vector<GpuScatterItem> items = sound;
  items.back().boxes = static_cast<uint32_t>(model.boxes().size()) + 1;
  CHECK(scatter->Load(items).error == GpuError::kArgument);
  items = sound;
  items[0].bytes -= 1;
  CHECK(scatter->Load(items).error == GpuError::kArgument);
  items = sound;
  const Bytes cut[] = {items[0].payloads[0].first(items[0].payloads[0].size() / 2)};
  items[0].payloads = cut;
  CHECK(scatter->Load(items).error == GpuError::kArgument);
  // What was loaded before is gone, so nothing of it is written by mistake.
  RequireGpu(scatter->Queue(false, nullptr));
  RequireGpu(scatter->Wait(nullptr));
  CHECK(model.Holds(0));

  GpuBox crooked = model.boxes()[0];
  crooked.copy.dims = 2;
  crooked.copy.counts[0] = crooked.copy.counts[1] = 2;
  crooked.copy.src_strides[0] = crooked.copy.src_strides[1] = 2;
  std::unique_ptr<GpuScatter> none;
  CHECK(GpuScatter::Create(0, std::span(&crooked, 1), &none).error == GpuError::kArgument);
}

}  // namespace
}  // namespace deltawire::kernels::test
