#include "common/layout/safetensors.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/layout_files.h"

namespace deltawire::safetensors_test {
namespace {

Layout Make(std::vector<TensorMeta> tensors) { return Layout::Create(std::move(tensors)).value(); }

StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensorsHeader(AsBytes(file), file.size(), "f.safetensors");
}

std::vector<TensorMeta> MetasOf(const SafetensorsHeader& header) {
  std::vector<TensorMeta> metas;
  for (const StoredTensor& t : header.tensors) metas.push_back(t.meta);
  return metas;
}

TEST_CASE("a header of ours is exactly this text, padded so that data starts on a page") {
  const Layout layout = Make({{"b\"\n", DType::kBF16, {2, 3}}, {"a", DType::kF64, {}}});
  const std::string header = BuildSafetensorsHeader(layout, {{"k\\", "v\t"}, {"format", "pt"}});
  REQUIRE(header.size() == kDataAlignment);
  CHECK(LoadLe<uint64_t>(AsBytes(header).data()) == kDataAlignment - 8);
  const std::string json = R"({"__metadata__":{"format":"pt","k\\":"v\u0009"},)"
                           R"("b\"\u000a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                           R"("a":{"dtype":"F64","shape":[],"data_offsets":[12,20]}})";
  CHECK(header.substr(8, json.size()) == json);
  CHECK(header.find_first_not_of(' ', 8 + json.size()) == std::string::npos);
}

TEST_CASE("data starts on a page whatever the header's length") {
  // Padding goes wrong, if at all, where the header's length is close to a page's end.
  bool saw_one_page = false;
  bool saw_two_pages = false;
  for (size_t n = 4000; n <= 4100; ++n) {
    const std::string header = BuildSafetensorsHeader(Make({}), {{"k", std::string(n, 'v')}});
    REQUIRE(header.size() % kDataAlignment == 0);
    REQUIRE(LoadLe<uint64_t>(AsBytes(header).data()) + 8 == header.size());
    saw_one_page |= header.size() == kDataAlignment;
    saw_two_pages |= header.size() == 2 * kDataAlignment;
    REQUIRE(Parse(header).value().metadata.at("k").size() == n);
  }
  CHECK(saw_one_page);
  CHECK(saw_two_pages);
}

TEST_CASE("an empty layout gives a header that reads back empty") {
  const std::string header = BuildSafetensorsHeader(Make({}));
  CHECK(header.substr(8, 3) == "{} ");
  const auto parsed = Parse(header).value();
  CHECK(parsed.tensors.empty());
  CHECK(parsed.metadata.empty());
  CHECK(parsed.data_offset == kDataAlignment);
}

TEST_CASE("any layout survives being written and read") {
  const auto seed = GENERATE(range(0u, 200u));
  CAPTURE(seed);
  std::mt19937 rng(seed);
  const Layout layout = Make(RandomTensors(rng));
  const std::map<std::string, std::string> metadata = {
      {"seed", std::to_string(seed)}, {"\xe2\x82\xac\"", std::string("\0\n", 2)}, {"", ""}};
  const std::string built = BuildSafetensorsHeader(layout, metadata);
  const auto header =
      ParseSafetensorsHeader(AsBytes(built), built.size() + layout.total_bytes(), "f");
  REQUIRE(header.ok());
  CHECK(header->data_offset == built.size());
  CHECK(header->metadata == metadata);
  REQUIRE(MetasOf(*header) == layout.tensors());
  for (size_t i = 0; i < layout.size(); ++i) {
    CHECK(header->tensors[i].begin == layout.offset(i));
    CHECK(header->tensors[i].end == layout.offset(i) + layout.bytes(i));
  }
  CHECK(Make(MetasOf(*header)).fingerprint() == layout.fingerprint());

  // A general JSON parser must see the same names, and no key twice.
  const auto json = nlohmann::json::parse(built.substr(8));
  CHECK(json.size() == layout.size() + 1);
  for (const TensorMeta& t : layout.tensors()) {
    CHECK(json.at(t.name).at("dtype") == DTypeName(t.dtype));
  }
}

TEST_CASE("bytes of metadata that are not UTF-8 do not spoil the file") {
  const std::string header = BuildSafetensorsHeader(Make({}), {{"k", "a\xff"}});
  CHECK(Parse(header).value().metadata.at("k") == "a\xef\xbf\xbd");
}

TEST_CASE("every dtype is read") {
  for (const DType t : AllDTypes()) {
    CAPTURE(DTypeName(t));
    const std::string file =
        FileOfJson(fmt::format(R"({{"w":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})",
                               DTypeName(t), 3 * DTypeBytes(t)),
                   3 * DTypeBytes(t));
    CHECK(Parse(file).value().tensors.at(0).meta == TensorMeta{"w", t, {3}});
  }
}

TEST_CASE("a file of the published writer is read, sorted by offset") {
  const auto header =
      Parse(ReadWholeFile(DW_GOLDEN_DIR "/safetensors_published_writer.safetensors")).value();
  const std::vector<TensorMeta> want = {{"w.a", DType::kI64, {4}},
                                        {"z", DType::kF32, {0, 4}},
                                        {"w.b", DType::kF16, {2, 3}},
                                        {"s", DType::kU8, {}},
                                        {"\xc3\xa4 \"q\"", DType::kBool, {2}}};
  CHECK(MetasOf(header) == want);
  CHECK(header.metadata ==
        std::map<std::string, std::string>{{"format", "pt"}, {"note", "line\nbreak \xe2\x82\xac"}});
  CHECK(header.tensors[2].begin == 32);
  CHECK(header.tensors[2].end == 44);
}

TEST_CASE("a header of ours has not changed since version 1") {
  const std::string golden = ReadWholeFile(DW_GOLDEN_DIR "/safetensors_header_v1.bin");
  const auto header = Parse(golden).value();
  CHECK(BuildSafetensorsHeader(Make(MetasOf(header)), header.metadata) ==
        golden.substr(0, header.data_offset));
  CHECK(header.tensors.size() == 17);
}

TEST_CASE("keys in any order, in any spacing, are read") {
  const std::string file = FileOfJson(
      "{\n \"b\" : { \"data_offsets\":[1 , 3],\t\"shape\":[ 2 ], \"dtype\":\"U8\" },\r\n"
      "\"\\u0061\":{\"shape\":[],\"dtype\":\"U8\",\"data_offsets\":[0,1]}}   \n ",
      3);
  const auto header = Parse(file).value();
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].meta.name == "a");
  CHECK(header.tensors[1].begin == 1);
}

TEST_CASE("the prefix need not hold the data") {
  const Layout layout = Make({{"w", DType::kF32, {1u << 20}}});
  const std::string built = BuildSafetensorsHeader(layout);
  CHECK(ParseSafetensorsHeader(AsBytes(built), built.size() + (4u << 20), "f").ok());
  const std::string_view cut = std::string_view(built).substr(0, built.size() - 1);
  const auto status = ParseSafetensorsHeader(AsBytes(cut), built.size() + (4u << 20), "f").status();
  CHECK_THAT(std::string(MessageOf(status)), Catch::Contains("only 4087 were read"));
}

TEST_CASE("a hundred thousand tensors are read in one pass") {
  std::vector<TensorMeta> tensors;
  for (int i = 0; i < 100'000; ++i) {
    tensors.push_back(
        {fmt::format("model.layers.{}.mlp.experts.{}.down_proj.weight", i / 256, i % 256),
         DType::kBF16,
         {2, 3}});
  }
  const Layout layout = Make(std::move(tensors));
  const std::string built = BuildSafetensorsHeader(layout);
  const auto header =
      ParseSafetensorsHeader(AsBytes(built), built.size() + layout.total_bytes(), "f");
  REQUIRE(header.ok());
  CHECK(MetasOf(*header) == layout.tensors());
}

}  // namespace
}  // namespace deltawire::safetensors_test
