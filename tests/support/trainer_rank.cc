// One rank of a trainer: writes its share of every tensor, version after version, and prints one
// line per event on stdout:
//   begun V | hanging V | ready V | published V | failed V SECONDS CODE MESSAGE
//
//   trainer_rank SOCKET MODEL RANK WORLD FIRST LAST JOB CONTENT
//   [before|granted|begun|half|forked|ready V]
// JOB: the job's name. The bytes of version V are those of number V + CONTENT. With the last two
// arguments it stops for good at that point of version V: `granted` is between the grant of the
// half and the call that attends. SECONDS: from the failed call to its answer.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "common/base/human.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/rank_model.h"

namespace deltawire::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// The version at which opening a half stops the process; 0: none.
uint64_t hang_when_granted = 0;

/// Forks a child that sleeps, as a data loader's worker does, and prints its process's number.
void ForkSleeper() {
  const pid_t child = fork();
  if (child > 0) {
    std::printf("forked %d\n", child);
    return;
  }
  alarm(60);
  while (true) pause();
}

[[noreturn]] void Hang(uint64_t version) {
  std::printf("hanging %lu\n", version);
  while (true) pause();
}

struct Rank {
  TrainerClient client;
  uint32_t rank, world;
  uint64_t content = 0;
  std::string hang_at;
  uint64_t hang_version = 0;

  bool HangsAt(const std::string& point, uint64_t version) const {
    return point == hang_at && version == hang_version;
  }
  void HangIf(const std::string& point, uint64_t version) const {
    if (HangsAt(point, version)) Hang(version);
  }

  /// Writes and publishes one version. `called`: when the last call, so a failed one, began.
  Status Write(uint64_t version, Clock::time_point& called) {
    HangIf("before", version);
    if (HangsAt("granted", version)) hang_when_granted = version;
    called = Clock::now();
    auto offload = client.Begin(version);
    if (!offload.ok()) return offload.status();
    std::printf("begun %lu\n", version);
    HangIf("begun", version);
    const Layout& layout = *client.layout();
    for (size_t t = 0; t < layout.size(); ++t) {
      if (t == layout.size() / 2) {
        if (HangsAt("forked", version)) {
          ForkSleeper();
          Hang(version);
        }
        HangIf("half", version);
      }
      const uint64_t end = ShareBegin(layout.bytes(t), rank + 1, world);
      for (uint64_t i = ShareBegin(layout.bytes(t), rank, world); i < end; ++i) {
        (*offload)->data()[layout.offset(t) + i] =
            RankByte(version + content, layout.offset(t) + i);
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
  if (argc != 9 && argc != 11) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto rank = static_cast<uint32_t>(std::stoul(argv[3]));
  const auto world = static_cast<uint32_t>(std::stoul(argv[4]));
  Rank r{TrainerClient(argv[1], argv[2], rank, world, std::chrono::seconds(60)), rank, world};
  r.client.SetJob(argv[7]);
  r.content = std::stoull(argv[8]);
  if (argc == 11) {
    r.hang_at = argv[9];
    r.hang_version = std::stoull(argv[10]);
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

// Takes the place of libc's in this program.
extern "C" int open(const char* path, int flags, ...) {
  using Open = int (*)(const char*, int, ...);
  static const auto real = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "open"));
  const bool half = std::strstr(path, "half-") != nullptr;
  if (half && deltawire::testing::hang_when_granted != 0) {
    deltawire::testing::Hang(deltawire::testing::hang_when_granted);
  }
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  return real(path, flags, mode);
}

int main(int argc, char** argv) { return deltawire::testing::Main(argc, argv); }
