// Damages valid inputs at random: no parser may crash or accept a header that breaks an invariant.
// The fuzz target checks what is accepted, and aborts if it is wrong.
#include <catch2/catch.hpp>

#include "common/layout/names.h"
#include "common/layout/weight_index.h"
#include "tests/support/layout_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace deltawire::safetensors_mutation_test {
namespace {

void Damage(std::string& s, size_t first, std::mt19937& rng) {
  static constexpr std::string_view kBytes = "{}[]\":,0123456789-.eE\\u \0\xff";
  const auto below = [&rng](size_t n) { return static_cast<size_t>(rng() % n); };
  for (size_t n = 1 + below(4); n > 0 && s.size() > first; --n) {
    const size_t at = first + below(s.size() - first);
    switch (below(5)) {
      case 0:
        s[at] = static_cast<char>(rng());
        break;
      case 1:
        s[at] = kBytes[below(kBytes.size())];
        break;
      case 2:
        s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
        break;
      case 3:
        s.insert(at, s.substr(first + below(s.size() - first), below(60)));
        break;
      default:
        s.erase(at, below(20));
        break;
    }
  }
}

void CheckFile(const std::string& file) {
  // The copy has exactly the file's size, so that a sanitizer sees a read past the end.
  const std::vector<uint8_t> copy(file.begin(), file.end());
  CHECK(LLVMFuzzerTestOneInput(copy.data(), copy.size()) == 0);
}

TEST_CASE("damaged headers never crash and never pass with broken offsets") {
  const auto seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937 rng(seed);
  const std::string valid = FileOfLayout(Layout::Create(RandomTensors(rng, 8)).value());
  CheckFile(valid);
  const size_t header_bytes = 8 + LoadLe<uint64_t>(AsBytes(valid).data());
  const std::string json = valid.substr(8, valid.find_last_of('}', header_bytes - 1) - 7);
  const std::string data = valid.substr(header_bytes);
  for (int round = 0; round < 300; ++round) {
    std::string text = json;
    Damage(text, 0, rng);
    CheckFile(FileOfJson(text) + data);  // the header's length fits, so only the JSON is damaged
    std::string file = FileOfJson(json) + data;
    Damage(file, 0, rng);
    CheckFile(file);
    CheckFile(file.substr(0, rng() % (file.size() + 1)));
  }
}

TEST_CASE("damaged indexes never crash and never name a path") {
  const auto seed = GENERATE(range(0u, 10u));
  CAPTURE(seed);
  std::mt19937 rng(seed);
  const std::string valid =
      R"({"metadata":{"total_size":8,"x":[1,{"y":null}]},"weight_map":{"a":"m-1.safetensors",)"
      R"("b":"m-2.safetensors","c":"m-2.safetensors"}})";
  REQUIRE(ParseWeightIndex(valid, "f").ok());
  for (int round = 0; round < 500; ++round) {
    std::string text = valid;
    Damage(text, 0, rng);
    const std::vector<char> copy(text.begin(), text.end());
    const auto index = ParseWeightIndex({copy.data(), copy.size()}, "f");
    if (!index.ok()) {
      REQUIRE(IsUtf8(MessageOf(index.status())));
      REQUIRE(MessageOf(index.status()).starts_with("f: "));
      continue;
    }
    REQUIRE_FALSE(index->empty());
    for (const auto& [tensor, shard] : *index) {
      REQUIRE(shard.find('/') == std::string::npos);
      REQUIRE(shard.ends_with(".safetensors"));
    }
  }
}

}  // namespace
}  // namespace deltawire::safetensors_mutation_test
