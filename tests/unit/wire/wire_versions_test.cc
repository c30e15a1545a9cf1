#include "common/wire/wire_versions.h"

#include <catch2/catch.hpp>

namespace deltawire::wire::wire_versions_test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("two ends agree on the newest wire version that both speak") {
  CHECK(*AgreedVersion({4, 5}, {4, 5}, "peer") == 5);
  CHECK(*AgreedVersion({4, 5}, {5, 6}, "peer") == 5);
  CHECK(*AgreedVersion({5, 6}, {4, 5}, "peer") == 5);
  CHECK(*AgreedVersion({4, 6}, {5, 5}, "peer") == 5);
  // A peer of the first release, or one that only the streams' frames will tell apart.
  CHECK(*AgreedVersion({4, 5}, {0, 0}, "peer") == 4);
}

TEST_CASE("without a wire version in common, the refusal names both ends' versions") {
  const Status newer = AgreedVersion({4, 4}, {5, 6}, "receiver node-7").status();
  CHECK(newer.code() == StatusCode::kUnimplemented);
  CHECK_THAT(std::string(MessageOf(newer)),
             Contains("receiver node-7 speaks wire version 5 to 6, this end 4: upgrade the older"));
  CHECK(AgreedVersion({5, 6}, {4, 4}, "peer").status().code() == StatusCode::kUnimplemented);
}

TEST_CASE("a range of wire versions that is none is refused") {
  CHECK(AgreedVersion({4, 5}, {5, 4}, "peer").status().code() == StatusCode::kInvalidArgument);
  CHECK(AgreedVersion({4, 5}, {0, 5}, "peer").status().code() == StatusCode::kInvalidArgument);
  CHECK(AgreedVersion({4, 5}, {4, 0}, "peer").status().code() == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace deltawire::wire::wire_versions_test
