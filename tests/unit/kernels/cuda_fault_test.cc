// What kernels/gpu.h does when any one of its CUDA calls fails, on the fake runtime of
// fake_cuda.cc.
#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/kernels/fake_cuda.h"
#include "tests/unit/kernels/gpu_model.h"
#include "tests/unit/kernels/gpu_scatter_model.h"

namespace deltawire::kernels::test::cuda_fault_test {
namespace {

GpuOptions Options(GpuMode mode) {
  GpuOptions options;
  options.mode = mode;
  options.slab_bytes = kMaxChunkBytes;
  options.slabs = 2;
  return options;
}

TEST_CASE("A CUDA error anywhere in a diff is reported and the next diff is right") {
  const uint64_t seed = 51;
  CAPTURE(seed);
  Random random(seed);
  for (const GpuMode mode : {GpuMode::kHostStaged, GpuMode::kResident}) {
    GpuModel model = GpuModel::Crumbs(2500, random);
    const auto all = model.AllChunks();
    std::unique_ptr<GpuDiffer> differ;
    REQUIRE(GpuDiffer::Create(Options(mode), model.key(), model.chunks(), &differ).ok());
    size_t failures = 0;
    for (int at = 0;; at += 1 + at / 8) {
      CAPTURE(static_cast<int>(mode), at);
      const GpuModel::Version next = model.Mutated(0.05, Change::kSmall, random);
      FailCudaCallIn(at);
      const GpuStatus status =
          differ->Diff(model.current().data, next.data, all, model.current().digests,
                       [](uint32_t, const EncodeResult&, Bytes) {});
      FailCudaCallIn(-1);
      if (status.ok()) break;
      ++failures;
      CHECK(status.error == GpuError::kDevice);
      CHECK(status.message.find("made to fail") != std::string::npos);
      if (failures % 3 == 1) {
        model.CheckDiff(*differ, next, all);
        model.Become(next);
      }
    }
    CHECK(failures > 10);
  }
}

TEST_CASE("A CUDA error in a diff of live bytes loses the base, which is then adopted anew") {
  const uint64_t seed = 52;
  CAPTURE(seed);
  Random random(seed);
  GpuModel model = GpuModel::Crumbs(300, random);
  const auto all = model.AllChunks();
  std::unique_ptr<GpuDiffer> differ;
  REQUIRE(GpuDiffer::Create(Options(GpuMode::kResident), model.key(), {}, &differ).ok());
  REQUIRE(differ->Add(model.chunks()).ok());
  std::vector<uint64_t> digests(all.size());
  const auto adopt = [&](const GpuModel::Version& version) {
    const GpuModel::LiveBytes live(model, version, all);
    return differ->Adopt(live.pieces, digests);
  };
  REQUIRE(adopt(model.current()).ok());
  size_t failures = 0;
  for (int at = 0;; at += 1 + at / 6) {
    CAPTURE(at);
    const GpuModel::Version next = model.Mutated(0.05, Change::kSmall, random);
    const GpuModel::LiveBytes live(model, next, all);
    const auto ignore = [](uint32_t, const EncodeResult&, Bytes) {};
    FailCudaCallIn(at);
    const GpuStatus status = differ->DiffLive(live.pieces, ignore);
    FailCudaCallIn(-1);
    if (status.ok()) break;
    ++failures;
    CHECK(status.error == GpuError::kDevice);
    CHECK(differ->DiffLive(live.pieces, ignore).error == GpuError::kArgument);
    REQUIRE(adopt(model.current()).ok());
    CHECK(digests == model.current().digests);
    model.CheckDiffLive(*differ, next, all);
    model.Become(next);
  }
  CHECK(failures > 5);
}

TEST_CASE("After a CUDA error that sticks, every call is answered by it, and nothing hangs") {
  const unsigned seed = GENERATE(1u, 2u);
  CAPTURE(seed);
  SeedCuda(seed);
  Random random(seed);
  GpuModel model = GpuModel::Crumbs(300, random);
  const auto all = model.AllChunks();
  size_t failures = 0;
  for (int at = 0;; at += 1 + at / 3) {
    CAPTURE(at);
    std::unique_ptr<GpuDiffer> differ;
    std::unique_ptr<GpuPin> pin;
    const GpuModel::Version next = model.Mutated(0.05, Change::kSmall, random);
    StickCudaErrors(true);
    FailCudaCallIn(at);
    const auto diff = [&] {
      return differ->Diff(model.current().data, next.data, all, model.current().digests,
                          [](uint32_t, const EncodeResult&, Bytes) {});
    };
    GpuStatus status =
        GpuDiffer::Create(Options(GpuMode::kResident), model.key(), model.chunks(), &differ);
    const bool made = status.ok();
    if (made) status = GpuPin::Create(next.data, &pin);
    if (status.ok()) status = diff();
    // A lack of memory does not stick.
    const bool sticks = !status.ok() && status.error == GpuError::kDevice;
    if (sticks && made) CHECK(diff().error == GpuError::kDevice);
    pin.reset();
    differ.reset();
    FailCudaCallIn(-1);
    StickCudaErrors(false);
    if (status.ok()) break;
    ++failures;
  }
  CHECK(failures > 10);
}

TEST_CASE("An error that somebody else has left behind is not reported as one of ours") {
  Random random(54);
  GpuModel model = GpuModel::Crumbs(300, random);
  const auto all = model.AllChunks();
  std::unique_ptr<GpuDiffer> differ;
  REQUIRE(
      GpuDiffer::Create(Options(GpuMode::kResident), model.key(), model.chunks(), &differ).ok());
  {
    // As of a pin whose memory was unregistered by hand, or a stranger's call in this thread.
    std::vector<std::byte> memory(4096);
    std::unique_ptr<GpuPin> pin;
    REQUIRE(GpuPin::Create(memory, &pin).ok());
    CHECK(cudaHostUnregister(memory.data()) == cudaSuccess);
    pin.reset();
    CHECK(cudaGetLastError() == cudaSuccess);  // whoever calls next does not find it either
  }
  const GpuModel::Version next = model.Mutated(0.05, Change::kSmall, random);
  model.CheckDiff(*differ, next, all);
  CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);
  model.Become(next);
  model.CheckDiff(*differ, model.Mutated(0.05, Change::kSmall, random), all);
}

TEST_CASE("A CUDA error while a differ is made leaves no memory behind") {
  Random random(52);
  const GpuModel model = GpuModel::Crumbs(10, random);
  const int before = CudaAllocations();
  std::unique_ptr<GpuDiffer> differ;
  int at = 0;
  for (;; ++at) {
    FailCudaCallIn(at);
    const GpuStatus status =
        GpuDiffer::Create(Options(GpuMode::kResident), model.key(), model.chunks(), &differ);
    FailCudaCallIn(-1);
    CAPTURE(at);
    if (status.ok()) break;
    REQUIRE(differ == nullptr);
    REQUIRE(CudaAllocations() == before);
  }
  CHECK(at > 20);
  differ.reset();
  CHECK(CudaAllocations() == before);
}

TEST_CASE("A CUDA error before a scatter is queued leaves the memory as it was") {
  Random random(53);
  ScatterModel model(2, 2, 0.05, Change::kSmall, random);
  const int before = CudaAllocations();
  std::unique_ptr<GpuScatter> scatter;
  size_t failures = 0;
  for (int at = 0;; ++at) {
    CAPTURE(at);
    FailCudaCallIn(at);
    GpuStatus status = GpuScatter::Create(0, model.boxes(), &scatter);
    if (status.ok()) status = scatter->Load(model.items());
    FailCudaCallIn(-1);
    if (status.ok()) break;
    ++failures;
    CHECK(model.Holds(0));
    scatter.reset();
    REQUIRE(CudaAllocations() == before);
  }
  CHECK(failures > 10);
  RequireGpu(scatter->Queue(false, nullptr));
  RequireGpu(scatter->Wait(nullptr));
  CHECK(model.Holds(2));
}

TEST_CASE("An update that is no larger than one before allocates nothing on the device") {
  Random random(55);
  ScatterModel model(2, 4, 0.02, Change::kSmall, random);
  std::unique_ptr<GpuScatter> scatter;
  RequireGpu(GpuScatter::Create(0, model.boxes(), &scatter));
  RequireGpu(scatter->Load(model.items()));
  const int before = CudaDeviceAllocations();
  for (size_t version = 0; version < 4; ++version) {
    RequireGpu(scatter->Load(model.items(version, 1)));
    RequireGpu(scatter->Queue(false, nullptr));
    RequireGpu(scatter->Wait(nullptr));
    REQUIRE(model.Holds(version + 1));
  }
  CHECK(CudaDeviceAllocations() == before);
}

TEST_CASE("Memory that is pinned twice stays pinned until both pins are gone") {
  std::vector<std::byte> memory(4096);
  std::unique_ptr<GpuPin> one, two;
  RequireGpu(GpuPin::Create(memory, &one));
  RequireGpu(GpuPin::Create(memory, &two));
  one.reset();
  CHECK(CudaRegistered(memory.data(), memory.size()));
  two.reset();
  CHECK(!CudaRegistered(memory.data(), memory.size()));
  RefusePinning(true);
  CHECK(GpuPin::Create(memory, &one).error == GpuError::kMemory);
  RefusePinning(false);
  RequireGpu(GpuPin::Create(memory, &one));
}

TEST_CASE("Work on one device makes no context on another") {
  const bool other_is_used = GENERATE(false, true);
  CAPTURE(other_is_used);
  OnFakeDevice other(0);  // as every thread begins
  EndCudaContexts();
  if (other_is_used) REQUIRE(cudaSetDevice(0) == cudaSuccess);
  std::vector<std::byte> from(4096, std::byte{7}), to(4096);
  {
    std::unique_ptr<GpuQueue> queue;
    RequireGpu(GpuQueue::Create(1, &queue));
    std::unique_ptr<GpuPin> pin;
    RequireGpu(queue->Pin(to, &pin));
    RequireGpu(queue->Copy(to, from));
    RequireGpu(queue->Wait());
  }
  CHECK(to == from);
  CHECK(HasCudaContext(1));
  CHECK(HasCudaContext(0) == other_is_used);
  int current = -1;
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  CHECK(current == (other_is_used ? 0 : 1));
}

TEST_CASE("A machine without a driver, and one whose driver is too old, are told apart") {
  GpuInfo info;
  PretendDriver(0);
  const GpuStatus none = FindGpu(0, &info);
  PretendDriver(11080);
  const GpuStatus old = FindGpu(0, &info);
  PretendDriver(CUDART_VERSION);
  CHECK(none.error == GpuError::kNoDevice);
  CHECK(none.message == "CUDA: this machine has no NVIDIA driver");
  CHECK(old.error == GpuError::kOldDriver);
  CHECK_THAT(old.message, Catch::Contains("knows CUDA 11.8 at most"));
  CHECK_THAT(old.message, Catch::Contains("build deltawire with nvcc 11.8"));
  // The error is not left in CUDA's record for the next call.
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(FindGpu(0, &info).ok());
}

}  // namespace
}  // namespace deltawire::kernels::test::cuda_fault_test
