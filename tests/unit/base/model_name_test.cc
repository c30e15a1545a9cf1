#include "common/base/model_name.h"

#include <catch2/catch.hpp>
#include <string>

namespace deltawire::model_name_test {
namespace {

TEST_CASE("a model's name is safe as a directory's name") {
  for (const std::string& name : {std::string("a"), std::string("Qwen3-30B_A3B.v2"),
                                  std::string(kMaxModelName, 'x'), std::string("-")}) {
    CAPTURE(name);
    CHECK(CheckModelName(name) == absl::OkStatus());
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("a/b"),
        std::string("a b"), std::string("\xc3\xbc"), std::string("a\nb"), std::string("a\0b", 3),
        std::string(kMaxModelName + 1, 'x')}) {
    CAPTURE(name);
    const Status refused = CheckModelName(name);
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(MessageOf(refused).find("is not a model name") != std::string::npos);
  }
}

}  // namespace
}  // namespace deltawire::model_name_test
