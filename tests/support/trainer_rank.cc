// One rank of a trainer: writes its share of every tensor, version after version, and prints one
// line per event on stdout:
//   begun V | hanging V | ready V | published V | failed V SECONDS CODE MESSAGE
//
//   trainer_rank SOCKET MODEL RANK WORLD FIRST LAST [begun|half|ready V]
// With the last two arguments it stops for good at that point of version V. SECONDS: from the
// failed call to its answer.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <numeric>

#include "common/base/human.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/rank_model.h"

namespace deltawire::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Rank {
  TrainerClient client;
  uint32_t rank, world;
  std::string hang_at;
  uint64_t hang_version = 0;

  void HangIf(const std::string& point, uint64_t version) const {
    if (point != hang_at || version != hang_version) return;
    std::printf("hanging %lu\n", version);
    while (true) pause();
  }

  /// Writes and publishes one version. `called`: when the last call, so a failed one, began.
  Status Write(uint64_t version, Clock::time_point& called) {
    called = Clock::now();
    auto offload = client.Begin(version);
    if (!offload.ok()) return offload.status();
    std::printf("begun %lu\n", version);
    HangIf("begun", version);
    const Layout& layout = *client.layout();
    for (size_t t = 0; t < layout.size(); ++t) {
      if (t == layout.size() / 2) HangIf("half", version);
      const uint64_t end = ShareBegin(layout.bytes(t), rank + 1, world);
      for (uint64_t i = ShareBegin(layout.bytes(t), rank, world); i < end; ++i) {
        (*offload)->data()[layout.offset(t) + i] = RankByte(version, layout.offset(t) + i);
      }
    }
    std::vector<uint32_t> all(layout.size());
    std::iota(all.begin(), all.end(), 0);
    called = Clock::now();
    DW_RETURN_IF_ERROR((*offload)->Written(all));
    DW_RETURN_IF_ERROR((*offload)->Ready());
    std::printf("ready %lu\n", version);
    HangIf("ready", version);
    called = Clock::now();
    return client.WaitPublished(version).status();
  }

  void Run(uint64_t first, uint64_t last) {
    for (uint64_t v = first; v <= last; ++v) {
      Clock::time_point called;
      const Status status = Write(v, called);
      if (status.ok()) {
        std::printf("published %lu\n", v);
      } else {
        std::printf("failed %lu %.3f %d %s\n", v, SecondsSince(called),
                    static_cast<int>(status.code()), std::string(MessageOf(status)).c_str());
      }
    }
  }
};

int Main(int argc, char** argv) {
  if (argc != 7 && argc != 9) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto rank = static_cast<uint32_t>(std::stoul(argv[3]));
  const auto world = static_cast<uint32_t>(std::stoul(argv[4]));
  Rank r{TrainerClient(argv[1], argv[2], rank, world, std::chrono::seconds(60)), rank, world};
  if (argc == 9) {
    r.hang_at = argv[7];
    r.hang_version = std::stoull(argv[8]);
  }
  const auto registered = r.client.Register(RankLayout(), {}, {.keep_side_files = true});
  if (!registered.ok()) {
    std::printf("failed 0 0 0 %s\n", std::string(MessageOf(registered.status())).c_str());
    return 1;
  }
  r.Run(std::stoull(argv[5]), std::stoull(argv[6]));
  return 0;
}

}  // namespace
}  // namespace deltawire::testing

int main(int argc, char** argv) { return deltawire::testing::Main(argc, argv); }
