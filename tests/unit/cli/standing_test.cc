#include "cli/standing.h"

#include <catch2/catch.hpp>

namespace deltawire::cli::standing_test {
namespace {

Identity Of(uint64_t lineage, uint64_t epoch, uint64_t version, uint64_t root) {
  return {.lineage = {lineage, lineage}, .id = {epoch, version}, .root = root, .attempt = 0};
}

std::string Behind(const Identity& held, const Identity& newest, bool part = false) {
  return BehindText(StandingOf(held, newest, part));
}

bool Warns(const Identity& held, const Identity& newest, bool part = false) {
  return !Warning(StandingOf(held, newest, part), held, newest).empty();
}

TEST_CASE("standing: being behind gives no warning, but other bytes and other histories do") {
  const Identity newest = Of(1, 2, 7, 70);
  CHECK(Behind({}, newest) == "-");
  CHECK(Behind(newest, {}) == "-");
  CHECK(Behind(newest, newest) == "0");
  CHECK(Behind(Of(1, 2, 4, 40), newest) == "3");
  CHECK(Behind(Of(1, 1, 9, 90), newest) == "epoch");
  CHECK(Behind(Of(1, 2, 8, 80), newest) == "ahead");
  CHECK(Behind(Of(1, 3, 1, 80), newest) == "ahead");
  CHECK(Behind(Of(2, 2, 7, 70), newest) == "lineage");
  CHECK(Behind(Of(1, 2, 7, 71), newest) == "BYTES");
  for (const Identity& held : {Identity(), newest, Of(1, 2, 4, 40), Of(1, 1, 9, 90)}) {
    CHECK_FALSE(Warns(held, newest));
  }
  for (const Identity& held : {Of(1, 2, 8, 80), Of(2, 2, 7, 70), Of(1, 2, 7, 71)}) {
    CHECK(Warns(held, newest));
  }
}

TEST_CASE("standing: a part's lineage and root are not the whole's") {
  CHECK(Behind(Of(3, 1, 7, 5), Of(1, 1, 7, 70), true) == "0");
  CHECK(Behind(Of(3, 1, 6, 5), Of(1, 1, 7, 70), true) == "1");
}

}  // namespace
}  // namespace deltawire::cli::standing_test
