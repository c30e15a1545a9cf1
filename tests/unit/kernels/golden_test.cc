// Checks that every backend reads and writes the frozen bytes of format version 3, and the examples
// of docs/delta_format.md. delta_golden_test.py checks the same files and examples in Python.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/delta/dense.h"
#include "tests/support/delta_golden_cases.h"

namespace deltawire::kernels::test::golden_test {
namespace {

const std::string kDir = DELTAWIRE_GOLDEN_DIR "/delta_v3";

/// Reads a payload of a case: fast, dense, tight<depth> or foreign<depth>.
Buffer ReadGolden(const std::string& name, const std::string& part) {
  const std::string path = kDir + "/" + name + "/" + part + ".bin";
  std::ifstream file(path, std::ios::binary);
  CAPTURE(path);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return Buffer(std::as_bytes(std::span(text)), 0);
}

/// A case of the manifest, with its inputs made anew.
struct Golden {
  DeltaCase c;
  Buffer fast{0};
  uint64_t changed = 0, digest_old = 0, digest_new = 0;
  std::vector<std::pair<unsigned, size_t>> tight;  // depth of history, payload bytes
  bool dense = false;
};

struct GoldenFiles {
  DigestKey key;
  std::vector<Golden> cases;
};

GoldenFiles ReadGoldenFiles() {
  std::ifstream file(kDir + "/manifest.json");
  REQUIRE(file.good());
  const nlohmann::json manifest = nlohmann::json::parse(file);
  std::vector<GoldenCase> inputs = GoldenCases();
  REQUIRE(manifest.at("cases").size() == inputs.size());
  GoldenFiles files{DigestKey(manifest.at("key_seed").get<uint64_t>()), {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const nlohmann::json& entry = manifest.at("cases")[i];
    Golden g{.c = std::move(inputs[i].c)};
    REQUIRE(entry.at("name").get<std::string>() == g.c.name);
    g.fast = ReadGolden(g.c.name, "fast");
    g.changed = entry.at("changed").get<uint64_t>();
    g.digest_old = std::stoull(entry.at("digest_old").get<std::string>(), nullptr, 16);
    g.digest_new = std::stoull(entry.at("digest_new").get<std::string>(), nullptr, 16);
    for (const auto& t : entry.at("tight")) {
      g.tight.emplace_back(t.at("depth").get<unsigned>(), t.at("bytes").get<size_t>());
    }
    g.dense = entry.at("dense").get<bool>();
    files.cases.push_back(std::move(g));
  }
  return files;
}

void CheckFast(const Backend& backend, const DigestKey& key, const Golden& g) {
  const unsigned width = g.c.width;
  REQUIRE(backend.digest(key, g.c.old_data) == g.digest_old);
  Buffer out(MaxEncodedBytes(g.c.old_data.size(), width));
  const EncodeResult r =
      backend.diff_encode(key, g.c.old_data, g.c.new_data, width, g.digest_old, out);
  CHECK(r.changed == g.changed);
  CHECK(r.digest_after == g.digest_new);
  CHECK(Equal(Bytes(out).first(r.bytes), g.fast));
  uint64_t changed = 0;
  REQUIRE(backend.validate(g.fast, g.c.old_data.size(), width, &changed) == DecodeStatus::kOk);
  CHECK(changed == g.changed);
  Buffer data(g.c.old_data, 0);
  uint64_t digest = 0;
  REQUIRE(backend.decode_apply(key, g.fast, data, width, g.digest_old, &digest) ==
          DecodeStatus::kOk);
  CHECK(digest == g.digest_new);
  CHECK(Equal(data, g.c.new_data));
}

Buffer DecodeTight(const Backend& backend, const Golden& g, Bytes tight, unsigned depth) {
  const std::vector<Bytes> deltas = g.c.Deltas(depth);
  const History history{deltas, depth == 0 ? 0 : ContextOf(deltas)};
  Buffer scratch(kTightScratchBytes), out(MaxEncodedBytes(g.c.old_data.size(), g.c.width));
  size_t bytes = 0;
  REQUIRE(backend.tight_decode(g.c.old_data, tight, g.c.width, history, scratch, out, &bytes) ==
          DecodeStatus::kOk);
  return Buffer(Bytes(out).first(bytes), 0);
}

void CheckTight(const Backend& backend, const Golden& g, unsigned depth, size_t bytes) {
  CAPTURE(depth);
  const Buffer ours = EncodeTight(backend, g.c, g.fast, depth);
  REQUIRE(ours.size() == bytes);
  if (bytes == 0) return;  // tight would not be smaller than fast
  const Buffer tight = ReadGolden(g.c.name, "tight" + std::to_string(depth));
  CHECK(Equal(ours, tight));
  TightHead head;
  REQUIRE(ReadTightHead(tight, &head) == DecodeStatus::kOk);
  CHECK(head.function == g.c.function);
  CHECK(head.depth == depth);
  CHECK(head.context == (depth == 0 ? 0 : ContextOf(g.c.Deltas(depth))));
  CHECK(Equal(DecodeTight(backend, g, tight, depth), g.fast));
}

/// Dense payloads are only read, since another version of zstd writes other bytes.
void CheckDense(const Backend& backend, const Golden& g) {
  const Buffer dense = ReadGolden(g.c.name, "dense");
  const size_t raw = g.c.old_data.size();
  Buffer out(MaxEncodedBytes(raw, g.c.width));
  size_t bytes = 0;
  REQUIRE(DenseDecode(backend, dense, raw, g.c.width, out, &bytes) == DecodeStatus::kOk);
  CHECK(Equal(Bytes(out).first(bytes), g.fast));
}

TEST_CASE("Every backend reads and writes the golden payloads bytewise") {
  const GoldenFiles files = ReadGoldenFiles();
  REQUIRE(files.cases.size() == 23);
  size_t tight = 0, lanes[4] = {};
  for (const Golden& g : files.cases) {
    for (const Backend* backend : All()) {
      CAPTURE(backend->name, g.c.name);
      CheckFast(*backend, files.key, g);
      for (const auto& [depth, bytes] : g.tight) CheckTight(*backend, g, depth, bytes);
      if (g.dense) CheckDense(*backend, g);
    }
    for (const auto& [depth, bytes] : g.tight) {
      if (bytes == 0) continue;
      ++tight;
      ++lanes[static_cast<uint8_t>(
                  ReadGolden(g.c.name, "tight" + std::to_string(depth)).data()[3]) >>
              4];
    }
  }
  CHECK(tight >= 35);
  CHECK(lanes[0] > 0);
  CHECK(lanes[1] > 0);
  CHECK(lanes[2] > 0);
}

TEST_CASE("Every backend reads tight payloads whose parameters no encoder of ours chooses") {
  const GoldenFiles files = ReadGoldenFiles();
  const std::pair<std::string, unsigned> payloads[] = {{"bf16", 0}, {"bf16", 8},    {"fp32", 2},
                                                       {"e4m3", 1}, {"none_w8", 8}, {"lanes4", 2}};
  for (const Golden& g : files.cases) {
    for (const auto& [name, depth] : payloads) {
      if (g.c.name != name) continue;
      const Buffer tight = ReadGolden(name, "foreign" + std::to_string(depth));
      for (const Backend* backend : All()) {
        CAPTURE(backend->name, name, depth);
        CHECK(Equal(DecodeTight(*backend, g, tight, depth), g.fast));
      }
    }
  }
}

/// The first fenced block below a heading of the format document, as bytes. Two spaces part the
/// bytes of a line from its comment.
std::vector<uint8_t> DocumentedExample(const std::string& heading) {
  std::ifstream file(DELTAWIRE_FORMAT_DOC);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t section = text.find("\n### " + heading + "\n");
  REQUIRE(section != std::string::npos);
  std::vector<uint8_t> bytes;
  size_t at = text.find("```\n", section) + 4;
  for (const size_t end = text.find("```", at); at < end;) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    at += line.size() + 1;
    const std::string hex = line.substr(0, line.find("  "));
    for (size_t i = 0; i + 1 < hex.size(); i += 3) {
      bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    }
  }
  return bytes;
}

TEST_CASE("The example of fast in the format document is what every backend writes") {
  Buffer old_data(600);
  for (size_t i = 0; i < 300; ++i) StoreAt(old_data, i, 2, 0x3f80);
  Buffer new_data(old_data, 0);
  StoreAt(new_data, 0, 2, 0x3f81);
  StoreAt(new_data, 2, 2, 0x3f7f);
  StoreAt(new_data, 259, 2, 0xbf80);
  const auto bytes = DocumentedExample("fast, an example");
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    CHECK(Equal(Encode(*backend, DigestKey(0), old_data, new_data, 2),
                std::as_bytes(std::span(bytes))));
  }
}

TEST_CASE("The example of dense in the format document decodes to its delta") {
  Buffer zeros(16), ones(16);
  for (size_t i = 0; i < 8; ++i) StoreAt(ones, i, 2, 1);
  const auto bytes = DocumentedExample("dense, an example");
  Buffer out(MaxEncodedBytes(16, 2));
  size_t decoded = 0;
  REQUIRE(DenseDecode(Scalar(), std::as_bytes(std::span(bytes)), 16, 2, out, &decoded) ==
          DecodeStatus::kOk);
  CHECK(Equal(Bytes(out).first(decoded), Encode(Scalar(), DigestKey(0), zeros, ones, 2)));
}

TEST_CASE("The example of tight in the format document is what every backend writes") {
  DeltaCase c{.function = ClassFunction::kBF16};
  c.old_data = Buffer(600);
  for (size_t i = 0; i < 300; ++i) StoreAt(c.old_data, i, 2, i % 10 == 0 ? 0x0080 : 0x3f80);
  c.new_data = Buffer(c.old_data, 0);
  for (const size_t i : {50, 130}) StoreAt(c.new_data, i, 2, 0x0081);
  StoreAt(c.new_data, 100, 2, 0x007f);
  StoreAt(c.new_data, 250, 2, 0x0083);
  const auto bytes = DocumentedExample("tight, an example");
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    const Buffer fast = Encode(*backend, DigestKey(0), c.old_data, c.new_data, 2);
    CHECK(Equal(EncodeTight(*backend, c, fast, 0), std::as_bytes(std::span(bytes))));
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::golden_test
