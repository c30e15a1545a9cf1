// Sharing of capacities among works on virtual time.
#include "common/plan/flows.h"

#include <catch2/catch.hpp>
#include <random>

namespace deltawire::plan::flows_test {
namespace {

Work On(size_t resource, double amount, double weight = 1, double sharers = 1) {
  Work work;
  work.uses = {{resource, amount, weight, sharers}};
  work.pace = "own pace";
  return work;
}

/// Runs all to their ends; the seconds that passed.
double RunAll(Flows& flows) {
  double seconds = 0;
  for (double next = flows.NextEnd(); next != Flows::kNever; next = flows.NextEnd()) {
    flows.Advance(next);
    seconds += next;
  }
  return seconds;
}

TEST_CASE("flows: one work takes what it moves, at the link's rate") {
  Flows flows;
  const size_t link = flows.AddResource("link", 100);
  const size_t work = flows.Start(On(link, 250));
  CHECK(RunAll(flows) == Approx(2.5));
  CHECK(flows.amount_used(link) == Approx(250));
  CHECK(flows.busy_seconds(link) == Approx(2.5));
  CHECK(flows.BoundBy(work) == "link");
}

TEST_CASE("flows: a link is shared by weight, and its rest goes to who is left") {
  Flows flows;
  const size_t link = flows.AddResource("link", 100);
  const size_t one = flows.Start(On(link, 100)), three = flows.Start(On(link, 150, 3));
  CHECK(flows.pace(one) * 100 == Approx(25));
  CHECK(flows.pace(three) * 150 == Approx(75));
  CHECK(flows.Advance(flows.NextEnd()) == std::vector<size_t>{three});
  CHECK(flows.pace(one) * 100 == Approx(100));
  CHECK(RunAll(flows) == Approx(0.5));
  CHECK(flows.amount_used(link) == Approx(250));
}

TEST_CASE("flows: who is held up elsewhere leaves its share") {
  Flows flows;
  const size_t wide = flows.AddResource("wide", 100), narrow = flows.AddResource("narrow", 10);
  Work held = On(wide, 100);
  held.uses.push_back({narrow, 100});
  const size_t slow = flows.Start(held), fast = flows.Start(On(wide, 100, 4));
  CHECK(flows.pace(slow) * 100 == Approx(10));
  CHECK(flows.pace(fast) * 100 == Approx(90));
  RunAll(flows);
  CHECK(flows.BoundBy(slow) == "narrow");
  CHECK(flows.BoundBy(fast) == "wide");
}

TEST_CASE("flows: members of a work share one instance") {
  Flows flows;
  const size_t link = flows.AddResource("link", 100);
  flows.Start(On(link, 100, 1, 4));
  CHECK(RunAll(flows) == Approx(4));
  CHECK(flows.amount_used(link) == Approx(400));
}

TEST_CASE("flows: a work is never faster than its own pace") {
  Flows flows;
  const size_t link = flows.AddResource("link", 100);
  Work work = On(link, 100);
  work.least_seconds = 3;
  const size_t held = flows.Start(work);
  CHECK(RunAll(flows) == Approx(3));
  CHECK(flows.BoundBy(held) == "own pace");
}

TEST_CASE("flows: random works move all their bytes and exceed nothing") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](double least, double most) {
      return std::uniform_real_distribution<double>(least, most)(random);
    };
    Flows flows;
    constexpr size_t kResources = 5, kWorks = 12;
    std::vector<double> capacity, wanted(kResources);
    for (size_t r = 0; r < kResources; ++r) {
      capacity.push_back(draw(1, 100));
      flows.AddResource("r", capacity.back());
    }
    for (size_t w = 0; w < kWorks; ++w) {
      Work work;
      for (size_t r = 0; r < kResources; ++r) {
        if (random() % 2 == 0) continue;
        const Use use{r, draw(1, 50), draw(1, 8), std::floor(draw(1, 5))};
        work.uses.push_back(use);
        wanted[r] += use.amount * use.sharers;
      }
      work.least_seconds = draw(0, 2);
      flows.Start(work);
    }
    double seconds = 0;
    std::vector<double> used(kResources);
    for (double next = flows.NextEnd(); next != Flows::kNever; next = flows.NextEnd()) {
      flows.Advance(next);
      seconds += next;
      for (size_t r = 0; r < kResources; ++r) {
        const double more = flows.amount_used(r) - std::exchange(used[r], flows.amount_used(r));
        CHECK(more <= capacity[r] * next * (1 + 1e-6) + 1e-9);
      }
    }
    for (size_t r = 0; r < kResources; ++r) {
      CHECK(flows.amount_used(r) == Approx(wanted[r]));
      CHECK(seconds >= wanted[r] / capacity[r] * (1 - 1e-6));
    }
  }
}

}  // namespace
}  // namespace deltawire::plan::flows_test
