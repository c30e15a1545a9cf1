// An engine's memory on a GPU beside a real receiver's directory, on a runtime that only pretends
// to be CUDA's: adopted, updated by deltas and by whole chunks, rolled back, checked, and healed.
#include "receiver/engine_client/device_memory.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/engine_client/engine_pair.h"
#include "tests/unit/kernels/fake_cuda.h"

namespace deltawire::engine::device_memory_test {
namespace {

using kernels::GpuBuffer;
using kernels::GpuCopy;
using receiver::FakeAgent;

void RequireOk(const kernels::GpuStatus& status) {
  CAPTURE(status.message);
  REQUIRE(status.ok());
}

/// A pair whose engine has its memory on a device; `engine.memory` is a copy that Look renews.
struct DevicePair : Pair {
  explicit DevicePair(uint32_t device = 0) {
    const kernels::test::OnFakeDevice here(static_cast<int>(device));
    for (const auto& memory : engine.memory) {
      RequireOk(GpuBuffer::Create(memory.size(), &buffers.emplace_back()));
      RequireOk(GpuCopy(buffers.back()->bytes(), memory));
    }
    binding = engine.binding();
    for (size_t s = 0; s < buffers.size(); ++s) binding.memory[s] = buffers[s]->bytes().data();
    binding.device = static_cast<int>(device);
    REQUIRE(weights->Bind(binding) == absl::OkStatus());
    const auto adopted = weights->Adopt();
    CAPTURE(adopted.status());
    REQUIRE(adopted.ok());
    REQUIRE(adopted->different.empty());
    REQUIRE(adopted->bytes == 1000 + 1000 + 1000 + 400 + 1000 + 100);
  }
  void Look() {
    for (size_t s = 0; s < buffers.size(); ++s) {
      RequireOk(GpuCopy(engine.memory[s], buffers[s]->bytes()));
    }
  }
  bool Holds(const FakeAgent::Chunks& chunks) {
    Look();
    return engine.Holds(chunks);
  }
  /// Another byte in the device's memory.
  void Flip(size_t storage, size_t byte) {
    Look();
    engine.memory[storage][byte] ^= std::byte{1};
    RequireOk(GpuCopy(buffers[storage]->bytes(), engine.memory[storage]));
  }

  std::vector<std::unique_ptr<GpuBuffer>> buffers;
  Binding binding;
};

TEST_CASE("engine weights on a GPU: deltas reach every place, and are taken back") {
  const uint32_t device = GENERATE(0u, 1u);
  CAPTURE(device);
  DevicePair p(device);
  FollowDeltas(p, 19);
}

TEST_CASE("engine weights on a GPU: a chain of deltas goes forth and back at once") {
  DevicePair p;
  const auto first = p.now;
  for (uint64_t v = 2; v < 12; ++v) p.Publish(FakeAgent::Step(p.now, v));
  CHECK(p.Update().deltas == 10);
  REQUIRE(p.Holds(p.now));
  p.weights->Discard();
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  CHECK(p.Holds(first));
}

TEST_CASE("engine weights on a GPU: chunks that come whole are exchanged") {
  DevicePair p;
  const auto first = p.now;
  p.Publish(FakeAgent::Make(p.rig.layout, 77), true);
  CHECK(p.Update().chunks_whole == 6);
  REQUIRE(p.Holds(p.now));
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  CHECK(p.Holds(first));
}

TEST_CASE("engine weights on a GPU: other memory is named, and drift is found and healed") {
  DevicePair p;
  p.Flip(2, 104);  // one of the engine's columns of t3
  const auto other = p.weights->Adopt();
  REQUIRE(other.ok());
  CHECK(other->different == std::vector<std::string>{"t3"});
  p.Flip(2, 104);
  REQUIRE(p.weights->Adopt().ok());
  p.Flip(1, 1000);  // of t4, which the engine has whole
  const auto checked = p.weights->Check();
  REQUIRE(checked.ok());
  CHECK(checked->different == std::vector<std::string>{"t4"});
  CHECK(p.Update().chunks_healed == 1);
  CHECK(p.Holds(p.now));
}

TEST_CASE(
    "engine weights on a GPU: an error before the write leaves the memory, one in it ends it") {
  DevicePair p;
  const auto first = p.now;
  p.Publish(FakeAgent::Make(p.rig.layout, 77), true);
  p.Publish(FakeAgent::Step(p.now, 3));
  const auto fails = [](int call, const auto& step) {
    kernels::test::FailCudaCallIn(call);
    const bool failed = !step().ok();
    kernels::test::FailCudaCallIn(-1);
    return failed;
  };
  for (int call = 0; fails(call, [&] { return p.weights->Prepare(); }); ++call) {
    CAPTURE(call);
    REQUIRE(call < 100);
    REQUIRE(p.Holds(first));
    CHECK(p.weights->Apply().code() == StatusCode::kFailedPrecondition);
  }
  CHECK(fails(2, [&] { return p.weights->Apply(); }));
  CHECK(p.weights->held().empty());
  CHECK(p.weights->Prepare().status().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("engine weights on a GPU: what cannot be bound is refused, and nothing stays bound") {
  DevicePair p;
  p.Publish(FakeAgent::Step(p.now, 2));
  p.Update();
  p.Publish(FakeAgent::Step(p.now, 3));
  REQUIRE(p.weights->Prepare().ok());
  p.binding.device = 7;
  CHECK(!p.weights->Bind(p.binding).ok());
  // Neither what was prepared for the memory before nor what was applied to it is left.
  CHECK(p.weights->Apply().code() == StatusCode::kFailedPrecondition);
  CHECK(p.weights->Rollback().code() == StatusCode::kFailedPrecondition);
  CHECK(p.weights->storages() == 0);
  CHECK(!p.weights->Adopt().ok());
  p.binding.device = 0;
  kernels::test::RefusePinning(true);
  CHECK(!p.weights->Bind(p.binding).ok());
  kernels::test::RefusePinning(false);
  REQUIRE(p.weights->Bind(p.binding) == absl::OkStatus());
  CHECK_FALSE(p.weights->Adopt()->different.empty());  // it is at version 2, the buffer at 3
  p.engine.Load(p.now);
  for (size_t s = 0; s < p.buffers.size(); ++s) {
    RequireOk(GpuCopy(p.buffers[s]->bytes(), p.engine.memory[s]));
  }
  CHECK(p.weights->Adopt()->different.empty());
}

}  // namespace
}  // namespace deltawire::engine::device_memory_test
