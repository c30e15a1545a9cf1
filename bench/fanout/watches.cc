#include "bench/fanout/watches.h"

#include <deque>

#include "bench/fanout/scene.h"
#include "tests/support/version_watch.h"

namespace deltawire::bench {
namespace {

Status Watchers(Bench& bench, size_t count, size_t kilobytes) {
  const std::string name = fmt::format("watches/{}", count);
  if (!bench.Asked(name)) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scene, Scene::Make(kilobytes));
  Arrivals arrivals;
  arrivals.Expect(scene->version(), count);
  std::deque<testing::VersionWatch> watches;
  for (size_t i = 0; i < count; ++i) {
    watches.emplace_back(scene->sender().orchestrator(), Cluster::kModel,
                         [&](uint64_t version) { arrivals.Of(version); });
  }
  DW_RETURN_IF_ERROR(arrivals.Wait(name));
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) {
    return scene->Step(name, arrivals, count, s);
  }));
  bench.Add(
      name, 1, series,
      {Value("publish -> all told", "all since begin"), Value("trainer's publish", "trainer")});
  scene->AddCost(name, count, 0, bench);
  return absl::OkStatus();
}

}  // namespace

Status Watches(Bench& bench, size_t kilobytes) {
  for (const size_t count : {10, 100, 400}) {
    DW_RETURN_IF_ERROR(Watchers(bench, count, kilobytes));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
