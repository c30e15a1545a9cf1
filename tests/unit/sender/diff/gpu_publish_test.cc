// A publish on the GPU gives the delta and digests of one on the CPU, whatever fails in between.
#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <mutex>

#include "sender/agent/diff/publish_job.h"
#include "sender/agent/model.h"
#include "tests/unit/kernels/fake_cuda.h"
#include "tests/unit/kernels/kernel_data.h"
#include "tests/unit/sender/same_result.h"
#include "tests/unit/sender/sender_model.h"

namespace deltawire::sender::gpu_publish_test {
namespace {

using kernels::test::CudaCalls;
using kernels::test::CudaRegistrations;
using kernels::test::FailCudaCallIn;
using kernels::test::HoldPinning;
using kernels::test::PlantWrong;
using kernels::test::Random;
using kernels::test::Wrong;

/// Two halves of a small model with every element width, and the published digests of the first.
class Halves {
 public:
  explicit Halves(Random& random)
      : layout_(*Layout::Create({{"a", DType::kBF16, {700, 1000}},
                                 {"b", DType::kF32, {333}},
                                 {"c", DType::kF8E4M3, {100'001}},
                                 {"d", DType::kI64, {77}},
                                 {"same", DType::kBF16, {5000}}})),
        chunks_(*ChunkTable::Create(layout_)) {
    for (auto& half : data_) half.resize(layout_.total_bytes());
    for (std::byte& b : data_[0]) b = static_cast<std::byte>(random.Next());
    digests_ = std::make_shared<std::vector<uint64_t>>();
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      const Bytes bytes = Bytes(data_[0]).subspan(chunks_[i].offset, chunks_[i].bytes);
      digests_->push_back(kernels::Best().digest(key_, bytes));
    }
  }

  const ChunkTable& chunks() const { return chunks_; }
  const kernels::DigestKey& key() const { return key_; }
  std::vector<Bytes> spans() const { return {data_[0], data_[1]}; }

  /// Writes the next version into the inactive half, as the trainer would.
  void Write(double density, Random& random) {
    data_[1 - active_] = data_[active_];
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      const MutableBytes bytes =
          MutableBytes(data_[1 - active_]).subspan(chunks_[i].offset, chunks_[i].bytes);
      kernels::test::Mutate(bytes, chunks_[i].width, density, kernels::test::Change::kBoundary,
                            random);
    }
  }

  /// `early`: tensors that are marked as written before the end.
  PublishJob::Result Publish(GpuDiff* gpu, ThreadPool& pool,
                             const std::vector<uint32_t>& early = {},
                             decltype(PublishJob::Inputs::diffed) diffed = {}) {
    PublishJob::Inputs in;
    in.chunks = &chunks_;
    in.backend = &kernels::Best();
    in.key = &key_;
    in.active = data_[active_];
    in.inactive = data_[1 - active_];
    in.active_digests = digests_;
    in.payload_limit = uint64_t{1} << 30;
    in.gpu = gpu;
    in.diffed = std::move(diffed);
    std::vector<bool> unchanged(layout_.size());
    unchanged.back() = true;
    const auto job = std::make_shared<PublishJob>(in);
    job->MarkWritten(early, {}, pool);
    return *job->Finish({1, 1}, {1, 2}, unchanged, pool);
  }
  /// Flips a bit of a chunk in the published half.
  void Damage(uint32_t chunk) { data_[active_][chunks_[chunk].offset + 5] ^= std::byte{2}; }
  bool IsRight(const PublishJob::Result& result, uint32_t chunk) const {
    const Chunk& c = chunks_[chunk];
    const Bytes written = Bytes(data_[1 - active_]).subspan(c.offset, c.bytes);
    return (*result.digests)[chunk] == kernels::Scalar().digest(key_, written);
  }
  void Install(const PublishJob::Result& result) {
    active_ = 1 - active_;
    digests_ = result.digests;
  }

 private:
  const Layout layout_;
  const ChunkTable chunks_;
  const kernels::DigestKey key_{7};
  std::vector<std::byte> data_[2];
  size_t active_ = 0;
  std::shared_ptr<std::vector<uint64_t>> digests_;
};

TEST_CASE("a publish on the GPU is one on the CPU with and without CUDA errors") {
  const uint64_t seed = 91;
  CAPTURE(seed);
  Random random(seed);
  ThreadPool pool(2);
  for (const GpuUse use : {GpuUse::kHostStaged, GpuUse::kAuto}) {
    Halves halves(random);
    const auto gpu = GpuDiff::Create("m", use, halves.chunks(), halves.key(), halves.spans());
    REQUIRE(gpu != nullptr);
    gpu->WaitUntilPinned();  // whose calls would be counted, too
    uint64_t publishes = 0, failures = 0;
    for (const int fail_in : {-1, -1, 0, 3, 8, -1, 5, 11, 14, -1}) {
      CAPTURE(static_cast<int>(use), fail_in);
      halves.Write(fail_in == 3 ? 1.0 : 0.02, random);
      const PublishJob::Result expected = halves.Publish(nullptr, pool);
      FailCudaCallIn(fail_in);
      const PublishJob::Result found = halves.Publish(gpu.get(), pool);
      FailCudaCallIn(-1);
      CheckSame(found, expected);
      halves.Install(found);
      if (gpu->counts().failures > failures) {
        CHECK(fail_in >= 0);
        ++failures;
      } else {
        ++publishes;
      }
      CHECK(gpu->counts().publishes == publishes);
    }
    CHECK(failures >= 3);
    CHECK(publishes >= 4);
  }
}

TEST_CASE("the CPU diffs early what is marked, the GPU the rest, and each change is told once") {
  const uint64_t seed = 95;
  CAPTURE(seed);
  Random random(seed);
  ThreadPool pool(2);
  for (const GpuUse use : {GpuUse::kHostStaged, GpuUse::kAuto}) {
    for (const Wrong what : {Wrong::kNothing, Wrong::kPayload}) {
      CAPTURE(static_cast<int>(use), static_cast<int>(what));
      Halves halves(random);
      const auto gpu = GpuDiff::Create("m", use, halves.chunks(), halves.key(), halves.spans());
      REQUIRE(gpu != nullptr);
      PlantWrong(what, 1);
      for (uint32_t round = 0; round < GpuDiff::kCheckRounds; ++round) {
        CAPTURE(round);
        halves.Write(0.02, random);
        const PublishJob::Result expected = halves.Publish(nullptr, pool);
        std::mutex mu;
        std::map<uint32_t, uint64_t> told;
        bool once = true;
        const bool trusted = gpu->trusted();
        const PublishJob::Result found = halves.Publish(
            gpu.get(), pool, {round % 4}, [&](uint32_t chunk, uint64_t, uint64_t after, Bytes) {
              std::lock_guard lock(mu);
              once &= told.emplace(chunk, after).second;
            });
        CHECK(once);
        // A wrong payload that this round does not look at is found in a later one.
        if (what == Wrong::kNothing || !gpu->trusted()) CheckSame(found, expected);
        for (const ChunkDelta& entry : expected.delta->chunks()) {
          CHECK(told[entry.chunk] == entry.digest_after);
        }
        CHECK(told.size() == expected.delta->chunks().size());
        if (what == Wrong::kNothing) CHECK(trusted);
        halves.Install(found);
      }
      CHECK(gpu->trusted() == (what == Wrong::kNothing));
      PlantWrong(Wrong::kNothing, 0);
    }
  }
}

TEST_CASE("a GPU diffs while the halves are still being pinned") {
  const uint64_t seed = 96;
  CAPTURE(seed);
  Random random(seed);
  ThreadPool pool(2);
  Halves halves(random);
  HoldPinning(true);
  {
    const auto gpu =
        GpuDiff::Create("m", GpuUse::kHostStaged, halves.chunks(), halves.key(), halves.spans());
    REQUIRE(gpu != nullptr);
    halves.Write(0.02, random);
    CheckSame(halves.Publish(gpu.get(), pool), halves.Publish(nullptr, pool));
    CHECK(gpu->counts().publishes == 1);
    CHECK(CudaRegistrations() == 0);
    HoldPinning(false);
    gpu->WaitUntilPinned();
    CHECK(CudaRegistrations() == 2);
    CheckSame(halves.Publish(gpu.get(), pool), halves.Publish(nullptr, pool));
  }
  CHECK(CudaRegistrations() == 0);
}

TEST_CASE("a GPU without memory for the base still diffs") {
  const uint64_t seed = 92;
  CAPTURE(seed);
  Random random(seed);
  Halves halves(random);
  ThreadPool pool(2);
  halves.Write(0.05, random);
  const int before = CudaCalls();
  REQUIRE(kernels::GpuSelfTest(0).ok());
  // The call that asks for the base's memory comes after those of the self-test and the two calls
  // for the digest key, which allocate memory and copy the key.
  const int base_memory = CudaCalls() - before + 2;
  FailCudaCallIn(base_memory);
  const auto gpu =
      GpuDiff::Create("m", GpuUse::kAuto, halves.chunks(), halves.key(), halves.spans());
  FailCudaCallIn(-1);
  REQUIRE(gpu != nullptr);
  CheckSame(halves.Publish(gpu.get(), pool), halves.Publish(nullptr, pool));
}

TEST_CASE("a GPU that gets something wrong is found out and not asked again") {
  const uint64_t seed = 94;
  CAPTURE(seed);
  Random random(seed);
  ThreadPool pool(2);
  for (const GpuUse use : {GpuUse::kHostStaged, GpuUse::kAuto}) {
    for (const Wrong what : {Wrong::kDigest, Wrong::kPayload, Wrong::kChanged}) {
      CAPTURE(static_cast<int>(use), static_cast<int>(what));
      Halves halves(random);
      const auto gpu = GpuDiff::Create("m", use, halves.chunks(), halves.key(), halves.spans());
      REQUIRE(gpu != nullptr);
      PlantWrong(what, 1);
      uint32_t rounds = 0;
      for (; gpu->counts().mismatches == 0; ++rounds) {
        REQUIRE(rounds < GpuDiff::kCheckRounds);
        halves.Write(0.02, random);
        const PublishJob::Result expected = halves.Publish(nullptr, pool);
        const PublishJob::Result found = halves.Publish(gpu.get(), pool);
        CHECK(*found.digests == *expected.digests);
        if (gpu->counts().mismatches > 0) CheckSame(found, expected);
        halves.Install(found);
      }
      // A wrong digest shows at once: together with the digest of the new bytes it gives a digest
      // of the base that is not the published one.
      if (what == Wrong::kDigest) CHECK(rounds == 1);
      CHECK_FALSE(gpu->trusted());
      const uint64_t publishes = gpu->counts().publishes;
      halves.Write(0.02, random);
      CheckSame(halves.Publish(gpu.get(), pool), halves.Publish(nullptr, pool));
      CHECK(gpu->counts().publishes == publishes);
      CHECK(gpu->counts().mismatches == 1);
      PlantWrong(Wrong::kNothing, 0);
    }
  }
}

TEST_CASE("a model whose half is replaced goes on with the GPU but never with one that was wrong") {
  SenderModel m({.gpu = GpuUse::kHostStaged});
  REQUIRE(m.Publish(1).ok());
  REQUIRE(m.Publish(2).ok());
  CHECK(m->offloads().diff().gpu().counts().publishes == 1);
  const bool wrong = GENERATE(false, true);
  CAPTURE(wrong);
  uint64_t version = 3;
  if (wrong) {
    PlantWrong(Wrong::kDigest, 1);
    for (; m->offloads().diff().gpu().counts().mismatches == 0; ++version) {
      REQUIRE(version < 3 + GpuDiff::kCheckRounds);
      REQUIRE(m.Publish(version).ok());
    }
    PlantWrong(Wrong::kNothing, 0);
  }
  const uint64_t publishes = m->offloads().diff().gpu().counts().publishes;
  // This test keeps the half's file open, and rank 0 never says that it is done. So the half gets
  // another file.
  const auto grant = m->offloads().Begin({version, 0, 2, 0, "a", 0, "job"}, NeverGone);
  REQUIRE(grant.ok());
  const std::ifstream open(grant->half_path);
  REQUIRE(m->offloads().Abandon(grant->lease, 1, "its rank 1 gave up").ok());
  for (const uint64_t end = version + 2; version < end; ++version) {
    REQUIRE(m.Publish(version).ok());
    CHECK(m.Holds(version));
  }
  CHECK(m->offloads().diff().gpu().counts().mismatches == (wrong ? 1 : 0));
  CHECK(m->offloads().diff().gpu().counts().publishes == publishes + (wrong ? 0 : 2));
}

TEST_CASE("a half that went bad is no fault of the GPU and spoils no publish of it") {
  const uint64_t seed = 95;
  CAPTURE(seed);
  Random random(seed);
  ThreadPool pool(2);
  for (const GpuUse use : {GpuUse::kHostStaged, GpuUse::kAuto}) {
    Halves halves(random);
    const auto gpu = GpuDiff::Create("m", use, halves.chunks(), halves.key(), halves.spans());
    REQUIRE(gpu != nullptr);
    for (uint32_t round = 0; round < 4; ++round) {
      CAPTURE(static_cast<int>(use), round);
      halves.Write(0.02, random);
      halves.Damage(round);
      const PublishJob::Result found = halves.Publish(gpu.get(), pool);
      const ChunkDelta* delta = found.delta->Find(round);
      REQUIRE(delta != nullptr);
      // A resident GPU may still have the right base in its memory; otherwise the chunk goes whole.
      CHECK((delta->full || (use == GpuUse::kAuto && round > 0)));
      CHECK(halves.IsRight(found, round));
      CHECK(gpu->trusted());
      halves.Install(found);
    }
  }
}

TEST_CASE("a sender whose driver is too old for it says so, with both versions") {
  for (const int driver : {0, 11'080}) {
    CAPTURE(driver);
    kernels::test::PretendDriver(driver);
    SenderModel m({.gpu = GpuUse::kAuto});
    kernels::test::PretendDriver(CUDART_VERSION);
    const std::string says = m->offloads().diff().diffs_on();
    CAPTURE(says);
    CHECK(says.starts_with("the CPU (CUDA: "));
    CHECK((says.find("knows CUDA 11.8 at most") != std::string::npos) == (driver != 0));
    CHECK((says.find("no NVIDIA driver") != std::string::npos) == (driver == 0));
    REQUIRE(m.Publish(1).ok());
    REQUIRE(m.Publish(2).ok());
    CHECK(m.Holds(2));
  }
}

TEST_CASE("a GPU that fails the self-test is not used") {
  const auto layout = *Layout::Create({{"a", DType::kBF16, {700}}});
  const auto chunks = *ChunkTable::Create(layout);
  const kernels::DigestKey key(3);
  for (const Wrong what : {Wrong::kDigest, Wrong::kPayload, Wrong::kChanged}) {
    for (unsigned chunk = 1; chunk < 16; chunk += 2) {
      CAPTURE(static_cast<int>(what), chunk);
      PlantWrong(what, chunk);
      const bool shows = kernels::GpuSelfTest(0).ok() == false;
      const bool there = GpuDiff::Create("m", GpuUse::kAuto, chunks, key, {}) != nullptr;
      PlantWrong(Wrong::kNothing, 0);
      CHECK(shows);
      CHECK_FALSE(there);
    }
  }
  CHECK(GpuDiff::Create("m", GpuUse::kAuto, chunks, key, {}) != nullptr);
}

}  // namespace
}  // namespace deltawire::sender::gpu_publish_test
