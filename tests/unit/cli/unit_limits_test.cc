// What a unit's limits follow from.
#include "cli/unit_limits.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace deltawire::cli::unit_limits_test {
namespace {

constexpr uint64_t kGB = 1'000'000'000;
constexpr uint64_t kMiB = uint64_t{1} << 20;

const std::vector<ModelSize> kModels = {
    {.name = "policy", .bytes = 16 * kGB, .tensors = 400, .chunks = 8000},
    {.name = "draft", .bytes = kGB, .tensors = 100, .chunks = 500}};

uint64_t PartOf(const UnitLimits& limits, const std::string& what) {
  const auto part = std::ranges::find(limits.parts, what, &UnitLimits::Part::what);
  return part == limits.parts.end() ? 0 : part->bytes;
}

TEST_CASE("unit limits: memory is all parts, in whole MiB, and a tenth of them") {
  const UnitLimits limits = LimitsOfSender({}, kModels, {.count = 3, .streams = 5});
  uint64_t all = 0;
  for (const UnitLimits::Part& part : limits.parts) all += part.bytes;
  CHECK(limits.memory_max >= all);
  CHECK(limits.memory_max < all + kMiB);
  CHECK(limits.memory_max % kMiB == 0);
  const uint64_t margin = limits.parts.back().bytes;
  CHECK(margin == (all - margin + 9) / 10);
}

TEST_CASE("unit limits: a sender has two buffers of each model, and a log for each") {
  SenderOptions options;
  options.delta_log_bytes = 3 * kGB;
  const UnitLimits limits = LimitsOfSender(options, kModels, {});
  CHECK(PartOf(limits, "two buffers") == 34 * kGB);
  CHECK(PartOf(limits, "deltas, up to delta-log") == 6 * kGB);
}

TEST_CASE("unit limits: a sender counts what slow pulls and a version that is written take") {
  SenderOptions options;
  options.delta_log_bytes = 3 * kGB;
  const UnitLimits limits = LimitsOfSender(options, kModels, {});
  CHECK(PartOf(limits, "old bytes of chunks, for slow pulls") == 17 * kGB);
  CHECK(PartOf(limits, "deltas that slow pulls still need, up to twice delta-log") == 12 * kGB);
  CHECK(PartOf(limits, "the delta that is being made") == 3 * kGB);
  CHECK(PartOf(limits, "a version that comes: payloads, as often coded anew") == 6 * kGB);
  CHECK(PartOf(limits, "payloads made for pulls") == 4 * (uint64_t{256} << 20));
}

TEST_CASE("unit limits: with a GPU a sender holds its payloads twice") {
  constexpr const char* kPart = "a GPU's payloads until the CPU agrees, and its staging";
  SenderOptions options;
  CHECK(PartOf(LimitsOfSender(options, kModels, {}), kPart) == 0);
  options.gpu = GpuUse::kAuto;
  options.delta_log_bytes = 3 * kGB;
  CHECK(PartOf(LimitsOfSender(options, kModels, {}), kPart) == 3 * kGB + 2 * 112 * kMiB);
}

TEST_CASE("unit limits: each receiver that is served takes its connection and its streams") {
  const UnitLimits few = LimitsOfSender({}, kModels, {.count = 10, .streams = 4});
  const UnitLimits many = LimitsOfSender({}, kModels, {.count = 1010, .streams = 4});
  CHECK(many.descriptors - few.descriptors == 5000);
  CHECK(many.memory_max > few.memory_max);
}

TEST_CASE("unit limits: a receiver that serves nobody has no log, and counts no receivers") {
  ReceiverOptions options;
  const UnitLimits alone = LimitsOfReceiver(options, kModels, {.count = 1000});
  CHECK(PartOf(alone, "deltas, up to delta-log") == 0);
  options.bulk = Endpoint{"127.0.0.1", 7711};
  const UnitLimits relay = LimitsOfReceiver(options, kModels, {.count = 1000, .streams = 4});
  CHECK(PartOf(relay, "deltas, up to delta-log") == 2 * options.delta_log_bytes);
  CHECK(relay.descriptors - alone.descriptors == 5000);
}

TEST_CASE("unit limits: buffers that are chosen by the memory count as two") {
  ReceiverOptions options;
  CHECK(PartOf(LimitsOfReceiver(options, kModels, {}), "two buffers") == 34 * kGB);
  options.buffers = 1;
  const UnitLimits limits = LimitsOfReceiver(options, kModels, {});
  CHECK(PartOf(limits, "one buffer") == 17 * kGB);
  CHECK(PartOf(limits, "two buffers") == 0);
}

TEST_CASE("unit limits: streams that go by the link count as the most there can be") {
  ReceiverOptions options;
  options.streams = 0;
  const UnitLimits by_link = LimitsOfReceiver(options, kModels, {});
  options.streams = 4;
  const UnitLimits four = LimitsOfReceiver(options, kModels, {});
  CHECK(by_link.descriptors - four.descriptors == 28 * kModels.size());
}

TEST_CASE("unit limits: a hook that writes versions to a disk keeps its model once more") {
  ReceiverOptions options;
  EngineOptions hook;
  hook.kind = EngineKind::kDiskDelta;
  hook.model = "draft";
  hook.directory = "/versions";
  options.engines = {hook};
  const UnitLimits limits = LimitsOfReceiver(options, kModels, {});
  CHECK(PartOf(limits, "last version of /versions") == kGB);
}

}  // namespace
}  // namespace deltawire::cli::unit_limits_test
