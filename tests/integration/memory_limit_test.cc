// A sender with exactly the memory that `deltawire limits` prints, while versions change everything
// and slow receivers end at versions of long ago.
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <optional>

#include "cli/unit_limits.h"
#include "common/layout/chunks.h"
#include "tests/support/daemons.h"
#include "tests/support/memory_cgroup.h"

namespace deltawire::testing::memory_limit_test {

TEST_CASE(
    "a sender keeps to its memory limit through versions that change all, beside slow pulls") {
  constexpr const char* kModel = "m";
  constexpr size_t kMegabytes = 192;
  constexpr uint64_t kVersions = 100, kLog = uint64_t{8} << 20;
  constexpr cli::ServedReceivers kServed{.count = 2, .streams = 4};
  SenderOptions options;
  options.delta_log_bytes = kLog;
  ShmDir root;
  SenderProcess sender(root.path(),
                       {"--delta-log", std::to_string(kLog), "--rate-limit-per-receiver", "2MiB"});
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
  const auto publish = [&](uint64_t version) {
    // Each element changes, and no two versions have the same.
    auto& content = trainer.content();
    for (size_t at = 0; at + 8 <= content.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, &content[at], 8);
      word = word * 0x9e3779b97f4a7c15 + version + at;
      std::memcpy(&content[at], &word, 8);
    }
    return trainer.Publish(version).status();
  };
  REQUIRE(publish(1) == absl::OkStatus());
  ReceiverProcess one(root.path(), "r1", sender.control(), kModel, {"--streams", "4"});
  std::optional<ReceiverProcess> two;
  for (uint64_t version = 2; version <= kVersions; ++version) {
    CAPTURE(version);
    REQUIRE(publish(version) == absl::OkStatus());
    if (version == 20)
      two.emplace(root.path(), "r2", sender.control(), kModel,
                  std::vector<std::string>{"--streams", "4"});
    CHECK(sender.Status(kModel).log_bytes() <= kLog);
  }
  const uint64_t peak = group->peak();
  WARN("peak " << (peak >> 20) << " MiB of " << (limits.memory_max >> 20));
  CHECK(peak <= limits.memory_max);
  CHECK(sender.Status(kModel).active_pulls() > 0);
  sender.child().Kill();
}

}  // namespace deltawire::testing::memory_limit_test
