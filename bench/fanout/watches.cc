#include "bench/fanout/watches.h"

#include <atomic>
#include <deque>
#include <filesystem>
#include <semaphore>

#include "bench/harness/buffers.h"
#include "bench/loopback/cluster.h"
#include "tests/support/version_watch.h"

namespace deltawire::bench {
namespace {

constexpr std::chrono::seconds kPatience{60};

size_t ThreadsOf(pid_t pid) {
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid));
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// The moment at which the last of many watches was told of a version.
class Told {
 public:
  void Expect(uint64_t version, size_t watches) {
    missing_ = watches;
    version_ = version;
  }
  void Of(uint64_t version) {
    if (version == version_ && --missing_ == 0) all_.release();
  }
  bool Wait() { return all_.try_acquire_for(kPatience); }

 private:
  std::atomic<uint64_t> version_ = 0, missing_ = 0;
  std::binary_semaphore all_{0};
};

Status Watchers(Bench& bench, size_t count, size_t kilobytes, ThreadPool& pool) {
  const std::string name = fmt::format("watches/{}", count);
  if (!bench.Asked(name)) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  const ModelSource source{
      "watches", *Layout::Create({{"w", DType::kBF16, {kilobytes * 512}}}), {}, {}};
  DW_ASSIGN_OR_RETURN(const auto weights,
                      Weights::Create(source, scratch->path() / "trainer", 1, 0, pool));
  Cluster cluster(scratch->path(), source, {.receiver = false}, pool);
  DW_RETURN_IF_ERROR(cluster.Begin(weights->content()));
  const pid_t pid = cluster.sender().child().pid();
  const size_t threads_before = ThreadsOf(pid);
  const uint64_t memory_before = testing::AnonymousBytes(pid);

  Told told;
  told.Expect(cluster.version(), count);
  std::deque<testing::VersionWatch> watches;
  for (size_t i = 0; i < count; ++i) {
    watches.emplace_back(cluster.sender().orchestrator(), Cluster::kModel,
                         [&](uint64_t version) { told.Of(version); });
  }
  const auto all = [&]() -> Status {
    if (told.Wait()) return absl::OkStatus();
    return Errorf(StatusCode::kDeadlineExceeded, "{}: not all were told", name);
  };
  DW_RETURN_IF_ERROR(all());
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    told.Expect(cluster.version() + 1, count);
    weights->Flip(0.01);
    const auto start = SteadyClock::now();
    DW_ASSIGN_OR_RETURN(const Publication published, cluster.Publish(weights->content()));
    s.Add("trainer", published.seconds);
    DW_RETURN_IF_ERROR(all());
    s.Add("all told", SecondsSince(start));
    return absl::OkStatus();
  }));
  bench.Add(name, 1, series,
            {Value("publish -> all told", "all told"), Value("trainer's publish", "trainer")});
  const double added =
      static_cast<double>(testing::AnonymousBytes(pid)) - static_cast<double>(memory_before);
  bench.AddValue(name, "sender's threads", static_cast<double>(ThreadsOf(pid)), "", 0,
                 fmt::format("{} before", threads_before));
  bench.AddValue(name, "sender's memory each", added / 1024 / static_cast<double>(count), "KiB", 0);
  return absl::OkStatus();
}

}  // namespace

Status Watches(Bench& bench, size_t kilobytes) {
  ThreadPool pool(1);
  for (const size_t count : {10, 100, 400}) {
    DW_RETURN_IF_ERROR(Watchers(bench, count, kilobytes, pool));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
