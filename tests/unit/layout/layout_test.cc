#include "common/layout/layout.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "tests/support/layout_files.h"

namespace deltawire::layout_test {
namespace {

using Catch::Contains;

Layout Make(std::vector<TensorMeta> tensors) { return Layout::Create(std::move(tensors)).value(); }

std::string CreateError(std::vector<TensorMeta> tensors) {
  const auto layout = Layout::Create(std::move(tensors));
  REQUIRE_FALSE(layout.ok());
  CHECK(layout.status().code() == StatusCode::kInvalidArgument);
  return std::string(MessageOf(layout.status()));
}

TEST_CASE("offsets follow from shapes and dtypes, tightly packed") {
  const Layout layout = Make({{"b", DType::kBF16, {3, 5}},
                              {"empty", DType::kF64, {4, 0}},
                              {"a", DType::kF64, {}},
                              {"c", DType::kBool, {7}}});
  CHECK(layout.size() == 4);
  CHECK(layout.offset(0) == 0);
  CHECK(layout.bytes(0) == 30);
  CHECK(layout.offset(1) == 30);
  CHECK(layout.bytes(1) == 0);
  CHECK(layout.offset(2) == 30);
  CHECK(layout.bytes(2) == 8);
  CHECK(layout.offset(3) == 38);
  CHECK(layout.total_bytes() == 45);
  CHECK(layout.tensor(2).name == "a");
  CHECK(layout.Find("c") == 3);
  CHECK(layout.Find("b") == 0);
  CHECK_FALSE(layout.Find("d").has_value());
  CHECK(Make({}).total_bytes() == 0);
}

TEST_CASE("tensor sizes are computed for every dtype") {
  for (const DType t : AllDTypes()) {
    CAPTURE(DTypeName(t));
    CHECK(TensorBytes({"t", t, {}}).value() == DTypeBytes(t));
    CHECK(TensorBytes({"t", t, {3, 1, 7}}).value() == 21 * DTypeBytes(t));
    CHECK(TensorBytes({"t", t, {3, 0}}).value() == 0);
  }
}

TEST_CASE("a size that does not fit 63 bits is refused whatever the order of dimensions") {
  constexpr uint64_t kHalf = uint64_t{1} << 62;
  CHECK(TensorBytes({"t", DType::kU8, {(uint64_t{1} << 63) - 1}}).value() == INT64_MAX);
  const std::vector<uint64_t> shape =
      GENERATE(values<std::vector<uint64_t>>({{uint64_t{1} << 63},
                                              {UINT64_MAX},
                                              {kHalf, 2},
                                              {2, kHalf},
                                              {UINT64_MAX, UINT64_MAX},
                                              {uint64_t{1} << 32, uint64_t{1} << 32},
                                              {0, kHalf, kHalf},
                                              {kHalf, kHalf, 0}}));
  CAPTURE(shape);
  const auto bytes = TensorBytes({"big", DType::kU8, shape});
  REQUIRE_FALSE(bytes.ok());
  CHECK_THAT(std::string(MessageOf(bytes.status())), Contains("\"big\""));
  CHECK_THAT(CreateError({{"big", DType::kU8, shape}}), Contains("\"big\""));
  CHECK_FALSE(TensorBytes({"w", DType::kF64, {kHalf / 4}}).ok());
}

TEST_CASE("tensors that overflow only together are refused") {
  CHECK_THAT(
      CreateError({{"a", DType::kU8, {uint64_t{1} << 62}}, {"b", DType::kU8, {uint64_t{1} << 62}}}),
      Contains("\"b\"") && Contains("together"));
}

TEST_CASE("names must be usable in every safetensors file") {
  CHECK_THAT(CreateError({{"w", DType::kU8, {}}, {"", DType::kU8, {}}}),
             Contains("number 1 has no name"));
  CHECK_THAT(CreateError({{"w", DType::kU8, {}}, {"w", DType::kF32, {}}}),
             Contains("\"w\" is listed twice"));
  CHECK_THAT(CreateError({{"bad\xff", DType::kU8, {}}}), Contains("not UTF-8"));
  CHECK_THAT(CreateError({{"__metadata__", DType::kU8, {}}}), Contains("__metadata__"));
  CHECK_THAT(CreateError({{std::string(Layout::kMaxNameBytes + 1, 'n'), DType::kU8, {}}}),
             Contains("1025 bytes"));
  CHECK(Layout::Create({{std::string(Layout::kMaxNameBytes, 'n'), DType::kU8, {}}}).ok());
}

TEST_CASE("ranks and dtype numbers are bounded") {
  const std::vector<uint64_t> most(Layout::kMaxRank, 1);
  CHECK(Layout::Create({{"w", DType::kU8, most}}).ok());
  std::vector<uint64_t> more = most;
  more.push_back(1);
  CHECK_THAT(CreateError({{"w", DType::kU8, more}}), Contains("17 dimensions"));
  CHECK_THAT(CreateError({{"w", static_cast<DType>(AllDTypes().size()), {}}}), Contains("dtype"));
}

TEST_CASE("the fingerprint is the documented hash of the documented bytes") {
  // These bytes are spelt out by hand: u32 name length, name, u8 dtype length, dtype, u8 rank, u64
  // dimensions.
  using namespace std::string_literals;
  const std::string text = "\x01\0\0\0a\x04"s + "BF16\x02"s + "\x02\0\0\0\0\0\0\0"s +
                           "\x00\x01\0\0\0\0\0\0"s + "\x02\0\0\0"s + "bc\x07"s + "F8_E4M3\x00"s;
  const Layout layout = Make({{"a", DType::kBF16, {2, 256}}, {"bc", DType::kF8E4M3, {}}});
  CHECK(layout.fingerprint() == Xxh3_128(AsBytes(text)));
  CHECK(Make({}).fingerprint() == Xxh3_128({}));
}

TEST_CASE("the fingerprint has not changed since version 1") {
  // Each line is "fingerprint name dtype dims..." and adds one tensor. A second implementation in
  // Python computed the fingerprints.
  std::istringstream lines(ReadWholeFile(DW_GOLDEN_DIR "/safetensors_layout_fingerprint_v1.txt"));
  std::vector<TensorMeta> tensors;
  size_t checked = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string want;
    std::string dtype;
    TensorMeta t;
    words >> want >> t.name >> dtype;
    t.dtype = ParseDType(dtype).value();
    for (uint64_t d; words >> d;) t.shape.push_back(d);
    tensors.push_back(t);
    CAPTURE(line);
    CHECK(Make(tensors).fingerprint().Hex() == want);
    ++checked;
  }
  CHECK(checked == 15);
}

TEST_CASE("every change of tensors_meta changes the fingerprint") {
  const std::vector<TensorMeta> base = {{"a", DType::kBF16, {2, 3}}, {"b", DType::kF16, {6}}};
  const std::vector<std::vector<TensorMeta>> others = {
      {{"b", DType::kF16, {6}}, {"a", DType::kBF16, {2, 3}}},
      {{"a", DType::kBF16, {3, 2}}, {"b", DType::kF16, {6}}},
      {{"a", DType::kBF16, {2, 3, 1}}, {"b", DType::kF16, {6}}},
      {{"a", DType::kF16, {2, 3}}, {"b", DType::kF16, {6}}},
      {{"a", DType::kBF16, {2, 3}}, {"c", DType::kF16, {6}}},
      {{"a", DType::kBF16, {2, 3}}},
  };
  for (size_t i = 0; i < others.size(); ++i) {
    CAPTURE(i);
    CHECK_FALSE(Make(others[i]).fingerprint() == Make(base).fingerprint());
  }
  CHECK(Make(base).fingerprint() == Make(base).fingerprint());
}

TEST_CASE("differences are told in words") {
  const Layout want =
      Make({{"a", DType::kBF16, {2, 3}}, {"b", DType::kF16, {6}}, {"c", DType::kU8, {}}});
  CHECK(DescribeDifference(want, want).empty());
  CHECK(DescribeDifference(want, Make({{"a", DType::kBF16, {2, 3}}, {"c", DType::kU8, {}}})) ==
        "tensor \"b\" (F16 [6]) is missing");
  CHECK(DescribeDifference(Make({{"a", DType::kBF16, {2, 3}}}),
                           Make({{"a", DType::kBF16, {2, 3}}, {"x", DType::kI8, {1}}})) ==
        "tensor \"x\" (I8 [1]) is not expected");
  CHECK(
      DescribeDifference(Make({{"a", DType::kBF16, {2, 3}}}), Make({{"a", DType::kF32, {3, 2}}})) ==
      "tensor \"a\" is F32 [3, 2] instead of BF16 [2, 3]");
  CHECK(DescribeDifference(Make({{"a", DType::kU8, {}}, {"b", DType::kU8, {}}}),
                           Make({{"b", DType::kU8, {}}, {"a", DType::kU8, {}}})) ==
        "tensor \"a\" is number 1 instead of number 0; tensor \"b\" is number 0 instead of "
        "number 1");
}

TEST_CASE("a change says which tensors came and went") {
  const Layout before = Make({{"a", DType::kBF16, {2}}, {"b", DType::kU8, {}}});
  const Layout after = Make({{"b", DType::kF32, {}}, {"c", DType::kI8, {1}}});
  CHECK(DescribeChange(before, after) ==
        "tensor \"a\" (BF16 [2]) was removed; tensor \"b\" is F32 [] instead of U8 []; "
        "tensor \"c\" (I8 [1]) was added");
  CHECK(DescribeChange(before, before).empty());
}

TEST_CASE("only the first differences are spelt out") {
  std::vector<TensorMeta> many;
  for (int i = 0; i < 9; ++i) many.push_back({"t" + std::to_string(i), DType::kU8, {}});
  const Layout want = Make(many);
  const Layout got = Make({});
  CHECK(DescribeDifference(want, got, 1) == "tensor \"t0\" (U8 []) is missing; and 8 more");
  CHECK_THAT(DescribeDifference(want, got),
             Contains("\"t4\"") && !Contains("\"t5\"") && Contains("and 4 more"));
  CHECK(DescribeDifference(want, got, 0) == "9 differences");
  CHECK_THAT(DescribeDifference(want, got, 9), Contains("\"t8\"") && !Contains("more"));
}

TEST_CASE("DescribeDifference is empty exactly when the fingerprints agree") {
  const auto seed = GENERATE(range(0u, 40u));
  CAPTURE(seed);
  std::mt19937 rng(seed);
  const std::vector<TensorMeta> tensors = RandomTensors(rng, 6);
  std::vector<TensorMeta> changed = tensors;
  if (rng() % 2 == 0) std::shuffle(changed.begin(), changed.end(), rng);
  if (!changed.empty() && rng() % 4 == 0) changed[0].shape.push_back(1);
  if (!changed.empty() && rng() % 4 == 0) changed.pop_back();
  const Layout a = Make(tensors);
  const Layout b = Make(changed);
  CHECK(DescribeDifference(a, b).empty() == (a.fingerprint() == b.fingerprint()));
  CHECK(DescribeDifference(b, a).empty() == (tensors == changed));
}

}  // namespace
}  // namespace deltawire::layout_test
