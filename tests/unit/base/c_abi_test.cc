#include "common/base/c_abi.h"

#include <catch2/catch.hpp>
#include <new>
#include <stdexcept>

namespace deltawire::c_abi::c_abi_test {
namespace {

int CodeOf(StatusCode code) { return static_cast<int>(code); }

TEST_CASE("c_abi: every failure of a call leaves a code and a text") {
  CHECK(Guard([] { return Invalid("no such rank"); }) == CodeOf(StatusCode::kInvalidArgument));
  CHECK(LastError() == "no such rank");
  CHECK(Guard([]() -> Status { throw std::bad_alloc(); }) ==
        CodeOf(StatusCode::kResourceExhausted));
  CHECK(LastError() == "out of memory");
  CHECK(Guard([]() -> Status { throw std::runtime_error("torn"); }) ==
        CodeOf(StatusCode::kInternal));
  CHECK(LastError() == "unexpected: torn");
}

TEST_CASE("c_abi: a call that succeeds clears the text of an earlier failure") {
  (void)Fail(Invalid("no such rank"));
  CHECK(Guard([] { return absl::OkStatus(); }) == 0);
  CHECK(LastError().empty());
}

}  // namespace
}  // namespace deltawire::c_abi::c_abi_test
