// kernels/gpu.h against the scalar oracle, bitwise. Compiled into two programs: gpu_test runs it on
// a device, where there is one, and cuda_pipeline_test on a runtime that only pretends to be CUDA.
#include <catch2/catch.hpp>

#include "kernels/gpu.h"
#include "tests/unit/kernels/gpu_model.h"
#include "tests/unit/kernels/gpu_skips.h"

namespace deltawire::kernels::test {
namespace {

void RequireOk(const GpuStatus& status) {
  CAPTURE(status.message);
  REQUIRE(status.ok());
}

std::unique_ptr<GpuDiffer> Make(const GpuModel& model, GpuMode mode) {
  GpuOptions options;
  options.mode = mode;
  options.slab_bytes = kMaxChunkBytes;
  options.slabs = 2;
  std::unique_ptr<GpuDiffer> differ;
  RequireOk(GpuDiffer::Create(options, model.key(), model.chunks(), &differ));
  return differ;
}

constexpr GpuMode kModes[] = {GpuMode::kHostStaged, GpuMode::kResident};

TEST_CASE("GPU diffs give the oracle's payloads and digests in both modes") {
  if (NoGpu()) return;
  const uint64_t seed = 31;
  CAPTURE(seed);
  Random random(seed);
  for (const GpuMode mode : kModes) {
    GpuModel model = GpuModel::Mixed(random);
    const auto differ = Make(model, mode);
    const auto all = model.AllChunks();
    for (const double density : {0.0, 0.001, 0.02, 0.3, 1.0}) {
      for (const Change how : kChanges) {
        CAPTURE(static_cast<int>(mode), density, static_cast<int>(how));
        const GpuModel::Version next = model.Mutated(density, how, random);
        model.CheckDiff(*differ, next, all);
        model.Become(next);
      }
    }
  }
}

TEST_CASE("GPU diffs of thousands of small chunks go through many slabs") {
  if (NoGpu()) return;
  const uint64_t seed = 32;
  CAPTURE(seed);
  Random random(seed);
  for (const GpuMode mode : kModes) {
    GpuModel model = GpuModel::Crumbs(5000, random);
    const auto differ = Make(model, mode);
    for (int round = 0; round < 3; ++round) {
      CAPTURE(static_cast<int>(mode), round);
      const GpuModel::Version next = model.Mutated(0.1, Change::kAny, random);
      // The chunks come in falling order, and some are left out.
      std::vector<uint32_t> which;
      for (uint32_t i = static_cast<uint32_t>(model.chunks().size()); i-- > 0;) {
        if (i % 7 != 3 || random.Chance(0.5)) which.push_back(i);
      }
      model.CheckDiff(*differ, next, which);
      model.Become(next, which);
    }
  }
}

TEST_CASE("GPU resident bases follow rollbacks and abandoned diffs by their digests") {
  if (NoGpu()) return;
  const uint64_t seed = 33;
  CAPTURE(seed);
  Random random(seed);
  GpuModel model = GpuModel::Mixed(random);
  const auto differ = Make(model, GpuMode::kResident);
  const auto all = model.AllChunks();
  const GpuModel::Version first = model.current();
  const GpuModel::Version second = model.Mutated(0.05, Change::kSmall, random);
  const GpuModel::Version third = model.Mutated(0.05, Change::kSmall, random);
  model.CheckDiff(*differ, second, all);
  // The diff to `second` was abandoned, so the base is still `first`.
  model.CheckDiff(*differ, third, all);
  model.Become(third);
  model.CheckDiff(*differ, first, all);
  model.Become(first);
  model.CheckDiff(*differ, second, all);
}

TEST_CASE("GPU digests are the oracle's and leave a base behind") {
  if (NoGpu()) return;
  const uint64_t seed = 34;
  CAPTURE(seed);
  Random random(seed);
  for (const GpuMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    const GpuModel model = GpuModel::Mixed(random);
    const auto differ = Make(model, mode);
    const auto all = model.AllChunks();
    std::vector<uint64_t> digests(all.size());
    RequireOk(differ->Digest(model.current().bytes(), all, digests));
    CHECK(digests == model.current().digests);
    if (mode == GpuMode::kHostStaged) continue;
    std::vector<std::byte> base(model.current().data.size());
    RequireOk(differ->ReadBase(base, all));
    CHECK(model.SameChunks(base, model.current().bytes(), all));
  }
}

TEST_CASE("GPU diffs from a base of its own to bytes that lie on the device") {
  if (NoGpu()) return;
  const uint64_t seed = 41;
  CAPTURE(seed);
  Random random(seed);
  GpuModel model = GpuModel::Mixed(random);
  GpuOptions options;
  options.mode = GpuMode::kResident;
  options.slab_bytes = kMaxChunkBytes;
  options.slabs = 2;
  std::unique_ptr<GpuDiffer> differ;
  RequireOk(GpuDiffer::Create(options, model.key(), {}, &differ));
  const auto all = model.AllChunks();
  const auto ignore = [](uint32_t, const EncodeResult&, Bytes) { FAIL("nothing to encode"); };
  const GpuLive early[] = {{0, {}}};
  CHECK(differ->DiffLive(early, ignore).error == GpuError::kArgument);  // there is no chunk yet
  // A trainer's tensors come one after the other.
  const std::span chunks(model.chunks());
  for (size_t first = 0; first < chunks.size();) {
    const size_t count = std::min<size_t>(1 + random.Below(9), chunks.size() - first);
    const GpuHome home = random.Chance(0.4) ? GpuHome::kHost : GpuHome::kDevice;
    RequireOk(differ->Add(chunks.subspan(first, count), home));
    first += count;
  }
  CHECK(differ->DiffLive(early, ignore).error == GpuError::kArgument);  // it has no base
  {
    const GpuModel::LiveBytes live(model, model.current(), all);
    std::vector<uint64_t> digests(all.size());
    RequireOk(differ->Adopt(live.pieces, digests));
    CHECK(digests == model.current().digests);
  }
  for (const double density : {0.0, 0.001, 0.05, 1.0, 0.01}) {
    CAPTURE(density);
    const GpuModel::Version next = model.Mutated(density, Change::kAny, random);
    std::vector<uint32_t> which;
    for (const uint32_t i : all) {
      if (random.Chance(0.8)) which.push_back(i);
    }
    if (random.Chance(0.5)) std::reverse(which.begin(), which.end());
    model.CheckDiffLive(*differ, next, which);
    model.Become(next, which);
  }
}

TEST_CASE("GPU applies payloads as the oracle does in both modes") {
  if (NoGpu()) return;
  const uint64_t seed = 35;
  CAPTURE(seed);
  Random random(seed);
  for (const GpuMode mode : kModes) {
    GpuModel model = GpuModel::Mixed(random);
    const auto differ = Make(model, mode);
    const auto all = model.AllChunks();
    std::vector<std::byte> half = model.current().data;
    std::vector<uint64_t> digests(all.size());
    RequireOk(differ->Digest(half, all, digests));
    for (const double density : {0.0005, 0.02, 0.5, 1.0}) {
      for (const Change how : kChanges) {
        CAPTURE(static_cast<int>(mode), density, static_cast<int>(how));
        const GpuModel::Version next = model.Mutated(density, how, random);
        const auto payloads = model.Payloads(next);
        std::vector<GpuApplyItem> items = model.ApplyItems(payloads);
        RequireOk(differ->Apply(half, items));
        for (const GpuApplyItem& item : items) {
          CAPTURE(item.chunk);
          REQUIRE(item.status == DecodeStatus::kOk);
          REQUIRE(item.digest_after == next.digests[item.chunk]);
        }
        if (mode == GpuMode::kResident) RequireOk(differ->ReadBase(half, all));
        REQUIRE(model.SameChunks(half, next.bytes(), all));
        model.Become(next);
      }
    }
  }
}

TEST_CASE("GPU refuses damaged payloads and tables without touching others") {
  if (NoGpu()) return;
  const uint64_t seed = 36;
  CAPTURE(seed);
  Random random(seed);
  GpuModel model = GpuModel::Mixed(random);
  const auto differ = Make(model, GpuMode::kHostStaged);
  const GpuModel::Version next = model.Mutated(0.05, Change::kAny, random);
  auto payloads = model.Payloads(next);
  std::vector<GpuApplyItem> items = model.ApplyItems(payloads);
  REQUIRE(items.size() > 2);
  payloads[items[0].chunk][1] = std::byte{9};  // a codec that does not exist
  items[1].payload = items[1].payload.first(items[1].payload.size() - 1);
  std::vector<std::byte> half = model.current().data;
  RequireOk(differ->Apply(half, items));
  CHECK(items[0].status == DecodeStatus::kMalformed);
  CHECK(items[1].status == DecodeStatus::kTruncated);
  for (size_t i = 0; i < items.size(); ++i) {
    const std::vector<uint32_t> one = {items[i].chunk};
    CAPTURE(i);
    CHECK(model.SameChunks(half, i < 2 ? model.current().bytes() : next.bytes(), one));
  }
}

TEST_CASE("GPU strided copies give the oracle's bytes") {
  if (NoGpu()) return;
  const uint64_t seed = 37;
  CAPTURE(seed);
  Random random(seed);
  for (int round = 0; round < 60; ++round) {
    StridedCopy copy;
    copy.run_bytes = 1 + random.Below(64);
    if (random.Chance(0.6)) copy.run_bytes = size_t{1} << random.Below(8);
    copy.dims = random.Below(StridedCopy::kMaxDims + 1);
    auto src = static_cast<int64_t>(copy.run_bytes), dst = src;
    for (size_t i = copy.dims; i-- > 0;) {
      copy.counts[i] = 1 + random.Below(i < 4 ? 9 : 2);
      copy.src_strides[i] = src += static_cast<int64_t>(random.Below(3) * copy.run_bytes);
      copy.dst_strides[i] = dst;
      src *= static_cast<int64_t>(copy.counts[i]);
      dst *= static_cast<int64_t>(copy.counts[i]);
    }
    Buffer from(static_cast<size_t>(src)), wanted(static_cast<size_t>(dst));
    from.Fill(random);
    Scalar().place(copy, from, wanted);
    std::unique_ptr<GpuBuffer> device_from, device_to;
    RequireOk(GpuBuffer::Create(from.size(), &device_from));
    RequireOk(GpuBuffer::Create(wanted.size(), &device_to));
    RequireOk(GpuCopy(device_from->bytes(), from));
    RequireOk(GpuPlace({&copy, 1}, device_from->bytes(), device_to->bytes()));
    Buffer placed(wanted.size());
    RequireOk(GpuCopy(placed, device_to->bytes()));
    CAPTURE(round, copy.run_bytes, copy.dims);
    REQUIRE(Equal(placed, wanted));
  }
}

TEST_CASE("GPU conversions give the oracle's bytes") {
  if (NoGpu()) return;
  const uint64_t seed = 39;
  CAPTURE(seed);
  Random random(seed);
  static constexpr Element kNumbers[] = {Element::kBF16, Element::kF16, Element::kF32};
  for (int round = 0; round < 54; ++round) {
    const Convert convert{kNumbers[round % 3], kNumbers[round / 3 % 3],
                          static_cast<int8_t>(round / 9 % 3 - 1)};
    // The copy is a transposition that starts at an odd address every other time.
    constexpr int64_t kRows = 70, kColumns = 129;
    const auto from = static_cast<int64_t>(WidthOf(convert.from));
    const auto to = static_cast<int64_t>(WidthOf(convert.to));
    StridedCopy copy;
    copy.src_offset = round % 2;
    copy.run_bytes = static_cast<size_t>(to);
    copy.dims = 2;
    copy.counts[0] = kRows, copy.src_strides[0] = from, copy.dst_strides[0] = kColumns * to;
    copy.counts[1] = kColumns, copy.src_strides[1] = kRows * from, copy.dst_strides[1] = to;
    Buffer src(static_cast<size_t>(kRows * kColumns * from + 1));
    Buffer wanted(static_cast<size_t>(kRows * kColumns * to)), placed(wanted.size());
    src.Fill(random);
    Scalar().place_convert(copy, convert, src, wanted);
    std::unique_ptr<GpuBuffer> device_src, device_dst;
    RequireOk(GpuBuffer::Create(src.size(), &device_src));
    RequireOk(GpuBuffer::Create(wanted.size(), &device_dst));
    RequireOk(GpuCopy(device_src->bytes(), src));
    RequireOk(GpuPlace({&copy, 1}, device_src->bytes(), device_dst->bytes(), convert));
    RequireOk(GpuCopy(placed, device_dst->bytes()));
    CAPTURE(round);
    REQUIRE(Equal(placed, wanted));
  }
}

TEST_CASE("A GPU queue writes placed and converted bytes straight into pinned host memory") {
  if (NoGpu()) return;
  const uint64_t seed = 40;
  CAPTURE(seed);
  Random random(seed);
  std::unique_ptr<GpuQueue> queue;
  RequireOk(GpuQueue::Create(0, &queue));
  constexpr size_t kRows = 33, kColumns = 70, kCount = kRows * kColumns;
  Buffer src(kCount * 2), wanted(kCount * 4), placed(kCount * 4);
  src.Fill(random);
  StridedCopy copy;  // a transposition
  copy.run_bytes = 4;
  copy.dims = 2;
  copy.counts[0] = kRows, copy.src_strides[0] = 2, copy.dst_strides[0] = kColumns * 4;
  copy.counts[1] = kColumns, copy.src_strides[1] = kRows * 2, copy.dst_strides[1] = 4;
  const Convert convert{Element::kBF16, Element::kF32, 1};
  Scalar().place_convert(copy, convert, src, wanted);
  std::unique_ptr<GpuBuffer> device;
  RequireOk(GpuBuffer::Create(src.size(), &device));
  std::unique_ptr<GpuPin> pin;
  RequireOk(queue->Pin(placed, &pin));
  MutableBytes mapped;
  RequireOk(queue->Mapped(placed, &mapped));
  RequireOk(queue->Copy(device->bytes(), src));
  RequireOk(queue->Place(copy, device->bytes(), mapped, convert));
  RequireOk(queue->Wait());
  CHECK(Equal(placed, wanted));
  CHECK(queue->Copy(device->bytes(), Bytes(src).first(2)).error == GpuError::kArgument);
}

TEST_CASE("GPU memory is reported with how much of it is free") {
  if (NoGpu()) return;
  uint64_t free_bytes = 0, total = 0;
  RequireOk(GpuMemory(0, &free_bytes, &total));
  CHECK(free_bytes > 0);
  CHECK(free_bytes <= total);
}

TEST_CASE("GPU calls that make no sense are refused") {
  if (NoGpu()) return;
  Random random(38);
  const GpuModel model = GpuModel::Mixed(random);
  const auto differ = Make(model, GpuMode::kHostStaged);
  std::vector<std::byte> half = model.current().data;
  const std::vector<uint32_t> beyond = {static_cast<uint32_t>(model.chunks().size())};
  std::vector<uint64_t> digests(model.chunks().size());
  const auto ignore = [](uint32_t, const EncodeResult&, Bytes) { FAIL("nothing to encode"); };
  CHECK(differ->Diff(half, half, beyond, digests, ignore).error == GpuError::kArgument);
  const std::vector<uint32_t> last = {beyond[0] - 1};
  const Bytes shorter = Bytes(half).first(model.chunks()[last[0]].offset);
  CHECK(differ->Diff(half, shorter, last, digests, ignore).error == GpuError::kArgument);
  CHECK(differ->ReadBase(half, last).error == GpuError::kArgument);
  const GpuChunk odd[] = {{.offset = 0, .bytes = 6, .width = 4}};
  std::unique_ptr<GpuDiffer> none;
  CHECK(GpuDiffer::Create({}, model.key(), odd, &none).error == GpuError::kArgument);
}

}  // namespace
}  // namespace deltawire::kernels::test
