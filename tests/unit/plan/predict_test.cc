// What a fleet's times have to obey, whatever the figures.
#include "common/plan/predict.h"

#include <catch2/catch.hpp>
#include <functional>
#include <utility>

#include "common/plan/flows.h"
#include "common/serving/encoded_cache.h"

namespace deltawire::plan::predict_test {
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
    CHECK(f->path.front().stage == Stage::kPublish);
    CHECK(f->path.back().stage == Stage::kCommit);
    CHECK(f->path[f->critical].seconds >=
          f->timeline.seconds / static_cast<double>(f->path.size()));
  }
  CHECK(p.full.timeline.seconds > p.delta.timeline.seconds);
}

TEST_CASE("predict: a site whose upstreams are assigned is cut into the planner's levels") {
  Fleet fleet = Small();
  fleet.sites[0].relays = 0;
  fleet.sites[0].fan_out = 2;
  fleet.sites[0].count = 3;
  const Prediction p = Of(fleet);
  REQUIRE(p.hops.size() == 4);  // 1, 2, 4 and 1 receivers of each site
  const double members[] = {3, 6, 12, 3};
  for (size_t h = 0; h < 4; ++h) {
    CAPTURE(h);
    CHECK(p.hops[h].members == members[h]);
    CHECK(p.hops[h].upstream == static_cast<int>(h) - 1);
    CHECK(p.hops[h].local == (h > 0));
    CHECK(p.hops[h].on_server <= (h == 0 ? 3 : 2));
  }
  CHECK(p.hops[0].on_link == 1);
  // The site's link carries one pull, as with a relay that somebody has set up.
  Fleet relayed = Small();
  relayed.sites[0].count = 3;
  CHECK(p.delta.timeline.links.front().bytes == Of(relayed).delta.timeline.links.front().bytes);
  // Enough places for all, and the tree is that of one relay.
  fleet.sites[0].fan_out = 7;
  CHECK(Of(fleet).delta.timeline.seconds == Approx(Of(relayed).delta.timeline.seconds));
  // One that serves, and has places for two of seven: five more cross the link.
  fleet.sites[0].relays = 1;
  fleet.sites[0].fan_out = 2;
  CHECK(Of(fleet).hops[0].on_link == 6);
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

TEST_CASE("predict: a site with a faster link takes no longer, whatever else bounds it") {
  const std::pair<const char*, std::function<void(Fleet&)>> bounds[] = {
      {"nothing but the link", [](Fleet&) {}},
      {"windows", [](Fleet& f) { f.sites[0].window = 64 << 10; }},
      {"the limit of a receiver", [](Fleet& f) { f.trainer.rate_limit_per_receiver = 20e6; }},
      {"the limit of all", [](Fleet& f) { f.trainer.rate_limit = 50e6; }},
      {"coders", [](Fleet& f) { f.trainer.codec = kernels::Codec::kTight; }},
      {"cores", [](Fleet& f) { f.trainer.cores = f.sites[0].cores = 1; }},
      {"a link that all sites share",
       [](Fleet& f) {
         f.sites[0].relays = 0;
         f.sites[0].count = 8;
         f.trainer.rate = 250e6;
       }},
      {"four agents", [](Fleet& f) { f.trainer.nodes = 4; }},
  };
  for (const auto& [bound, change] : bounds) {
    for (const double bytes : {1e8, 4e9}) {
      for (const double round_trip : {0.2e-3, 20e-3, 200e-3}) {
        Fleet fleet = Small();
        fleet.model.bytes = bytes;
        fleet.sites[0].round_trip = round_trip;
        // With `auto` another rate may mean another codec.
        fleet.trainer.codec = fleet.sites[0].codec = kernels::Codec::kFast;
        change(fleet);
        double delta = Flows::kNever, full = Flows::kNever;
        for (double rate = 1e6; rate < 1e11; rate *= 6) {
          CAPTURE(bound, bytes, round_trip, rate);
          fleet.sites[0].rate = rate;
          const Prediction p = Of(fleet);
          constexpr double kRounding = 1 + 1e-6;
          CHECK(p.delta.timeline.seconds <= delta * kRounding);
          CHECK(p.full.timeline.seconds <= full * kRounding);
          delta = p.delta.timeline.seconds;
          full = p.full.timeline.seconds;
        }
      }
    }
  }
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

TEST_CASE("predict: sites alike take as long as one site with their count") {
  for (const uint32_t relays : {0U, 1U}) {
    CAPTURE(relays);
    Fleet counted = Small();
    counted.trainer.codec = counted.sites[0].codec = kernels::Codec::kTight;
    counted.trainer.rate = 625e6;
    counted.sites[0].relays = relays;
    Fleet listed = counted;
    counted.sites[0].count = 2;
    listed.sites.push_back(counted.sites[0]);
    listed.sites[1].name = "other";
    listed.sites[1].count = 1;
    const Prediction one = Of(counted), two = Of(listed);
    REQUIRE(two.hops.size() == 2 * one.hops.size());
    CHECK(two.delta.timeline.seconds == Approx(one.delta.timeline.seconds));
    CHECK(two.full.timeline.seconds == Approx(one.full.timeline.seconds));
    CHECK(two.delta.timeline.nodes[0].core_seconds ==
          Approx(one.delta.timeline.nodes[0].core_seconds));
  }
}

TEST_CASE("predict: payloads are encoded once for all pulls of a node that take the same codec") {
  Fleet fleet = Small();
  fleet.sites[0].relays = 0;
  Site other = fleet.sites[0];
  other.name = "other";
  other.receivers = 4;
  fleet.sites.push_back(other);
  const std::vector<Hop> hops = HopsOf(fleet);
  REQUIRE(hops.size() == 2);
  const size_t tight = kernels::FormOf(kernels::Codec::kTight);
  const size_t dense = kernels::FormOf(kernels::Codec::kDense);
  std::vector<PullCost> pulls(2);
  pulls[0].bytes[tight] = pulls[1].bytes[tight] = 1e6;
  CHECK(EncodedAnew(fleet, hops, pulls, 0) == Approx(1.0 / 12));
  CHECK(EncodedAnew(fleet, hops, pulls, 1) == Approx(1.0 / 12));
  std::swap(pulls[1].bytes[tight], pulls[1].bytes[dense]);
  CHECK(EncodedAnew(fleet, hops, pulls, 0) == Approx(1.0 / 8));
  CHECK(EncodedAnew(fleet, hops, pulls, 1) == Approx(1.0 / 4));
  // Both codecs' payloads fill the cache, which then keeps half of each.
  const auto limit = static_cast<double>(EncodedCache::kUsualBytes);
  pulls[0].bytes[tight] = pulls[1].bytes[dense] = limit;
  CHECK(EncodedAnew(fleet, hops, pulls, 0) == Approx(0.5 / 8 + 0.5));
  CHECK(EncodedAnew(fleet, hops, pulls, 1) == Approx(0.5 / 4 + 0.5));
}

TEST_CASE("predict: a relay passes on what comes to it") {
  Fleet fleet = Small();
  const Prediction p = Of(fleet);
  REQUIRE(p.hops.size() == 2);
  CHECK(p.hops[1].members == 7);
  for (const Forecast* f : {&p.delta, &p.full}) {
    const HopTimes& relay = f->timeline.hops[0];
    const HopTimes& leaves = f->timeline.hops[1];
    CHECK(leaves.stages.front().begin == Approx(relay.stages.front().begin));
    // The site's link is narrower than the relay's card.
    CHECK(leaves.held);
    CHECK(leaves.committed > relay.stages[1].begin + relay.stages[1].seconds);
    CHECK(f->pulls[1].encode_seconds == 0);
  }
  const std::vector<StageTime>& path = p.full.path;
  REQUIRE(path.size() == 1 + 2 + 3);
  CHECK(path[2].at == "rollout/relays");
  CHECK(path[3].at == "rollout/leaves");
  CHECK(path[3].bound_by == "what comes to rollout/relays");
  // A delta is last at the relay, which applies it when it has passed all of it on.
  CHECK(p.delta.timeline.last == 0);
  // A hop adds a chunk's time and half a round trip, not a pull.
  Fleet alone = Small();
  alone.sites[0].receivers = 1;
  alone.sites[0].relays = 0;
  CHECK(p.full.timeline.seconds < 1.05 * Of(alone).full.timeline.seconds);
}

TEST_CASE("predict: leaves that are slower than their relay's upstream do not wait for it") {
  Fleet fleet = Small();
  fleet.sites[0].rate = 0;
  fleet.sites[0].network = 125e6;  // seven leaves share what one relay takes alone
  const Prediction p = Of(fleet);
  CHECK_FALSE(p.full.timeline.hops[1].held);
  CHECK(p.full.path.size() == 1 + p.full.timeline.hops[1].stages.size());
}

TEST_CASE("predict: a limit for each site is shared by those of the site alone") {
  Fleet fleet = Small();
  fleet.trainer.codec = kernels::Codec::kFast;
  fleet.sites[0].relays = 0;
  fleet.sites[0].count = 3;
  const double limit = 20e6;
  fleet.trainer.rate_limit_per_site = limit;
  const Prediction p = Of(fleet);
  // Of eight pulls, less the tenth of a second's worth that a limit lets pass at once.
  const double all = 8 * p.delta.pulls[0].wire_bytes / limit;
  const StageTime& transfer = p.delta.path.at(2);
  CHECK(transfer.seconds == Approx(all - 0.1).epsilon(0.02));
  CHECK(transfer.bound_by == "rate-limit-per-site of the trainer for rollout");
  // One relay of each site pulls a third as much in all, and its leaves are not the trainer's.
  fleet.sites[0].relays = 1;
  const Prediction relayed = Of(fleet);
  CHECK(relayed.delta.timeline.hops[0].committed < p.delta.timeline.seconds / 7);
  fleet.trainer.rate_limit_per_site = 0;
  fleet.sites[0].codec = kernels::Codec::kFast;
  fleet.sites[0].rate_limit_per_site = limit;
  const Prediction behind = Of(fleet);
  CHECK(behind.delta.timeline.hops[0].committed < 1);
  CHECK(behind.delta.path.back().at == "rollout/leaves");
  CHECK(behind.delta.timeline.seconds > 7 * p.delta.pulls[0].wire_bytes / limit - 0.1);
}

TEST_CASE("predict: a limit lets a tenth of a second's worth pass at once, however it is shared") {
  Fleet fleet = Small();
  fleet.sites[0].relays = 0;
  fleet.sites[0].rate = 0;
  fleet.sites[0].round_trip = 1e-4;  // without a slow start
  fleet.trainer.codec = kernels::Codec::kFast;
  const double usual = Of(fleet).delta.timeline.seconds;
  const double bytes = Of(fleet).delta.pulls[0].wire_bytes;
  fleet.trainer.rate_limit_per_receiver = 11 * bytes;
  CHECK(Of(fleet).delta.timeline.seconds == Approx(usual));
  fleet.trainer.rate_limit_per_receiver = bytes;
  CHECK(Of(fleet).delta.path.at(2).seconds == Approx(0.9).epsilon(0.03));
  fleet.trainer.rate_limit_per_receiver = 0;
  fleet.trainer.rate_limit = 4 * bytes;
  CHECK(Of(fleet).delta.path.at(2).seconds == Approx(1.9).epsilon(0.03));
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

TEST_CASE("predict: a diff takes what the trainer's memory or its machine's allows") {
  const auto publish = [](const std::function<void(Fleet&)>& change) {
    Fleet fleet = Small();
    fleet.trainer.cores = fleet.sites[0].cores = 2;
    fleet.machines.push_back({.name = "here", .cores = 2});
    change(fleet);
    return Of(fleet).delta.timeline.publish;
  };
  const StageTime apart = publish([](Fleet& f) { f.trainer.memory = 1e9; });
  CHECK(apart.bound_by == "memory of the trainer");
  CHECK(apart.seconds == Approx(2 * 16e9 / 1e9).epsilon(0.001));
  const StageTime there = publish([](Fleet& f) {
    f.trainer.machine = "here";
    f.machines[0].memory = 2e9;
  });
  CHECK(there.bound_by == "memory of machine here");
  CHECK(there.seconds == Approx(2 * 16e9 / 2e9).epsilon(0.001));
}

TEST_CASE("predict: prices are of all bytes on a link") {
  Fleet fleet = Small();
  fleet.sites[0].price_per_gb = 0.05;
  fleet.sites[0].count = 10;
  const Prediction p = Of(fleet);
  CHECK(p.delta.price == Approx(10 * p.delta.pulls[0].wire_bytes / 1e9 * 0.05));
}

TEST_CASE("predict: slow start takes longer over a longer way, and no time in one window") {
  CHECK(SlowStartSeconds(1e9, 1e9, 4, 1e-5) == 0);
  const double near = SlowStartSeconds(1e8, 6e8, 4, 0.02);
  CHECK(near > 0.02);
  CHECK(near < 0.2);
  CHECK(SlowStartSeconds(1e8, 6e8, 4, 0.2) > near);
  CHECK(SlowStartSeconds(1000, 6e8, 4, 0.2) == 0);  // fits the first window
  double before = Flows::kNever;
  for (double pace = 1e4; pace < 1e12; pace *= 1.1) {
    const double seconds = 1e8 / pace + SlowStartSeconds(1e8, pace, 4, 0.2);
    CHECK(seconds <= before * (1 + 1e-12));
    before = seconds;
  }
}

}  // namespace
}  // namespace deltawire::plan::predict_test
