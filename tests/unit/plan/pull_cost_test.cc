// What a pull costs, in every codec of the coders' table.
#include "common/plan/pull_cost.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/plan/predict.h"

namespace deltawire::plan::pull_cost_test {
namespace {

Fleet Pinned(const Coder& coder) {
  Fleet fleet;
  fleet.model.bytes = 1e9;
  fleet.trainer.codec = coder.codec;
  Site site;
  site.name = "rollout";
  fleet.sites.push_back(site);
  return fleet;
}

TEST_CASE("pull cost: every codec takes some time at both ends") {
  for (const Coder& coder : Coders()) {
    const Fleet fleet = Pinned(coder);
    const auto model = CutModel(fleet.model);
    REQUIRE(model.ok());
    for (const bool history : {false, true}) {
      CAPTURE(kernels::NameOf(coder.codec), history);
      Coding coding;
      coding.codec = coder.codec;
      coding.encode_threads = 4;
      coding.decode_threads = 2;
      coding.history = history;
      const PullCost cost = DeltaPull(fleet, *model, coding);
      CHECK(cost.chunks[kernels::FormOf(coder.codec)] > 0);
      for (const double amount : {cost.wire_bytes, cost.encode_seconds, cost.send_seconds,
                                  cost.receive_seconds, cost.decode_seconds, cost.apply_seconds,
                                  cost.first_chunk_seconds, cost.last_chunk_seconds}) {
        CHECK(std::isfinite(amount));
        CHECK(amount > 0);
      }
    }
  }
}

TEST_CASE("pull cost: a version in any codec is predicted to arrive") {
  for (const Coder& coder : Coders()) {
    CAPTURE(kernels::NameOf(coder.codec));
    const Fleet fleet = Pinned(coder);
    const auto prediction = Predict(fleet);
    REQUIRE(prediction.ok());
    CHECK(prediction->delta.pulls[0].chunks[kernels::FormOf(coder.codec)] > 0);
    CHECK(std::isfinite(prediction->delta.timeline.seconds));
    CHECK(prediction->delta.timeline.seconds > 0);
  }
}

TEST_CASE("pull cost: a slower coder takes longer at its end, and nowhere else") {
  for (const Coder& coder : Coders()) {
    CAPTURE(kernels::NameOf(coder.codec));
    Fleet fleet = Pinned(coder);
    const auto model = CutModel(fleet.model);
    REQUIRE(model.ok());
    Coding coding;
    coding.codec = coder.codec;
    const PullCost usual = DeltaPull(fleet, *model, coding);
    fleet.speeds.codecs[coder.codec].encode /= 2;
    const PullCost slow = DeltaPull(fleet, *model, coding);
    CHECK(slow.encode_seconds == Approx(2 * usual.encode_seconds));
    CHECK(slow.decode_seconds == Approx(usual.decode_seconds));
    CHECK(slow.wire_bytes == Approx(usual.wire_bytes));
  }
}

}  // namespace
}  // namespace deltawire::plan::pull_cost_test
