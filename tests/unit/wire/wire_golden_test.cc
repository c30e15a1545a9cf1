// The frozen bytes of wire version 4, the refusal of versions 1 and 2, and the worked example of
// docs/wire_format.md.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "common/layout/chunks.h"
#include "tests/golden/wire_samples.h"

namespace deltawire::wire::wire_golden_test {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  INFO("cannot read " << path);
  REQUIRE(in.good());
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

/// The frames of the document's example as bytes. A line that begins with "# " starts a frame; each
/// line below it is an offset and then bytes in hex.
std::vector<std::string> FramesOfDocument(const std::string& doc) {
  const size_t begin = doc.find("<!-- example begins -->");
  const size_t end = doc.find("<!-- example ends -->");
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  std::istringstream lines(doc.substr(begin, end - begin));
  std::vector<std::string> frames;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# ")) frames.emplace_back();
    if (frames.empty() || line.starts_with("#") || line.starts_with("```") || line.empty())
      continue;
    std::istringstream words(line);
    std::string word;
    words >> word;
    CHECK(std::stoul(word, nullptr, 16) == frames.back().size());
    while (words >> word) frames.back() += static_cast<char>(std::stoul(word, nullptr, 16));
  }
  return frames;
}

TEST_CASE("golden files of wire version 4 are what this code writes") {
  for (const auto& g : samples::GoldenFiles()) {
    CAPTURE(g.name);
    const std::string want = ReadFile(fmt::format("{}/{}", DW_GOLDEN_DIR, g.name));
    CHECK(AsChars(g.bytes) == want);
  }
}

TEST_CASE("golden files of wire version 4 are read as what they say") {
  const auto read = [](const std::string& name) {
    return ReadFile(fmt::format("{}/wire_v4/{}.bin", DW_GOLDEN_DIR, name));
  };
  for (const auto& f : samples::Exchange()) {
    const auto h = DecodeHeader(AsBytes(read(fmt::format("header_{}", f.file))));
    CAPTURE(std::string(f.file));
    REQUIRE(h.ok());
    CHECK(*h == f.header);
  }
  const auto hello = DecodeHello(AsBytes(read("payload_hello")));
  REQUIRE(hello.ok());
  CHECK(*hello == samples::SampleHello());
  const auto have = DecodeHave(AsBytes(read("payload_have")), 3);
  REQUIRE(have.ok());
  CHECK(*have == samples::SampleHave());
  const auto end = DecodeEnd(AsBytes(read("payload_end")));
  REQUIRE(end.ok());
  CHECK(*end == samples::SampleEnd());
  const auto error = DecodeWireError(AsBytes(read("payload_error")));
  REQUIRE(error.ok());
  CHECK(*error == samples::SampleError());
}

TEST_CASE("frames of wire versions 1 to 3 are refused by name") {
  const int version = GENERATE(1, 2, 3);
  for (const auto& f : samples::Exchange()) {
    CAPTURE(std::string(f.file));
    const std::string old =
        ReadFile(fmt::format("{}/wire_v{}/header_{}.bin", DW_GOLDEN_DIR, version, f.file));
    const auto h = DecodeHeader(AsBytes(old));
    CHECK(h.status().code() == StatusCode::kUnimplemented);
    CHECK_THAT(std::string(MessageOf(h.status())),
               Catch::Matchers::Contains(
                   fmt::format("wire version {}, this end {}", version, kWireVersion)));
  }
}

TEST_CASE("the document's worked example is a real exchange") {
  const std::string doc = ReadFile(DW_WIRE_DOC);
  const auto frames = FramesOfDocument(doc);
  const auto want = samples::Exchange();
  REQUIRE(frames.size() == want.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    CAPTURE(i, std::string(want[i].file));
    REQUIRE(frames[i].size() >= kFrameHeaderBytes);
    const Bytes bytes = AsBytes(frames[i]);
    const auto h = DecodeHeader(bytes.first(kFrameHeaderBytes));
    REQUIRE(h.ok());
    CHECK(*h == want[i].header);
    if (h->type != FrameType::kChunkFull) {
      CHECK(CheckPayload(*h, Xxh3(bytes.subspan(kFrameHeaderBytes))).ok());
    }
    CHECK(AsChars(bytes.subspan(kFrameHeaderBytes)) == AsChars(want[i].payload));
  }
  // The document must contain the text exactly, so that its titles and offsets stay true.
  // `wire_golden_maker --example` prints it.
  CHECK_THAT(doc, Catch::Matchers::Contains(samples::DocumentExample()));
}

TEST_CASE("the example layout has the documented fingerprint and chunks") {
  const Hash128 want = Xxh3_128(samples::CanonicalLayout());
  const auto layout = Layout::Create(samples::Tensors());
  REQUIRE(layout.ok());
  CHECK(layout->fingerprint() == want);
  CHECK_THAT(ReadFile(DW_WIRE_DOC), Catch::Matchers::Contains("`" + want.Hex() + "`"));
  const auto chunks = ChunkTable::Create(*layout);
  REQUIRE(chunks.ok());
  CHECK(chunks->size() == samples::SampleHave().chunks.size());
}

}  // namespace
}  // namespace deltawire::wire::wire_golden_test
