// A sender with exactly the memory that `deltawire limits` prints, while versions change everything
// and slow receivers end at versions of long ago, which must not hold up the trainer.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include "cli/unit_limits.h"
#include "common/layout/chunks.h"
#include "tests/support/daemons.h"
#include "tests/support/memory_cgroup.h"

namespace deltawire::testing::memory_limit_test {
namespace {

// The promise is 1.1, which only an idle machine shows (the line that is printed).
constexpr double kSlower = 1.5;

double Median(std::vector<double> all) {
  std::ranges::nth_element(all, all.begin() + static_cast<ptrdiff_t>(all.size() / 2));
  return all[all.size() / 2];
}

}  // namespace

TEST_CASE(
    "a sender keeps to its memory limit through versions that change all, beside slow pulls") {
  constexpr const char* kModel = "m";
  constexpr size_t kMegabytes = 192;
  constexpr uint64_t kAlone = 20, kVersions = 100 + kAlone, kLog = uint64_t{8} << 20;
  constexpr cli::ServedReceivers kServed{.count = 2, .streams = 4};
  SenderOptions options;
  options.delta_log_bytes = kLog;
  ShmDir root;
  SenderProcess sender(root.path(),
                       {"--delta-log", std::to_string(kLog), "--rate-limit", "receiver:2MiB"});
  Trainer trainer(sender.socket(), kModel, kMegabytes, 31);
  const Layout& layout = trainer.layout();
  const auto chunks = ChunkTable::Create(layout);
  const cli::UnitLimits limits = cli::LimitsOfSender(
      options,
      {{kModel, layout.total_bytes(), layout.size(), chunks->size(), /*side_file_bytes=*/0}},
      kServed);
  const auto group = MemoryCgroup::Make(limits.memory_max);
  if (!group) return (void)std::puts("SKIPPED: no memory cgroup can be made here");
  REQUIRE(group->Add(sender.child().pid()));
  std::vector<double> alone, beside;  // seconds from ready to published
  const auto publish = [&](uint64_t version) -> Status {
    // Each element changes, and no two versions have the same.
    auto& content = trainer.content();
    for (size_t at = 0; at + 8 <= content.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, &content[at], 8);
      word = word * 0x9e3779b97f4a7c15 + version + at;
      std::memcpy(&content[at], &word, 8);
    }
    DW_ASSIGN_OR_RETURN(const VersionInfo published, trainer.Publish(version));
    // The first one is no delta.
    if (version > 1) (version > kAlone ? beside : alone).push_back(published.publish_seconds);
    return absl::OkStatus();
  };
  for (uint64_t version = 1; version <= kAlone; ++version) {
    CAPTURE(version);
    REQUIRE(publish(version) == absl::OkStatus());
  }
  ReceiverProcess one(root.path(), "r1", sender.control(), kModel, {"--streams", "4"});
  std::optional<ReceiverProcess> two;
  for (uint64_t version = kAlone + 1; version <= kVersions; ++version) {
    CAPTURE(version);
    REQUIRE(publish(version) == absl::OkStatus());
    if (version == kAlone + 20)
      two.emplace(root.path(), "r2", sender.control(), kModel,
                  std::vector<std::string>{"--streams", "4"});
    CHECK(sender.Status(kModel).log_bytes() <= kLog);
  }
  const uint64_t peak = group->peak();
  WARN("peak " << (peak >> 20) << " MiB of " << (limits.memory_max >> 20));
  CHECK(peak <= limits.memory_max);
  const double without = Median(alone), with = Median(beside);
  WARN("ready to published: " << without << " s without a receiver, " << with << " s beside them");
  CHECK(with <= kSlower * without);
  CHECK(sender.Status(kModel).active_pulls() > 0);
  sender.child().Kill();
}

}  // namespace deltawire::testing::memory_limit_test
