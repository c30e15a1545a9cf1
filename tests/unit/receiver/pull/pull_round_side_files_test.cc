// The side files of pull rounds: when they are asked for, and that a version has its own.
#include <catch2/catch.hpp>

#include "receiver/pull/pull_round.h"
#include "tests/unit/receiver/pull/round_rig.h"

namespace deltawire::receiver::pull_round_side_files_test {
namespace {

TEST_CASE("pull round: side files are those of the end and travel only when they change") {
  RoundRig s;
  auto chunks = FakeAgent::Make(s.layout, 1);
  for (const auto& [version, side, fetches] :
       {std::tuple{1u, 100u, 1}, {2u, 100u, 1}, {3u, 200u, 2}}) {
    CAPTURE(version);
    s.Publish({1, version}, chunks = Changed(chunks, 3), side);
    // While version 3 comes, the agent publishes version 4.
    if (version == 3) {
      s.at().at_end = [&](StatusOr<net::PullEnd>&) {
        s.at().agent.Publish({1, 4}, Changed(chunks, 4), 1004, 300);
      };
    }
    REQUIRE(s.Pull() == absl::OkStatus());
    CHECK(s.buffer->committed().id == StateId{1, version});
    CHECK(s.config() == "{\"side\": " + std::to_string(side) + "}");
    CHECK(s.at().agent.counts().side_files == fetches);
  }
  CHECK(s.at().side_files_asked.back() == s.at().ended.back().side_files_hash);
  // An end without a hash of side files says nothing about them.
  s.at().at_end = [](StatusOr<net::PullEnd>& end) { end->side_files_hash = 0; };
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), Changed(chunks, 4)));
  CHECK(s.config() == "{\"side\": 200}");
  CHECK(s.at().agent.counts().side_files == 2);
}

TEST_CASE("pull round: without its side files a version is not committed") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  RoundRig s(2, buffers);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first, 100);
  REQUIRE(s.Pull() == absl::OkStatus());
  const Identity before = s.buffer->committed();
  s.Publish({1, 2}, second, 200);
  s.at(1).fail_side_files = 1;
  CHECK(s.Pull().code() == StatusCode::kUnavailable);
  CHECK(s.HoldsAtMost(before, first));
  CHECK(s.config() == "{\"side\": 100}");
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.Newest().whole, second));
  CHECK(s.config() == "{\"side\": 200}");
  CHECK(s.moved(0) + s.moved(1) == 12);
  s.Publish({1, 3}, first, 200);
  REQUIRE(s.Pull() == absl::OkStatus());
  // Side files that have come are not asked for again of either agent.
  CHECK(s.at(0).side_files_asked.size() == 2);
  CHECK(s.at(1).side_files_asked.size() == 3);
}

TEST_CASE("pull round: of a side file that several agents have the first one's is taken") {
  SideFileCache cache(2);
  CHECK_FALSE(cache.Has(0, 0));
  cache.Put(1, 9, {{"config.json", "second"}, {"more.json", "more"}});
  cache.Put(0, 8, {{"config.json", "first"}});
  CHECK(cache.Has(0, 8));
  CHECK(cache.Has(1, 9));
  CHECK_FALSE(cache.Has(0, 9));
  CHECK_FALSE(cache.Has(1, 8));
  const auto all = cache.Merged();
  REQUIRE(all.size() == 2);
  CHECK(all[0].name == "config.json");
  CHECK(all[0].content == "first");
  CHECK(all[1].content == "more");
  cache.Put(1, 10, {});
  CHECK(cache.Merged().size() == 1);
}

}  // namespace
}  // namespace deltawire::receiver::pull_round_side_files_test
