// Shards on a device and behind callbacks must become the same bits as the CPU makes by the same
// plan. Compiled with the fake CUDA runtime, whose device memory only queued work can touch.
#include "sender/export/device/device_place.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/place_pieces.h"
#include "tests/unit/export/device_rank.h"
#include "tests/unit/kernels/fake_cuda.h"

namespace deltawire::testing::device_place_test {
namespace {

using kernels::test::CudaAllocations;
using kernels::test::CudaPlacements;
using kernels::test::CudaRegistrations;
using kernels::test::FailCudaCallIn;
using kernels::test::RefuseMapping;
using kernels::test::RefusePinning;
using mcore::testing::TextOf;

/// A half, mapped as the trainer's client keeps it. Its tensors begin behind a header.
struct Half {
  static constexpr size_t kHeader = 128;
  std::shared_ptr<std::vector<std::byte>> memory;
  HalfMemory half;

  explicit Half(const Rank& rank)
      : memory(std::make_shared<std::vector<std::byte>>(
            kHeader + rank.planned.plan.layout().total_bytes(), std::byte{0x5a})) {
    half.tensor = [this, &rank](uint32_t t) { return rank.Tensor(data(), t); };
    half.mapped = {*memory, memory};
  }
  Half(const Half&) = delete;
  MutableBytes data() const { return MutableBytes(*memory).subspan(kHeader); }
  bool Holds(const std::vector<std::byte>& wanted) const {
    return std::equal(wanted.begin(), wanted.end(), data().begin());
  }
  void Clear() { std::fill(memory->begin(), memory->end(), std::byte{0x5a}); }
};

/// Takes back at the end of a case what it has set in the fake runtime.
struct Knobs {
  ~Knobs() {
    FailCudaCallIn(-1);
    RefusePinning(false);
    RefuseMapping(false);
  }
};

constexpr uint64_t kSeed = 71;

TEST_CASE("a device writes its shards straight into the pinned half, converted or not") {
  const char* dtype = GENERATE("bfloat16", "float32");
  const char* parallel = GENERATE("tp=1", "tp=2,pp=1", "tp=2,ep=2,etp=1,experts=sequential");
  CAPTURE(dtype, parallel, kSeed);
  Rank rank(dtype, parallel, 0, kSeed);
  rank.PutAll(Kind::kDevice);
  Half a(rank), b(rank);
  DevicePlace place;
  const std::vector<std::byte> wanted = rank.Wanted();
  for (int version = 0; version < 4; ++version) {
    Half& half = version % 2 == 0 ? a : b;
    half.Clear();
    const int placements = CudaPlacements();
    const auto stats = rank.Run(place, half.half);
    INFO(TextOf(stats));
    REQUIRE(stats.ok());
    CHECK(stats->why_staged.empty());
    CHECK(stats->staged_bytes == 0);
    CHECK(stats->direct_bytes > 0);
    CHECK(CudaPlacements() > placements);
    CHECK(half.Holds(wanted));
    CHECK(std::all_of(half.memory->begin(), half.memory->begin() + Half::kHeader,
                      [](std::byte v) { return v == std::byte{0x5a}; }));
    // Each half is pinned once, and stays pinned.
    CHECK(CudaRegistrations() == (version == 0 ? 1 : 2));
  }
}

TEST_CASE("each shard is written by the device that it lies on, into a half that is pinned once") {
  Rank rank("float32", "tp=2,ep=2,etp=1", 0, kSeed);
  for (size_t i = 0; i < rank.live.size(); ++i) rank.Put(i, Kind::kDevice, static_cast<int>(i % 2));
  Half half(rank);
  DevicePlace place;
  for (int version = 0; version < 2; ++version) {
    half.Clear();
    const auto stats = rank.Run(place, half.half);
    INFO(TextOf(stats));
    REQUIRE(stats.ok());
    CHECK(stats->why_staged.empty());
    CHECK(stats->staged_bytes == 0);
    CHECK(half.Holds(rank.Wanted()));
    CHECK(CudaRegistrations() == 1);
  }
}

TEST_CASE("shards are reported while later ones are still on their way") {
  Rank rank("float32", "tp=2,ep=2,etp=1", 0, kSeed);
  rank.PutAll(Kind::kDevice);
  Half half(rank);
  const std::vector<std::byte> wanted = rank.Wanted();
  const int before = CudaPlacements();
  int at_first = -1, reports = 0;
  bool in_place = true;
  half.half.placed = [&](const mcore::Step& step) {
    if (reports++ == 0) at_first = CudaPlacements() - before;
    // Each of a float32 tensor's rows that the step writes holds its bytes by now.
    const uint64_t first = rank.planned.plan.layout().offset(step.tensor) +
                           static_cast<uint64_t>(step.copy.dst_offset);
    in_place &= std::equal(wanted.begin() + static_cast<ptrdiff_t>(first),
                           wanted.begin() + static_cast<ptrdiff_t>(first + step.copy.run_bytes),
                           half.data().begin() + static_cast<ptrdiff_t>(first));
  };
  DevicePlace place(64 << 20, 1);  // every shard is a batch
  const auto stats = rank.Run(place, half.half);
  INFO(TextOf(stats));
  REQUIRE(stats.ok());
  CHECK(stats->why_staged.empty());
  CHECK(reports > 3);
  CHECK(in_place);
  CHECK(at_first > 0);
  CHECK(at_first < CudaPlacements() - before);
  CHECK(half.Holds(wanted));
}

TEST_CASE("a half that is no longer mapped does not stay pinned") {
  Rank rank("bfloat16", "tp=1", 0, kSeed);
  rank.PutAll(Kind::kDevice);
  DevicePlace place;
  auto old = std::make_unique<Half>(rank);
  REQUIRE(rank.Run(place, old->half).ok());
  const std::weak_ptr<void> dropped = old->memory;
  old.reset();
  Half fresh(rank);
  REQUIRE(rank.Run(place, fresh.half).ok());
  CHECK(dropped.expired());
  CHECK(CudaRegistrations() == 1);
  CHECK(fresh.Holds(rank.Wanted()));
}

TEST_CASE(
    "memory is unpinned before it is freed: of halves in any order, and of buckets that grow") {
  Rank rank("bfloat16", "tp=1", 0, kSeed);
  rank.PutAll(Kind::kDevice);
  bool pinned_when_freed = false;
  DevicePlace place;
  auto unused = std::make_unique<Half>(rank);
  Half used(rank);
  // Frees as the trainer's client unmaps a half: when nobody has it any more.
  const Bytes bytes = *unused->memory;
  unused->half.mapped.mapping =
      std::shared_ptr<const void>(unused->memory.get(), [&, keep = unused->memory](const void*) {
        pinned_when_freed = kernels::test::CudaRegistered(bytes.data(), bytes.size());
      });
  REQUIRE(rank.Run(place, unused->half).ok());
  REQUIRE(rank.Run(place, used.half).ok());
  REQUIRE(CudaRegistrations() == 2);
  unused.reset();
  REQUIRE(rank.Run(place, used.half).ok());
  CHECK(CudaRegistrations() == 1);
  CHECK_FALSE(pinned_when_freed);
  // The fake runtime reads what is unpinned. Blocks of this size are unmapped when they are freed.
  const Knobs knobs;
  DevicePlace staged;
  for (const uint64_t vocabulary : {8'192, 16'384}) {
    Rank large("bfloat16", "tp=1", 0, kSeed, vocabulary);
    large.PutAll(Kind::kDevice);
    Half half(large);
    half.half.mapped.mapping = nullptr;  // as where the agent owns a part
    REQUIRE(large.Run(staged, half.half).ok());
    CHECK(half.Holds(large.Wanted()));
  }
}

TEST_CASE("where the half cannot be pinned or reached, shards go over two buckets of whole rows") {
  const Knobs knobs;
  const int why = GENERATE(0, 1, 2);
  const char* dtype = GENERATE("bfloat16", "float32");
  const uint64_t bucket = GENERATE(64, 1000, 4096, 1 << 20);
  CAPTURE(why, dtype, bucket, kSeed);
  Rank rank(dtype, "tp=2,ep=2,etp=1", 1, kSeed);
  rank.PutAll(Kind::kDevice);
  Half half(rank);
  if (why == 0) RefusePinning(true);
  if (why == 1) RefuseMapping(true);
  if (why == 2) half.half.mapped.mapping = nullptr;  // as where the agent owns a part
  DevicePlace place(bucket);
  const int placements = CudaPlacements();
  const std::vector<std::byte> wanted = rank.Wanted();
  for (int version = 0; version < 2; ++version) {
    half.Clear();
    const auto stats = rank.Run(place, half.half);
    INFO(TextOf(stats));
    REQUIRE(stats.ok());
    CHECK_FALSE(stats->why_staged.empty());
    CHECK(stats->direct_bytes == 0);
    CHECK(stats->staged_bytes > 0);
    // The largest row has 160 bytes, and a bucket holds at least one row.
    CHECK(stats->bucket_bytes <= 2 * std::max<uint64_t>(bucket, 160));
    CHECK((bucket > 4096 || stats->buckets > 2));
    CHECK(half.Holds(wanted));
    CHECK(CudaPlacements() == placements);
  }
  if (why == 2) CHECK(CudaRegistrations() <= 2);  // only the buckets are pinned
}

TEST_CASE("callbacks are asked for rows that fit a bucket, and mix with devices and the host") {
  Rank rank("float32", "tp=2,ep=2,etp=1", 0, kSeed);
  for (size_t i = 0; i < rank.live.size(); ++i) rank.Put(i, static_cast<Kind>(i % 3));
  constexpr uint64_t kBucket = 512;
  DevicePlace place(kBucket);
  Half half(rank);
  mcore::Transfer host;
  for (const mcore::Match& m : rank.matches) {
    if (!m.shard.writes || !rank.live[m.live].on_host()) continue;
    host.Add(
        Get(StepsOf(rank.planned.plan, m.shard, DType::kBF16, m.split, mcore::Direction::kToHf)),
        rank.bytes[m.live]);
  }
  host.Run(mcore::Direction::kToHf, half.half.tensor, rank.pool);
  const auto stats = rank.Run(place, half.half);
  INFO(TextOf(stats));
  REQUIRE(stats.ok());
  CHECK(stats->why_staged.empty());
  CHECK(stats->direct_bytes > 0);
  CHECK(stats->staged_bytes > 0);
  CHECK(rank.reads > 0);
  CHECK(rank.largest_read <= kBucket);
  CHECK(rank.LargestShard() > kBucket);
  CHECK(half.Holds(rank.Wanted()));
}

TEST_CASE(
    "a CUDA error anywhere leaves the right bytes or an error, and the next version is right") {
  const Knobs knobs;
  const bool direct = GENERATE(true, false);
  CAPTURE(direct, kSeed);
  Rank rank("float32", "tp=2,ep=2,etp=1", 0, kSeed);
  rank.PutAll(Kind::kDevice);
  const std::vector<std::byte> wanted = rank.Wanted();
  const int before = CudaAllocations();
  int fell_back = 0, errors = 0, at = 0;
  uint64_t all_bytes = 0;
  for (bool reached = false; !reached; at += 1 + at / 6) {
    CAPTURE(at);
    Half half(rank);
    if (!direct) half.half.mapped.mapping = nullptr;
    DevicePlace place(1024, 4096);
    uint64_t reported = 0;
    half.half.placed = [&](const mcore::Step& step) {
      reported += kernels::CopiedBytes(step.copy);
    };
    FailCudaCallIn(at);
    const auto stats = rank.Run(place, half.half);
    // Each byte is reported once, also where some were before the error.
    if (stats.ok() && all_bytes == 0) all_bytes = reported;
    if (stats.ok()) CHECK(reported == all_bytes);
    half.half.placed = {};
    // A failure that the first run did not reach would come in this one.
    reached = rank.Run(place, half.half).ok() && stats.ok() && at > 400;
    FailCudaCallIn(-1);
    if (stats.ok()) {
      REQUIRE(half.Holds(wanted));
      fell_back += direct && !stats->why_staged.empty();
    } else {
      ++errors;
      CHECK_THAT(TextOf(stats), Catch::Contains("CUDA: "));
    }
    half.Clear();
    const auto next = rank.Run(place, half.half);
    INFO(TextOf(next));
    REQUIRE(next.ok());
    REQUIRE(half.Holds(wanted));
  }
  CHECK((direct ? fell_back : errors) > 5);
  CHECK(CudaAllocations() == before);
  CHECK(CudaRegistrations() == 0);
}

/// A tensor of kRows x kColumns bf16 numbers on the fake device.
struct OnDevice {
  static constexpr uint64_t kRows = 6, kColumns = 10;
  std::vector<std::byte> bytes = std::vector<std::byte>(kRows * kColumns * 2);
  std::unique_ptr<kernels::GpuBuffer> buffer;

  explicit OnDevice(uint64_t seed, int number = 0) {
    const kernels::test::OnFakeDevice there(number);
    std::mt19937_64 random(seed);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    REQUIRE(kernels::GpuBuffer::Create(bytes.size(), &buffer).ok());
    REQUIRE(kernels::GpuCopy(buffer->bytes(), bytes).ok());
  }
};

/// The copy that writes an OnDevice's transpose to the beginning of some memory.
kernels::StridedCopy Transposed() {
  kernels::StridedCopy copy;
  copy.run_bytes = 2;
  copy.dims = 2;
  copy.counts[0] = OnDevice::kColumns, copy.counts[1] = OnDevice::kRows;
  copy.src_strides[0] = 2, copy.src_strides[1] = OnDevice::kColumns * 2;
  copy.dst_strides[0] = OnDevice::kRows * 2, copy.dst_strides[1] = 2;
  return copy;
}

Status PlaceOne(DeviceQueues& queues, int device, const kernels::StridedCopy& copy, Bytes source,
                MutableBytes to, const MappedHalf& half) {
  return queues.Place(device, {{copy, source, to}}, half);
}

TEST_CASE("a block on a device is written by the device into the half, which is pinned once") {
  const OnDevice source(kSeed);
  std::vector<std::byte> wanted(source.bytes.size());
  kernels::Scalar().place(Transposed(), source.bytes, wanted);
  constexpr size_t kBefore = 32, kAfter = 64;
  auto memory = std::make_shared<std::vector<std::byte>>(kBefore + wanted.size() + kAfter);
  const MutableBytes to = MutableBytes(*memory).subspan(kBefore, wanted.size());
  DeviceQueues queues;
  const int placements = CudaPlacements();
  for (int version = 0; version < 3; ++version) {
    std::ranges::fill(*memory, std::byte{0x5a});
    const Status placed =
        PlaceOne(queues, 0, Transposed(), source.buffer->bytes(), to, {*memory, memory});
    REQUIRE(placed == absl::OkStatus());
    CHECK(std::ranges::equal(to, wanted));
    CHECK(std::ranges::count(*memory, std::byte{0x5a}) >=
          static_cast<std::ptrdiff_t>(kBefore + kAfter));
    CHECK(CudaRegistrations() == 1);
  }
  CHECK(CudaPlacements() == placements + 3);
  // When a half is no longer mapped, it does not stay pinned.
  auto fresh = std::make_shared<std::vector<std::byte>>(wanted.size());
  memory.reset();
  REQUIRE(PlaceOne(queues, 0, Transposed(), source.buffer->bytes(), *fresh, {*fresh, fresh}).ok());
  CHECK(CudaRegistrations() == 1);
}

TEST_CASE("a rank pins the parts of a half that it writes, and a block may lie in several") {
  constexpr size_t kPart = 64;
  const OnDevice source(kSeed);
  const size_t bytes = source.bytes.size();  // two parts less some bytes
  auto memory = std::make_shared<std::vector<std::byte>>(20 * kPart, std::byte{0x5a});
  const MappedHalf half{*memory, memory};
  DeviceQueues queues(kPart);
  kernels::StridedCopy plain;
  plain.run_bytes = bytes;
  int pinned = 0;
  for (const bool transposed : {false, true}) {
    for (const size_t at : {5 * kPart - 10, 12 * kPart + 2}) {
      CAPTURE(transposed, at);
      const kernels::StridedCopy copy = transposed ? Transposed() : plain;
      std::vector<std::byte> wanted(memory->size(), std::byte{0x5a});
      kernels::Scalar().place(copy, source.bytes, MutableBytes(wanted).subspan(at, bytes));
      std::ranges::fill(*memory, std::byte{0x5a});
      const MutableBytes to = MutableBytes(*memory).subspan(at, bytes);
      REQUIRE(PlaceOne(queues, 0, copy, source.buffer->bytes(), to, half) == absl::OkStatus());
      CHECK(*memory == wanted);
      if (!transposed) pinned += static_cast<int>((at + bytes - 1) / kPart - at / kPart + 1);
      CHECK(CudaRegistrations() == pinned);
    }
  }
}

TEST_CASE("where one part of a half cannot be pinned, no other part stays pinned") {
  constexpr size_t kPart = 64;
  const OnDevice source(kSeed);
  const size_t bytes = source.bytes.size();
  auto memory = std::make_shared<std::vector<std::byte>>(20 * kPart);
  const MappedHalf half{*memory, memory};
  DeviceQueues queues(kPart);
  kernels::StridedCopy plain;
  plain.run_bytes = bytes;
  const auto place = [&](size_t at) {
    return PlaceOne(queues, 0, plain, source.buffer->bytes(),
                    MutableBytes(*memory).subspan(at, bytes), half);
  };
  REQUIRE(place(0).ok());
  CHECK(CudaRegistrations() > 0);
  RefusePinning(true);
  CHECK_FALSE(place(10 * kPart).ok());
  RefusePinning(false);
  CHECK(CudaRegistrations() == 0);
  CHECK_FALSE(place(0).ok());
}

TEST_CASE("blocks of a plain or FSDP2 offload are written by the devices that they lie on") {
  const OnDevice first(kSeed, 0), second(kSeed + 1, 1);
  const size_t bytes = first.bytes.size();
  std::vector<std::byte> wanted(2 * bytes);
  kernels::Scalar().place(Transposed(), first.bytes, MutableBytes(wanted).first(bytes));
  kernels::Scalar().place(Transposed(), second.bytes, MutableBytes(wanted).last(bytes));
  auto memory = std::make_shared<std::vector<std::byte>>(wanted.size());
  const MutableBytes to(*memory);
  const MappedHalf half{*memory, memory};
  DeviceQueues queues;
  for (int version = 0; version < 2; ++version) {
    std::ranges::fill(*memory, std::byte{0x5a});
    REQUIRE(PlaceOne(queues, 1, Transposed(), second.buffer->bytes(), to.last(bytes), half).ok());
    REQUIRE(PlaceOne(queues, 0, Transposed(), first.buffer->bytes(), to.first(bytes), half).ok());
    CHECK(*memory == wanted);
    CHECK(CudaRegistrations() == 1);
  }
  CHECK_FALSE(PlaceOne(queues, 2, Transposed(), first.buffer->bytes(), to.first(bytes), half).ok());
}

TEST_CASE("a block whose half cannot be pinned or reached is an error, and nothing is written") {
  const Knobs knobs;
  const int why = GENERATE(0, 1, 2);
  const OnDevice source(kSeed);
  auto memory = std::make_shared<std::vector<std::byte>>(source.bytes.size(), std::byte{0x5a});
  MappedHalf half{*memory, memory};
  if (why == 0) RefusePinning(true);
  if (why == 1) RefuseMapping(true);
  if (why == 2) half.mapping = nullptr;  // as where the agent owns a part
  DeviceQueues queues;
  for (int version = 0; version < 2; ++version) {
    const Status placed =
        PlaceOne(queues, 0, Transposed(), source.buffer->bytes(), half.bytes, half);
    REQUIRE_FALSE(placed.ok());
    CHECK_FALSE(MessageOf(placed).empty());
    CHECK(std::ranges::count(*memory, std::byte{0x5a}) ==
          static_cast<std::ptrdiff_t>(memory->size()));
  }
  if (why != 2) return;
  // The copy engine reaches memory that is not pinned.
  kernels::StridedCopy plain;
  plain.run_bytes = source.bytes.size();
  REQUIRE(PlaceOne(queues, 0, plain, source.buffer->bytes(), half.bytes, half).ok());
  CHECK(*memory == source.bytes);
}

TEST_CASE("a callback's error names the parameter") {
  Rank rank("bfloat16", "tp=1", 0, kSeed);
  rank.PutAll(Kind::kCallback);
  rank.fail_read = 7;
  DevicePlace place(1024);
  Half half(rank);
  const auto stats = rank.Run(place, half.half);
  REQUIRE_FALSE(stats.ok());
  CHECK(stats.status().code() == StatusCode::kDataLoss);
  CHECK_THAT(TextOf(stats), Catch::Contains("the trainer's copy failed") &&
                                (Catch::Contains("weight") || Catch::Contains("bias")));
}

}  // namespace
}  // namespace deltawire::testing::device_place_test
