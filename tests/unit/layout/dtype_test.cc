#include "common/layout/dtype.h"

#include <catch2/catch.hpp>
#include <optional>
#include <set>

namespace deltawire::dtype_test {
namespace {

struct Expected {
  std::optional<DType> type;  // nullopt: it has no enumerator
  const char* name;
  unsigned bytes;
};

const std::vector<Expected> kExpected = {
    {DType::kF64, "F64", 8},
    {DType::kF32, "F32", 4},
    {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kI64, "I64", 8},
    {DType::kI32, "I32", 4},
    {DType::kI16, "I16", 2},
    {DType::kI8, "I8", 1},
    {DType::kU64, "U64", 8},
    {DType::kU32, "U32", 4},
    {DType::kU16, "U16", 2},
    {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1},
    {{}, "F8_E8M0", 1},
    {{}, "F8_E4M3FNUZ", 1},
    {{}, "F8_E5M2FNUZ", 1},
    {{}, "C64", 8},
};

TEST_CASE("every dtype has the name and width of the safetensors format") {
  REQUIRE(AllDTypes().size() == kExpected.size());
  std::set<DType> seen(AllDTypes().begin(), AllDTypes().end());
  CHECK(seen.size() == kExpected.size());
  for (const Expected& e : kExpected) {
    CAPTURE(e.name);
    const DType type = ParseDType(e.name).value();
    CHECK(e.type.value_or(type) == type);
    CHECK(seen.contains(type));
    CHECK(DTypeName(type) == e.name);
    CHECK(DTypeBytes(type) == e.bytes);
  }
}

TEST_CASE("an unknown dtype is refused with the list of known ones") {
  const std::string name = GENERATE(as<std::string>(), "", "bf16", "BF16 ", "F4", "F8", "\xff");
  CAPTURE(name);
  const auto parsed = ParseDType(name);
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.status().code() == StatusCode::kInvalidArgument);
  for (const Expected& e : kExpected) {
    CHECK_THAT(std::string(MessageOf(parsed.status())), Catch::Contains(e.name));
  }
}

}  // namespace
}  // namespace deltawire::dtype_test
