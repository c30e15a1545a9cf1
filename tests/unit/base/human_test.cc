#include "common/base/human.h"

#include <catch2/catch.hpp>
#include <limits>

namespace deltawire::human_test {
namespace {

TEST_CASE("bytes read as three digits and a decimal unit") {
  CHECK(HumanBytes(0) == "0 B");
  CHECK(HumanBytes(1) == "1 B");
  CHECK(HumanBytes(999) == "999 B");
  CHECK(HumanBytes(1'000) == "1.00 kB");
  CHECK(HumanBytes(1'234) == "1.23 kB");
  CHECK(HumanBytes(9'994) == "9.99 kB");
  CHECK(HumanBytes(1'190'000'000) == "1.19 GB");
  CHECK(HumanBytes(std::numeric_limits<uint64_t>::max()) == "18447 PB");
}

TEST_CASE("rounding never shows a fourth digit or a thousand of a smaller unit") {
  CHECK(HumanBytes(9'995) == "10.0 kB");
  CHECK(HumanBytes(99'949) == "99.9 kB");
  CHECK(HumanBytes(99'950) == "100 kB");
  CHECK(HumanBytes(999'499) == "999 kB");
  CHECK(HumanBytes(999'500) == "1.00 MB");
}

TEST_CASE("rates are bytes with a per-second suffix") {
  CHECK(HumanRate(3.1e9) == "3.10 GB/s");
  CHECK(HumanRate(0) == "0 B/s");
  CHECK(HumanRate(45.4e12) == "45.4 TB/s");
}

TEST_CASE("durations choose the unit people would") {
  CHECK(HumanSeconds(0) == "0.0 ms");
  CHECK(HumanSeconds(0.0042) == "4.2 ms");
  CHECK(HumanSeconds(0.084) == "84.0 ms");
  CHECK(HumanSeconds(0.25) == "250 ms");
  CHECK(HumanSeconds(0.999) == "999 ms");
  CHECK(HumanSeconds(0.9996) == "1.00 s");
  CHECK(HumanSeconds(119) == "119.00 s");
  CHECK(HumanSeconds(120) == "2.0 min");
  CHECK(HumanSeconds(7200) == "2.0 h");
}

TEST_CASE("SecondsSince measures from the given point") {
  CHECK(SecondsSince(std::chrono::steady_clock::now() - std::chrono::hours(1)) >= 3600);
  CHECK(SecondsSince(std::chrono::steady_clock::now() + std::chrono::hours(1)) < 0);
}

}  // namespace
}  // namespace deltawire::human_test
