#include "common/layout/weight_index.h"

#include <catch2/catch.hpp>

namespace deltawire::weight_index_test {
namespace {

using Catch::Contains;

TEST_CASE("the weight map is read and everything else skipped") {
  const auto index = ParseWeightIndex(
      R"({"metadata":{"total_size":1e3,"weight_map":{"no":7}},"list":[1,[2,{"a":[]}],null,-1.5],)"
      R"("weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"},"s":"x","n":true})",
      "f");
  REQUIRE(index.ok());
  CHECK(*index == WeightIndex{{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}});
}

TEST_CASE("an index that cannot be trusted is refused, naming the file and the tensor") {
  const std::string deep = R"({"x":)" + std::string(100'000, '[');
  const auto [json, says] = GENERATE_COPY(table<std::string, std::string>({
      {"", "malformed JSON"},
      {"{", "malformed JSON"},
      {std::string("{}\0", 3), "NUL byte"},
      {"[]", "an array instead of an object"},
      {"7", "a number instead of an object"},
      {"\"x\"", "a string instead of an object"},
      {"null", "null instead of an object"},
      {"{}", "no \"weight_map\""},
      {R"({"metadata":{}})", "no \"weight_map\""},
      {R"({"weight_map":{}})", "lists no tensors"},
      {R"({"weight_map":"x"})", "\"weight_map\" is a string"},
      {R"({"weight_map":[]})", "\"weight_map\" is an array"},
      {R"({"weight_map":3})", "\"weight_map\" is a number"},
      {R"({"weight_map":{},"weight_map":{}})", "\"weight_map\" is given twice"},
      {R"({"weight_map":{"a":"m.safetensors","a":"m.safetensors"}})", "\"a\" is listed twice"},
      {R"({"weight_map":{"a":7}})", "tensor \"a\": a number"},
      {R"({"weight_map":{"a":null}})", "tensor \"a\": null"},
      {R"({"weight_map":{"a":{}}})", "tensor \"a\": an object"},
      {R"({"weight_map":{"a":["m.safetensors"]}})", "tensor \"a\": an array"},
      {R"({"weight_map":{"a":""}})", "tensor \"a\": shard \"\""},
      {R"({"weight_map":{"a":"../m.safetensors"}})", "tensor \"a\": shard \"../m.safetensors\""},
      {R"({"weight_map":{"a":"/m.safetensors"}})", "not a plain"},
      {R"({"weight_map":{"a":".m.safetensors"}})", "not a plain"},
      {R"({"weight_map":{"a":"m\u0000.safetensors"}})", "not a plain"},
      {R"({"weight_map":{"a":"m.bin"}})", "\"m.bin\" is not a plain"},
      {deep, "nested deeper"},
  }));
  CAPTURE(json.substr(0, 80));
  const auto index = ParseWeightIndex(json, "dir/i.json");
  REQUIRE_FALSE(index.ok());
  CHECK(index.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(MessageOf(index.status())),
             Catch::StartsWith("dir/i.json: ") && Contains(says));
}

}  // namespace
}  // namespace deltawire::weight_index_test
