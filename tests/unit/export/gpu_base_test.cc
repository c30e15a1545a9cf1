// A trainer's tensors that are diffed on their GPUs, over random histories: what is handed over
// must be the scalar oracle's payloads, and lead to the trainer's bytes. On the fake CUDA runtime.
#include "sender/export/client/gpu_base.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/human.h"
#include "common/delta/delta.h"
#include "kernels/place_pieces.h"
#include "tests/unit/kernels/fake_cuda.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::gpu_base_test {
namespace {

using kernels::test::FailCudaCallIn;
using kernels::test::Lack;
using kernels::test::LackCudaMemoryIn;
using kernels::test::OnFakeDevice;
using kernels::test::PretendFreeMemory;
using kernels::test::Random;

constexpr uint64_t kRows = 300;

/// Tensors of at most so many rows. Of kRows: and sometimes a larger one.
Layout RandomLayout(Random& random, uint64_t most) {
  static constexpr DType kTypes[] = {DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kI64};
  std::vector<TensorMeta> tensors;
  const size_t count = 2 + random.Below(6);
  for (size_t t = 0; t < count; ++t) {
    const uint64_t rows = 1 + random.Below(most), columns = 1 + random.Below(400);
    tensors.push_back({fmt::format("t{}", t), kTypes[random.Below(4)], {rows, columns}});
  }
  // Several chunks, with a tail that is no multiple of anything.
  if (most >= kRows && random.Chance(0.3))
    tensors.push_back({"large", DType::kI8, {(2 << 20) + 1001}});
  return *Layout::Create(std::move(tensors));
}

/// A trainer with its tensors on two GPUs, and a sender of which only the published bytes matter.
class Rig {
 public:
  explicit Rig(Random& random, uint64_t rows = kRows)
      : random_(random),
        layout_(RandomLayout(random, rows)),
        chunks_(*ChunkTable::Create(layout_)),
        key_(layout_.fingerprint().lo),
        base(chunks_, layout_.fingerprint().lo),
        live_(layout_.total_bytes()),
        published_(layout_.total_bytes()) {
    for (std::byte& b : live_) b = static_cast<std::byte>(random.Next());
    const uint64_t devices = 1 + random.Below(2);  // a GPU's first use takes long here
    for (size_t t = 0; t < layout_.size(); ++t) {
      devices_.push_back(static_cast<int>(random.Below(devices)));
      const OnFakeDevice here(devices_[t]);
      REQUIRE(kernels::GpuBuffer::Create(layout_.bytes(t), &memory_.emplace_back()).ok());
    }
  }

  /// One step of the trainer. The tensors [0, kept) stay as they are.
  void Step(double density, size_t kept = 0) {
    for (size_t t = kept; t < layout_.size(); ++t) {
      kernels::test::Mutate(Live(t), DTypeBytes(layout_.tensor(t).dtype), density,
                            kernels::test::Change::kSmall, random_);
    }
  }
  /// Offloads a version, of which [0, carried) are declared unchanged and [.., host) written from
  /// host memory, and publishes it.
  struct Handed {
    uint64_t payloads = 0, payload_bytes = 0, whole_bytes = 0;
  };
  Handed Offload(bool publish, bool takes = true, size_t carried = 0, size_t host = 0) {
    ++version_;
    const uint64_t attempt = random_.Next() | 1;
    std::optional<Identity> from;
    if (takes && !id_.empty()) from = id_;
    base.Begin(from, version_, attempt);
    std::vector<std::byte> half(live_.size());
    for (std::byte& b : half) b = static_cast<std::byte>(random_.Next());
    Handed handed;
    for (size_t t = 0; t < layout_.size(); ++t) {
      const MutableBytes place = MutableBytes(half).subspan(layout_.offset(t), layout_.bytes(t));
      if (t < carried) {
        std::ranges::copy(Bytes(published_).subspan(layout_.offset(t), place.size()),
                          place.begin());
        base.Carry(static_cast<uint32_t>(t));
      } else if (t < host) {
        std::ranges::copy(Live(t), place.begin());
      } else {
        REQUIRE(kernels::GpuCopy(memory_[t]->bytes(), Live(t)).ok());
        uint64_t first = 0;
        if (by_halves) {
          const uint64_t width = DTypeBytes(layout_.tensor(t).dtype);
          first = layout_.bytes(t) / width / 2 * width;
          AddPiece(t, 0, first);
          Write(half, from.has_value(), handed);
        }
        AddPieces(t, first);
        if (random_.Chance(0.5)) Write(half, from.has_value(), handed);
      }
    }
    Write(half, from.has_value(), handed);
    CHECK(half == live_);
    if (!publish) return handed;
    published_ = half;
    id_.id = {1, version_};
    id_.attempt = attempt;
    return handed;
  }
  void Restore() { live_ = published_; }
  /// Flips a bit of tensor `t` wherever it lies but in the trainer's memory and on the host.
  void Flip(size_t t) {
    REQUIRE(Live(t).size() >= 64);  // none by chance
    REQUIRE(kernels::test::FlipCudaCopies(Live(t).data(), Live(t).size(),
                                          memory_[t]->bytes().data()) > 0);
  }
  size_t tensors() const { return layout_.size(); }
  uint64_t bytes() const { return layout_.total_bytes(); }
  uint64_t tensor_bytes(size_t t) const { return layout_.bytes(t); }

 private:
  MutableBytes Live(size_t t) {
    return MutableBytes(live_).subspan(layout_.offset(t), layout_.bytes(t));
  }
  void AddPiece(size_t t, uint64_t at, uint64_t bytes) {
    if (bytes == 0) return;
    DevicePiece& piece =
        pieces_.emplace_back(DevicePiece{static_cast<uint32_t>(t), devices_[t], {}});
    piece.piece.copy.src_offset = piece.piece.copy.dst_offset = static_cast<int64_t>(at);
    piece.piece.copy.run_bytes = bytes;
    piece.piece.src = memory_[t]->bytes();
  }
  /// The tensor from a byte on, in up to three pieces, which may cut its chunks.
  void AddPieces(size_t t, uint64_t at) {
    const uint64_t width = DTypeBytes(layout_.tensor(t).dtype);
    for (uint64_t left = 1 + random_.Below(3); left > 0; --left) {
      const uint64_t rest = layout_.bytes(t) - at;
      const uint64_t bytes = left == 1 ? rest : random_.Below(rest / width + 1) * width;
      AddPiece(t, at, bytes);
      at += bytes;
    }
  }
  /// Hands the pieces over, and does with them as the client and the sender do.
  void Write(MutableBytes half, bool takes, Handed& handed) {
    const std::vector<DevicePiece> pieces = std::exchange(pieces_, {});
    if (faults && random_.Chance(0.05)) FailCudaCallIn(static_cast<int>(random_.Below(60)));
    const std::vector<DiffedChunk> diffed = base.Write(pieces, half);
    FailCudaCallIn(-1);
    CHECK((takes || diffed.empty()));
    CHECK(std::ranges::is_sorted(
        diffed, {}, [](const DiffedChunk& d) { return std::pair(d.chunk, d.offset); }));
    for (const DevicePiece& p : pieces) {
      const uint64_t offset = layout_.offset(p.tensor);
      for (const auto& copy : OutsideOf(diffed, chunks_, p.tensor, p.piece.copy, {})) {
        kernels::Scalar().place(copy, Live(p.tensor),
                                half.subspan(offset, layout_.bytes(p.tensor)));
        handed.whole_bytes += kernels::CopiedBytes(copy);
      }
    }
    uint64_t end = 0;
    for (const DiffedChunk& p : diffed) {
      CAPTURE(p.chunk, p.offset, p.length);
      const Chunk& chunk = chunks_[p.chunk];
      const uint64_t at = chunk.offset + p.offset;
      REQUIRE(at >= std::exchange(end, at + p.length));
      REQUIRE(p.offset + p.length <= chunk.bytes);
      const MutableBytes to = half.subspan(at, p.length);
      const Bytes before = Bytes(published_).subspan(at, p.length);
      const Bytes now = Bytes(live_).subspan(at, p.length);
      const kernels::test::Buffer wanted =
          kernels::test::Encode(kernels::Scalar(), key_, before, now, chunk.width);
      CHECK(kernels::test::Equal(wanted, to.first(p.bytes)));
      CHECK(p.digest_after == kernels::Scalar().digest(key_, now));
      std::ranges::copy(now, to.begin());
      ++handed.payloads;
      handed.payload_bytes += p.bytes;
    }
  }

  Random& random_;
  const Layout layout_;
  const ChunkTable chunks_;
  const kernels::DigestKey key_;

 public:
  GpuBase base;
  bool faults = false;     // CUDA calls of `base` fail now and then
  bool by_halves = false;  // each tensor in two calls

 private:
  std::vector<std::byte> live_, published_;
  std::vector<DevicePiece> pieces_;  // added, and not written yet
  std::vector<int> devices_;
  std::vector<std::unique_ptr<kernels::GpuBuffer>> memory_;
  Identity id_;
  uint64_t version_ = 0;
};

TEST_CASE("GPU base: after a first version changes alone go, as the CPU would encode them") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Rig rig(random);
    CHECK(rig.base.Describe().empty());
    CHECK(rig.Offload(true).whole_bytes == rig.bytes());
    CHECK(rig.base.Describe().find("it came for the first time") != std::string::npos);
    for (int i = 0; i < 3; ++i) {
      rig.Step(0.005);
      const Rig::Handed handed = rig.Offload(true);
      CHECK(handed.payloads > 0);
      CHECK(handed.payload_bytes < rig.bytes() / 10 + 1000);
    }
    // Without a change there is nothing to hand over, and all of it if all changes.
    CHECK(rig.Offload(true).payload_bytes == 0);
    CHECK(rig.base.Describe() == "the trainer's GPU");
    rig.Step(1);
    rig.Offload(true);
  }
}

TEST_CASE("GPU base: a version that was not published costs one whole version") {
  const uint64_t seed = 21;
  CAPTURE(seed);
  Random random(seed);
  Rig rig(random);
  rig.Offload(true);
  rig.Step(0.005);
  rig.Offload(false);
  rig.Step(0.005);
  CHECK(rig.Offload(true).whole_bytes == rig.bytes());
  CHECK(rig.base.Describe().find("another version than the sender") != std::string::npos);
  rig.Step(0.005);
  CHECK(rig.Offload(true).payloads > 0);
  CHECK(rig.Offload(true, false).whole_bytes == rig.bytes());
  CHECK(rig.base.Describe().find("takes no deltas now") != std::string::npos);
  CHECK(rig.Offload(true).whole_bytes == 0);
}

TEST_CASE("GPU base: carried tensors keep their base, and those written otherwise lose it") {
  const uint64_t seed = 22;
  CAPTURE(seed);
  Random random(seed);
  Rig rig(random);
  rig.Offload(true);
  rig.Step(0.005, 1);
  rig.Offload(true, true, 1);
  rig.Step(0.005);
  CHECK(rig.Offload(true).payloads >= rig.tensors() - 1);
  rig.Step(0.005);
  rig.Offload(true, true, 0, 1);
  rig.Step(0.005);
  CHECK(rig.Offload(true).whole_bytes > 0);
}

TEST_CASE("GPU base: histories with aborted offloads, CUDA errors and rollbacks stay bit for bit") {
  for (uint64_t seed = 100; seed < 106; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Rig rig(random);
    rig.faults = random.Chance(0.5);
    for (int i = 0; i < 16; ++i) {
      const size_t carried = random.Chance(0.2) ? random.Below(rig.tensors()) : 0;
      if (i > 0 && carried == 0) rig.Step(random.Chance(0.2) ? 1 : 0.01);
      if (i > 0 && carried > 0) rig.Restore();
      if (i > 0 && carried > 0) rig.Step(0.01, carried);
      const size_t host = random.Chance(0.2) ? random.Below(rig.tensors()) : 0;
      rig.Offload(random.Chance(0.7) || i == 0, random.Chance(0.9), i > 0 ? carried : 0, host);
    }
  }
}

TEST_CASE("GPU base: a device without room for it, or with a wrong result, sends all whole") {
  const uint64_t seed = 23;
  CAPTURE(seed);
  Random random(seed);
  Rig rig(random);
  std::string why;
  SECTION("no room at all") {
    PretendFreeMemory(size_t{1} << 28);
    why = "GPU 0 has 0 B to spare, and diffs take ";
  }
  SECTION("a wrong result") {
    kernels::test::PlantWrong(kernels::test::Wrong::kPayload, 1);
    why = "the self-test's diff";
  }
  for (int i = 0; i < 3; ++i) {
    CHECK(rig.Offload(true).whole_bytes == rig.bytes());
    CHECK(rig.base.Describe().find(why) != std::string::npos);
  }
  PretendFreeMemory(0);
  kernels::test::PlantWrong(kernels::test::Wrong::kNothing, 0);
}

TEST_CASE("GPU base: without memory on the GPU it lies in host memory, and diffs are the same") {
  const uint64_t seed = GENERATE(25, 26);
  CAPTURE(seed);
  Random random(seed);
  Rig rig(random);
  const bool all = GENERATE(true, false);
  PretendFreeMemory((size_t{1} << 30) + (all ? 0 : rig.bytes() / 4));  // of 8 GiB, one stays free
  rig.Offload(true);
  for (int i = 0; i < 3; ++i) {
    rig.Step(0.005);
    const Rig::Handed handed = rig.Offload(true);
    CHECK(handed.payloads > 0);
    CHECK(handed.whole_bytes == 0);
    const std::string where = rig.base.Describe();
    CHECK(where.find("the trainer's GPU, with the base of ") == 0);
    CHECK(where.find(" in host memory (GPU ") != std::string::npos);
    if (all) CHECK(where.find(HumanBytes(rig.bytes())) != std::string::npos);
  }
  rig.Flip(rig.tensors() - 1);
  rig.Step(0.005);
  CHECK(rig.Offload(true).whole_bytes > 0);
  PretendFreeMemory(0);
}

TEST_CASE("GPU base: memory that is lacking at any allocation changes no byte of a version") {
  const auto [lack, full] = GENERATE(table<Lack, bool>({{Lack::kOnce, false},
                                                        {Lack::kDevice, false},
                                                        {Lack::kAll, false},
                                                        {Lack::kOnce, true},
                                                        {Lack::kPinned, true}}));
  CAPTURE(static_cast<int>(lack), full);
  if (full) PretendFreeMemory(size_t{1} << 30);
  int on_host = 0, whole = 0, at = 0;
  for (;; ++at) {
    CAPTURE(at);
    Random random(32);
    Rig rig(random, 40);
    LackCudaMemoryIn(at, lack);
    rig.Offload(true);
    std::string where, before;
    for (int i = 0; i < 3; ++i) {
      rig.Step(0.005);
      const Rig::Handed handed = rig.Offload(true);
      before = std::exchange(where, rig.base.Describe());
      CHECK((handed.whole_bytes > 0) == (where.find("except for") != std::string::npos));
    }
    const auto names_it = [](const std::string& text) {
      return text.find("made to fail") != std::string::npos;
    };
    CHECK(names_it(where) == names_it(before));  // so that the log says it once
    if (LackCudaMemoryIn(-1, Lack::kOnce) == 0) break;
    REQUIRE((full || where != "the trainer's GPU"));
    on_host += where.find("in host memory") != std::string::npos;
    whole += where.find("except for") != std::string::npos;
  }
  CAPTURE(on_host, whole);
  CHECK(at > 30);
  CHECK(on_host + whole >= at);
  CHECK((on_host > 0) == (full || lack == Lack::kOnce));  // which also takes memory on the GPU
  CHECK(whole > 30);
  PretendFreeMemory(0);
}

TEST_CASE("GPU base: a bit that flips in it is found by the next diff, and goes whole once") {
  const uint64_t seed = 27;
  CAPTURE(seed);
  Random random(seed);
  Rig rig(random);
  rig.Offload(true);
  for (size_t t = 0; t < rig.tensors(); ++t) {
    CAPTURE(t);
    rig.Flip(t);
    if (t % 2 == 0) rig.Step(0.005);
    const Rig::Handed handed = rig.Offload(true);
    CHECK(handed.whole_bytes > 0);
    CHECK(handed.whole_bytes <= std::min<uint64_t>(rig.tensor_bytes(t), kernels::kMaxChunkBytes));
    CHECK(rig.base.Describe().find("a GPU's base was damaged in its memory") != std::string::npos);
    rig.Step(0.005);
    CHECK(rig.Offload(true).whole_bytes == 0);
  }
  // The base of a carried tensor is read, and found, when it is diffed next.
  rig.Flip(0);
  rig.Step(0.005, 1);
  CHECK(rig.Offload(true, true, 1).whole_bytes == 0);
  rig.Step(0.005);
  CHECK(rig.Offload(true).whole_bytes > 0);
  CHECK(rig.base.Describe().find("a GPU's base was damaged in its memory") != std::string::npos);
}

TEST_CASE("GPU base: in 1,000 versions its memory does not grow after two, and goes with it") {
  const uint64_t seed = 24;
  CAPTURE(seed);
  if (GENERATE(false, true)) PretendFreeMemory((size_t{1} << 30) + 1000);
  Random random(seed);
  {
    Rig rig(random, 12);
    size_t bytes = 0;
    int allocations = 0;
    for (int i = 0; i < 1000; ++i) {
      CAPTURE(i);
      if (i % 3 != 0) rig.Step(0.01);
      rig.by_halves = i % 2 == 1;  // each tensor in two calls
      rig.Offload(i == 0 || i % 7 != 0);
      if (i == 1) {
        bytes = kernels::test::CudaBytes();
        allocations = kernels::test::CudaAllocations();
      }
      if (i > 1) REQUIRE(kernels::test::CudaBytes() == bytes);
    }
    CHECK(kernels::test::CudaAllocations() == allocations);
  }
  CHECK(kernels::test::CudaAllocations() == 0);
  PretendFreeMemory(0);
}

}  // namespace
}  // namespace deltawire::gpu_base_test
