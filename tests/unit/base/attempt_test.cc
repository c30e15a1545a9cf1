#include "common/base/attempt.h"

#include <catch2/catch.hpp>

namespace deltawire::attempt_test {

TEST_CASE("an attempt is never 0, and never the same twice") {
  const uint64_t attempt = DrawAttempt();
  CHECK(attempt != 0);
  CHECK(DrawAttempt() != attempt);
}

}  // namespace deltawire::attempt_test
