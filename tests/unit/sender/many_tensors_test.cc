// Registration, publishes and a restart cost time in proportion to the number of tensors, not more.
#include <time.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "common/base/thread_pool.h"
#include "sender/agent/model.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/sender/offload/offload_waits.h"

namespace deltawire::sender::many_tensors_test {
namespace {

/// The CPU time of this process's threads, to which other programs on the machine add nothing.
double CpuSeconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

using Times = std::map<std::string, double>;

class Stopwatch {
 public:
  explicit Stopwatch(Times& times) : times_(times) {}
  void Lap(const std::string& name) {
    const double now = CpuSeconds();
    times_[name] += now - last_;
    last_ = now;
  }

 private:
  Times& times_;
  double last_ = CpuSeconds();
};

Times Measure(size_t tensors) {
  const TempDir dir;
  ThreadPool pool(2);
  const auto never = [] { return false; };
  std::vector<TensorMeta> meta;
  for (size_t t = 0; t < tensors; ++t) {
    meta.push_back({fmt::format("model.layers.{}.mlp.experts.{}.weight", t / 64, t % 64),
                    DType::kBF16,
                    {4, 8}});
  }
  Times times;
  Stopwatch watch(times);
  auto layout = Layout::Create(std::move(meta));
  REQUIRE(layout.ok());
  watch.Lap("layout");
  auto model = *Model::Create("m", dir.path() / "m", std::move(*layout),
                              Coverage::All(static_cast<uint32_t>(tensors)), {},
                              {.scrub_bytes_per_s = 0}, pool);
  watch.Lap("register");
  for (uint64_t v = 1; v <= 3; ++v) {
    const auto grant = model->offloads().Begin({v, 0, 1, 0, "test"}, never);
    REQUIRE(grant.ok());
    watch.Lap("begin");
    // The test writes to the inactive half through the model's own mapping.
    const auto newest = model->published();
    const Bytes half = model->half(newest == nullptr ? 0 : 1 - newest->half);
    std::memset(const_cast<std::byte*>(half.data()), static_cast<int>(v), half.size());
    watch.Lap("write");
    ReadyNotice notice{v, 0, 1, grant->lease, false, {}, {}};
    for (uint32_t t = 0; t < tensors; ++t) notice.written.push_back(t);
    REQUIRE(model->offloads().MarkReady(notice).ok());
    REQUIRE(WaitPublished(model->offloads(), v, grant->lease, never).ok());
    watch.Lap("publish");
  }
  REQUIRE(model->publisher().RollBack(2).ok());
  watch.Lap("rollback");
  model.reset();
  model = *Model::Recover("m", dir.path() / "m", {.scrub_bytes_per_s = 0}, pool);
  REQUIRE(model->published()->info.id() == StateId{2, 2});
  watch.Lap("restart");
  return times;
}

}  // namespace

TEST_CASE("a model's life is linear in its tensors") {
  const Times few = Measure(4000), many = Measure(16000);
  for (const auto& [what, seconds] : many) {
    CAPTURE(what, seconds, few.at(what));
    CHECK(seconds < 8 * few.at(what) + 0.05);
  }
}

}  // namespace deltawire::sender::many_tensors_test
