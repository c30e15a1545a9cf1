// The frozen bytes of format version 1, and the example of docs/delta_format.md.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test {
namespace {

const std::string kDir = DELTAWIRE_GOLDEN_DIR;

Buffer ReadGolden(const std::string& name) {
  std::ifstream file(kDir + "/" + name, std::ios::binary);
  CAPTURE(name);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return Buffer(std::as_bytes(std::span(text)), 0);
}

TEST_CASE("Every backend encodes and applies the golden payloads bytewise") {
  std::ifstream file(kDir + "/delta_v1.json");
  REQUIRE(file.good());
  const nlohmann::json manifest = nlohmann::json::parse(file);
  const DigestKey key(manifest.at("key_seed").get<uint64_t>());
  REQUIRE(manifest.at("cases").size() == 9);
  for (const auto& entry : manifest.at("cases")) {
    const auto name = entry.at("name").get<std::string>();
    const auto width = entry.at("width").get<unsigned>();
    const auto before = std::stoull(entry.at("digest_old").get<std::string>(), nullptr, 16);
    const auto after = std::stoull(entry.at("digest_new").get<std::string>(), nullptr, 16);
    const Buffer old_data = ReadGolden("delta_v1_" + name + "_old.bin");
    const Buffer new_data = ReadGolden("delta_v1_" + name + "_new.bin");
    const Buffer payload = ReadGolden("delta_v1_" + name + "_payload.bin");
    for (const Backend* backend : All()) {
      CAPTURE(backend->name, name);
      REQUIRE(backend->digest(key, old_data) == before);
      Buffer out(MaxEncodedBytes(old_data.size(), width));
      const EncodeResult r = backend->diff_encode(key, old_data, new_data, width, before, out);
      CHECK(r.changed == entry.at("changed").get<uint64_t>());
      CHECK(r.digest_after == after);
      CHECK(Equal(Bytes(out).first(r.bytes), payload));
      REQUIRE(backend->validate(payload, old_data.size(), width, nullptr) == DecodeStatus::kOk);
      Buffer data(old_data, 0);
      uint64_t digest = 0;
      REQUIRE(backend->decode_apply(key, payload, data, width, before, &digest) ==
              DecodeStatus::kOk);
      CHECK(digest == after);
      CHECK(Equal(data, new_data));
    }
  }
}

/// The first fenced block of "### Example" in the format document, as bytes.
std::vector<uint8_t> DocumentedExample() {
  std::ifstream file(DELTAWIRE_FORMAT_DOC);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t fence = text.find("```", text.find("### Example"));
  REQUIRE(fence != std::string::npos);
  std::vector<uint8_t> bytes;
  const size_t end = text.find("```", fence + 3);
  for (size_t at = fence + 4; at < end;) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    at += line.size() + 1;
    for (size_t i = 0; i + 1 < line.size() && line[i] != ' '; i += 3) {
      bytes.push_back(static_cast<uint8_t>(std::stoul(line.substr(i, 2), nullptr, 16)));
      if (i + 3 < line.size() && line[i + 3] == ' ') break;  // the comment's column
    }
  }
  return bytes;
}

TEST_CASE("The example of the format document") {
  Buffer old_data(600), new_data(600);
  for (size_t i = 0; i < 300; ++i) StoreAt(old_data, i, 2, 0x3f80);
  std::memcpy(new_data.data(), old_data.data(), old_data.size());
  StoreAt(new_data, 0, 2, 0x3f81);
  StoreAt(new_data, 2, 2, 0x3f7f);
  StoreAt(new_data, 259, 2, 0xbf80);
  const auto bytes = DocumentedExample();
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    CHECK(Equal(Encode(*backend, DigestKey(0), old_data, new_data, 2),
                std::as_bytes(std::span(bytes))));
  }
}

}  // namespace
}  // namespace deltawire::kernels::test
