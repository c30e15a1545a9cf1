// Headers that must be refused, each with a message that names the file and the cause.
#include <catch2/catch.hpp>

#include "common/layout/names.h"
#include "tests/support/layout_files.h"

namespace deltawire::safetensors_hostile_test {
namespace {

using Catch::Contains;

struct Hostile {
  std::string what;
  std::string file;  // the whole content
  std::vector<std::string> says;
};

std::string Raw(uint64_t length, std::string_view rest) {
  std::string file = FileOfJson(rest);
  StoreLe(reinterpret_cast<std::byte*>(file.data()), length);
  return file;
}

/// The content of a file with one tensor "w" whose JSON object has these members.
std::string One(std::string_view members, size_t data_bytes = 4) {
  return FileOfJson(fmt::format(R"({{"w":{{{}}}}})", members), data_bytes);
}

std::string Deep(size_t levels, char open) { return R"({"w":)" + std::string(levels, open); }

constexpr std::string_view kGood = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";

std::vector<Hostile> Lengths() {
  return {
      {"empty file", "", {"0 bytes"}},
      {"seven bytes", std::string(7, 'x'), {"7 bytes"}},
      {"eight bytes of zero", std::string(8, '\0'), {"does not start with '{'"}},
      {"length 2^63", Raw(uint64_t{1} << 63, "{}"), {"9223372036854775808 bytes", "10 in all"}},
      {"length 2^64-1", Raw(UINT64_MAX, "{}"), {"18446744073709551615"}},
      {"length that wraps with the 8", Raw(UINT64_MAX - 7, "{}"), {"10 in all"}},
      {"length beyond the file by one", Raw(3, "{}"), {"claims 3 bytes", "10 in all"}},
      {"not a brace", FileOfJson("[]"), {"does not start with '{'"}},
      {"leading space", FileOfJson(" {}"), {"does not start with '{'"}},
      {"byte order mark", FileOfJson("\xef\xbb\xbf{}"), {"does not start with '{'"}},
      {"a git-lfs pointer", "version https://git-lfs.github.com/spec/v1\n", {"not a safetensors"}},
  };
}

std::vector<Hostile> Syntax() {
  return {
      {"cut JSON", FileOfJson("{"), {"malformed JSON at byte"}},
      {"cut string", FileOfJson("{\"w"), {"malformed JSON"}},
      {"trailing comma",
       FileOfJson("{" + std::string(R"("w":{)") + std::string(kGood) + "},}", 4),
       {"malformed JSON"}},
      {"text after the object", FileOfJson("{} {}"), {"malformed JSON"}},
      {"NUL padding", FileOfJson(std::string("{}\0\0", 4)), {"NUL byte"}},
      {"NUL hides a tail", FileOfJson(std::string("{}\0garbage", 10)), {"NUL byte"}},
      {"comment", FileOfJson("{/**/}"), {"malformed JSON"}},
      {"invalid UTF-8 in a name", FileOfJson("{\"\xff\":{}}"), {"malformed JSON"}},
      {"overlong UTF-8", FileOfJson("{\"\xc0\x80\":{}}"), {"malformed JSON"}},
      {"surrogate in UTF-8", FileOfJson("{\"\xed\xa0\x80\":{}}"), {"malformed JSON"}},
      {"lone surrogate escape", FileOfJson(R"({"\ud800":{}})"), {"malformed JSON"}},
      {"control character", FileOfJson("{\"a\nb\":{}}"), {"malformed JSON"}},
      {"a million arrays", FileOfJson(Deep(1'000'000, '[')), {"\"w\"", "an array stands where"}},
      {"arrays in a shape",
       FileOfJson(R"({"w":{"shape":)" + std::string(100'000, '[')),
       {"\"w\"", "a dimension"}},
      {"objects in metadata",
       FileOfJson(R"({"__metadata__":{"a":{"a":{"a":{}}}}})"),
       {"__metadata__", "an object stands where a string"}},
      {"objects for ever",
       FileOfJson([] {
         std::string s;
         for (int i = 0; i < 100'000; ++i) s += R"({"a":)";
         return s;
       }()),
       {"\"a\"", "not part of the format"}},
      {"number beyond double",
       One(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,4])"),
       {"malformed JSON"}},
  };
}

std::vector<Hostile> Members() {
  return {
      {"name twice",
       FileOfJson(fmt::format(R"({{"w":{{{}}},"w":{{{}}}}})", kGood, kGood), 4),
       {"tensor \"w\"", "twice"}},
      {"name twice, once escaped",
       FileOfJson(fmt::format(R"({{"w":{{{}}},"\u0077":{{{}}}}})", kGood, kGood), 4),
       {"tensor \"w\"", "twice"}},
      {"metadata twice",
       FileOfJson(R"({"__metadata__":{},"__metadata__":{}})"),
       {"__metadata__", "twice"}},
      {"metadata key twice",
       FileOfJson(R"({"__metadata__":{"k":"1","k":"2"}})"),
       {"__metadata__", "\"k\"", "twice"}},
      {"dtype twice",
       One(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"),
       {"\"w\"", "\"dtype\" is given twice"}},
      {"shape twice",
       One(R"("dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4])"),
       {"\"w\"", "\"shape\" is given twice"}},
      {"offsets twice",
       One(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"data_offsets":[0,4])"),
       {"\"w\"", "\"data_offsets\" is given twice"}},
      {"no dtype", One(R"("shape":[4],"data_offsets":[0,4])"), {"\"w\"", "\"dtype\" is missing"}},
      {"no shape", One(R"("dtype":"U8","data_offsets":[0,4])"), {"\"w\"", "\"shape\" is missing"}},
      {"no offsets", One(R"("dtype":"U8","shape":[4])"), {"\"w\"", "\"data_offsets\" is missing"}},
      {"no dtype in the second tensor",
       FileOfJson(fmt::format(R"({{"a":{{{}}},"w":{{"shape":[0],"data_offsets":[4,4]}}}})", kGood),
                  4),
       {"\"w\"", "\"dtype\" is missing"}},
      {"unknown member", One(std::string(kGood) + R"(,"stride":[1])"), {"\"w\"", "\"stride\""}},
      {"empty name", FileOfJson(fmt::format(R"({{"":{{{}}}}})", kGood), 4), {"empty name"}},
      {"long name", FileOfJson("{\"" + std::string(1025, 'n') + "\":{}}"), {"1025 bytes"}},
      {"unknown dtype",
       One(R"("dtype":"BF17","shape":[4],"data_offsets":[0,4])"),
       {"\"w\"", "\"BF17\"", "BF16"}},
      {"dtype is a number",
       One(R"("dtype":7,"shape":[4],"data_offsets":[0,4])"),
       {"\"w\"", "a number stands where the name of a dtype"}},
      {"shape is a number",
       One(R"("dtype":"U8","shape":4,"data_offsets":[0,4])"),
       {"\"w\"", "list of dimensions"}},
      {"tensor is null", FileOfJson(R"({"w":null})"), {"\"w\"", "null stands where an object"}},
      {"tensor is a string", FileOfJson(R"({"w":"x"})"), {"\"w\"", "a string stands"}},
      {"metadata is a string",
       FileOfJson(R"({"__metadata__":"x"})"),
       {"__metadata__", "a string stands where an object"}},
      {"metadata is null", FileOfJson(R"({"__metadata__":null})"), {"__metadata__", "null"}},
      {"metadata of numbers",
       FileOfJson(R"({"__metadata__":{"k":1}})"),
       {"__metadata__", "a number stands where a string"}},
      {"metadata of true",
       FileOfJson(R"({"__metadata__":{"k":true}})"),
       {"__metadata__", "true or false"}},
      {"metadata of arrays",
       FileOfJson(R"({"__metadata__":{"k":["v"]}})"),
       {"__metadata__", "an array"}},
  };
}

std::vector<Hostile> Numbers() {
  return {
      {"negative dimension",
       One(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"),
       {"\"w\"", "a negative number stands where a dimension"}},
      {"fractional dimension",
       One(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"),
       {"\"w\"", "a fractional number"}},
      {"dimension with exponent",
       One(R"("dtype":"U8","shape":[4e0],"data_offsets":[0,4])"),
       {"\"w\"", "a fractional number"}},
      {"dimension beyond 64 bits",
       One(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4])"),
       {"\"w\"", "beyond 64 bits"}},
      {"dimension is a string",
       One(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"),
       {"\"w\"", "a string stands where a dimension"}},
      {"negative offset",
       One(R"("dtype":"U8","shape":[4],"data_offsets":[-1,3])"),
       {"\"w\"", "a negative number stands where a data offset"}},
      {"one offset",
       One(R"("dtype":"U8","shape":[4],"data_offsets":[4])"),
       {"\"w\"", "two numbers"}},
      {"three offsets",
       One(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"),
       {"\"w\"", "two numbers"}},
      {"seventeen dimensions",
       One(R"("dtype":"U8","shape":[4,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])"),
       {"\"w\"", "more than 16 dimensions"}},
      {"shape overflows",
       One(R"("dtype":"U8","shape":[4294967296,4294967297],"data_offsets":[0,4])"),
       {"\"w\"", "larger than 2^63"}},
      {"width overflows",
       One(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"),
       {"\"w\"", "larger than 2^63"}},
      {"shape overflows to four",
       One(R"("dtype":"U8","shape":[2147483649,8589934588],"data_offsets":[0,4])"),
       {"\"w\"", "larger than 2^63"}},
      {"overflow hidden by zero",
       One(R"("dtype":"U8","shape":[0,9223372036854775808,2],"data_offsets":[0,0])"),
       {"\"w\"", "larger than 2^63"}},
  };
}

std::string Two(int b1, int e1, int b2, int e2, size_t data) {
  return FileOfJson(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                                R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                                e1 - b1, b1, e1, e2 - b2, b2, e2),
                    data);
}

std::vector<Hostile> Places() {
  return {
      {"offsets disagree with shape",
       One(R"("dtype":"U8","shape":[5],"data_offsets":[0,4])"),
       {"\"w\"", "span 4 bytes", "need 5"}},
      {"reversed offsets",
       One(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"),
       {"\"w\"", "reversed"}},
      {"offsets beyond the file", One(kGood, 3), {"\"w\"", "beyond the 3 bytes", "incomplete"}},
      {"offsets at the end of 64 bits",
       One(R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615])"),
       {"\"w\"", "belong to no tensor"}},
      {"first byte unused", Two(1, 3, 3, 5, 5), {"\"a\"", "the 1 bytes before"}},
      {"hole", Two(0, 2, 3, 5, 5), {"\"b\"", "the 1 bytes before its data offset 3"}},
      {"overlap", Two(0, 3, 2, 5, 5), {"\"b\"", "overlap those of tensor \"a\""}},
      {"same place", Two(0, 4, 0, 4, 4), {"\"b\"", "overlap", "\"a\""}},
      {"one inside the other", Two(0, 5, 1, 3, 5), {"\"b\"", "overlap", "\"a\""}},
      {"empty tensor inside another", Two(0, 4, 2, 2, 4), {"\"b\"", "overlap", "\"a\""}},
      {"empty tensor beyond the end", Two(0, 4, 5, 5, 4), {"\"b\"", "belong to no tensor"}},
      {"trailing bytes", Two(0, 2, 2, 4, 5), {"1 bytes after its last tensor"}},
      {"trailing bytes without tensors", FileOfJson("{}", 5), {"5 bytes after"}},
  };
}

TEST_CASE("hostile headers are refused, naming the file and the cause") {
  std::vector<Hostile> all;
  for (auto&& group : {Lengths(), Syntax(), Members(), Numbers(), Places()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  CHECK(all.size() > 70);
  for (const Hostile& h : all) {
    CAPTURE(h.what);
    const auto header = ParseSafetensorsHeader(AsBytes(h.file), h.file.size(), "dir/f.safetensors");
    CHECK_FALSE(header.ok());
    if (header.ok()) continue;
    CHECK(header.status().code() == StatusCode::kInvalidArgument);
    const std::string message(MessageOf(header.status()));
    CHECK_THAT(message, Catch::StartsWith("dir/f.safetensors: "));
    for (const std::string& part : h.says) CHECK_THAT(message, Contains(part));
    CHECK(IsUtf8(message));
    CHECK(message.size() < 600);
  }
}

TEST_CASE("the samples that the hostile ones are made from are fine") {
  for (const std::string& file :
       {One(kGood), Two(0, 2, 2, 4, 4), Two(2, 4, 0, 2, 4), Two(0, 4, 4, 4, 4), Two(0, 0, 0, 4, 4),
        Two(0, 4, 0, 0, 4), FileOfJson("{}  ")}) {
    CAPTURE(file);
    CHECK(ParseSafetensorsHeader(AsBytes(file), file.size(), "f").ok());
  }
}

TEST_CASE("a header beyond the limit is refused although the file is large enough") {
  const std::string start = Raw(kMaxSafetensorsHeader + 1, "{");
  const auto header = ParseSafetensorsHeader(AsBytes(start), uint64_t{1} << 40, "f");
  REQUIRE_FALSE(header.ok());
  CHECK_THAT(std::string(MessageOf(header.status())), Contains("more than the limit"));
}

TEST_CASE("a prefix longer than the stated file is not read past the file") {
  const std::string file = One(kGood);
  const auto header = ParseSafetensorsHeader(AsBytes(file), 20, "f");
  REQUIRE_FALSE(header.ok());
  CHECK_THAT(std::string(MessageOf(header.status())), Contains("20 in all"));
}

}  // namespace
}  // namespace deltawire::safetensors_hostile_test
