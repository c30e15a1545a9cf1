#include "common/base/stages.h"

#include <catch2/catch.hpp>
#include <set>

namespace deltawire::stages_test {
namespace {

TEST_CASE("stages: each has a name of its own, as metrics have it") {
  std::set<std::string_view> names;
  for (auto stage = static_cast<uint8_t>(Stage::kWait); stage <= static_cast<uint8_t>(Stage::kLoad);
       ++stage) {
    names.insert(ToString(static_cast<Stage>(stage)));
  }
  CHECK(names.size() == static_cast<size_t>(Stage::kLoad) + 1);
  CHECK(ToString(Stage::kWait) == "wait");
  CHECK(ToString(Stage::kDeliver) == "deliver");
  CHECK(ToString(Stage::kCommit) == "commit");
  CHECK(ToString(Stage::kLoad) == "load");
}

}  // namespace
}  // namespace deltawire::stages_test
