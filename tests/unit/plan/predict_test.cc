// What a fleet's times have to obey, whatever the figures.
#include "common/plan/predict.h"

#include <catch2/catch.hpp>
#include <functional>

namespace deltawire::plan {
namespace {

Fleet Small() {
  Fleet fleet;
  fleet.model.bytes = 16e9;
  fleet.changes.density = 0.01;
  Site site;
  site.name = "rollout";
  site.rate = 625e6;
  site.round_trip = 0.02;
  site.receivers = 8;
  site.relays = 1;
  fleet.sites.push_back(site);
  return fleet;
}

Prediction Of(const Fleet& fleet) {
  auto p = Predict(fleet);
  REQUIRE(p.ok());
  return std::move(*p);
}

double Delta(const std::function<void(Fleet&)>& change) {
  Fleet fleet = Small();
  change(fleet);
  return Of(fleet).delta.timeline.seconds;
}

TEST_CASE("predict: stages follow one another without gaps up to the last commit") {
  const Fleet fleet = Small();
  const Prediction p = Of(fleet);
  for (const Forecast* f : {&p.delta, &p.full}) {
    double at = 0;
    for (const StageTime& s : f->path) {
      CHECK(s.begin == Approx(at).margin(1e-9));
      at = s.begin + s.seconds;
    }
    CHECK(at == Approx(f->timeline.seconds));
    CHECK(f->path.front().stage == "publish");
    CHECK(f->path.back().stage == "commit");
    CHECK(f->path[f->critical].seconds >=
          f->timeline.seconds / static_cast<double>(f->path.size()));
  }
  CHECK(p.full.timeline.seconds > p.delta.timeline.seconds);
}

TEST_CASE("predict: each link carries what its pulls are, and no more") {
  Fleet fleet = Small();
  fleet.trainer.rate = 12.5e9;
  Prediction p = Of(fleet);
  // Behind a relay the site's link is crossed once.
  const auto link = [&](const Forecast& f, size_t i) { return f.timeline.links.at(i).bytes; };
  CHECK(link(p.full, 1) == Approx(p.full.pulls[0].wire_bytes));
  CHECK(link(p.delta, 1) == Approx(p.delta.pulls[0].wire_bytes));
  CHECK(p.full.pulls[0].payload_bytes == Approx(16e9));
  CHECK(link(p.delta, 0) == Approx(link(p.delta, 1)));
  fleet.sites[0].relays = 0;
  fleet.sites[0].count = 3;
  p = Of(fleet);
  CHECK(link(p.delta, 1) == Approx(8 * p.delta.pulls[0].wire_bytes));
  CHECK(link(p.delta, 0) == Approx(3 * link(p.delta, 1)));
}

TEST_CASE("predict: chunks are the layout's") {
  Fleet fleet = Small();
  fleet.model.bytes = 10.0 * (2 << 20) + 4;
  fleet.model.tensors = 2;
  const Prediction p = Of(fleet);
  CHECK(p.model.chunks == 12);  // each tensor is five chunks and two bytes
  CHECK(p.full.pulls[0].frames == Approx(12));
}

TEST_CASE("predict: more of anything takes no less time") {
  const double usual = Delta([](Fleet&) {});
  CHECK(Delta([](Fleet& f) { f.model.bytes *= 2; }) > usual);
  CHECK(Delta([](Fleet& f) { f.changes.density *= 3; }) > usual);
  CHECK(Delta([](Fleet& f) { f.sites[0].rate /= 4; }) > usual);
  CHECK(Delta([](Fleet& f) { f.sites[0].round_trip *= 10; }) > usual);
  CHECK(Delta([](Fleet& f) { f.sites[0].relays = 0; }) > usual);
  CHECK(Delta([](Fleet& f) { f.sites[0].cores = 1; }) >= usual);
  CHECK(Delta([](Fleet& f) { f.trainer.cores = 1; }) > usual);
  CHECK(Delta([](Fleet& f) { f.tls = true; }) > usual);
  CHECK(Delta([](Fleet& f) { f.trainer.rate_limit = 20e6; }) > usual);
  CHECK(Delta([](Fleet& f) { f.trainer.rate_limit_per_receiver = 20e6; }) > usual);
  CHECK(Delta([](Fleet& f) { f.sites[0].window = 16 << 10; }) > usual);
  CHECK(Delta([](Fleet& f) {
          f.sites[0].count = 500;
          f.trainer.rate = 12.5e9;
        }) > usual);
  CHECK(Delta([](Fleet& f) { f.trainer.early_diff = 1; }) < usual);
  CHECK(Delta([](Fleet& f) { f.trainer.nodes = 4; }) < usual);
}

TEST_CASE("predict: auto takes the small codec where the link is slow, and fast where it is not") {
  const auto form = [](double rate) {
    Fleet fleet = Small();
    fleet.sites[0].rate = rate;
    const PullCost pull = Of(fleet).delta.pulls[0];
    return std::max_element(pull.chunks.begin(), pull.chunks.end()) - pull.chunks.begin();
  };
  CHECK(form(2e6) == static_cast<ptrdiff_t>(kernels::FormOf(kernels::Codec::kTight)));
  CHECK(form(12.5e9) == static_cast<ptrdiff_t>(kernels::FormOf(kernels::Codec::kFast)));
}

TEST_CASE("predict: what a delta does not make smaller goes whole") {
  Fleet fleet = Small();
  fleet.changes.density = 1;
  fleet.changes.difference_bits = 16;
  const Prediction p = Of(fleet);
  CHECK(p.delta.pulls[0].chunks[0] == Approx(static_cast<double>(p.model.chunks)));
  CHECK(p.delta.pulls[0].payload_bytes == Approx(16e9));
}

TEST_CASE("predict: hops of a relay come one after the other") {
  Fleet fleet = Small();
  const Prediction p = Of(fleet);
  REQUIRE(p.hops.size() == 2);
  CHECK(p.hops[1].members == 7);
  CHECK(p.delta.timeline.hops[1].stages.front().begin ==
        Approx(p.delta.timeline.hops[0].committed));
  CHECK(p.delta.path.size() == 1 + 2 * p.delta.timeline.hops[0].stages.size());
}

TEST_CASE("predict: nodes of one machine share its cores") {
  Fleet fleet = Small();
  fleet.sites[0].relays = 0;
  fleet.sites[0].rate = 0;
  const double apart = Of(fleet).delta.timeline.seconds;
  fleet.machines.push_back({.name = "here", .cores = 2});
  fleet.trainer.machine = fleet.sites[0].machine = "here";
  fleet.trainer.cores = fleet.sites[0].cores = 2;
  const Prediction p = Of(fleet);
  CHECK(p.delta.timeline.seconds > apart);
  REQUIRE(p.delta.timeline.nodes.size() == 1);
  const double most = 2 * (p.delta.timeline.seconds + 10);
  CHECK(p.delta.timeline.nodes[0].core_seconds < most);
}

TEST_CASE("predict: prices are of all bytes on a link") {
  Fleet fleet = Small();
  fleet.sites[0].price_per_gb = 0.05;
  fleet.sites[0].count = 10;
  const Prediction p = Of(fleet);
  CHECK(p.delta.price == Approx(10 * p.delta.pulls[0].wire_bytes / 1e9 * 0.05));
}

TEST_CASE("predict: slow start") {
  CHECK(SlowStartSeconds(1e9, 1e9, 4, 1e-5) == 0);
  const double near = SlowStartSeconds(1e8, 6e8, 4, 0.02);
  CHECK(near > 0.02);
  CHECK(near < 0.2);
  CHECK(SlowStartSeconds(1e8, 6e8, 4, 0.2) > near);
  CHECK(SlowStartSeconds(1000, 6e8, 4, 0.2) == 0);  // fits the first window
}

}  // namespace
}  // namespace deltawire::plan
