// Delta files: what is written is read back, and a file that has a wrong byte anywhere, or is cut
// anywhere, is refused.
#include "common/shm/delta_file.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/support/temp_dir.h"

namespace deltawire::delta_file_test {
namespace {

namespace fs = std::filesystem;

const DeltaFileHead kHead{.fingerprint = {1, 2},
                          .digest_seed = 3,
                          .chunks = 9,
                          .from = {.lineage = {4, 5}, .id = {1, 6}, .root = 7},
                          .to = {.lineage = {4, 5}, .id = {1, 8}, .root = 9}};

std::vector<std::byte> Text(std::string_view text) {
  const Bytes bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

struct Sample {
  std::vector<std::byte> first = Text("first"), second = Text("second one"), third = Text("3");
  std::vector<DeltaFileEntry> entries{
      {0, 10, 11, first}, {0, 11, 12, second}, {4, 13, 14, {}}, {8, 15, 16, third}};
};

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Write(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

TEST_CASE("delta file: states, chunks and payloads are read as they were written") {
  const TempDir dir;
  const fs::path path = dir.path() / "1";
  const Sample sample;
  REQUIRE(WriteDeltaFile(path, kHead, sample.entries) == absl::OkStatus());
  CHECK(fs::file_size(path) == DeltaFileBytes(sample.entries));
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 1);
  const auto file = DeltaFile::Open(path);
  REQUIRE(file.ok());
  CHECK(file->head().from == kHead.from);
  CHECK(file->head().to == kHead.to);
  CHECK(file->head().fingerprint == kHead.fingerprint);
  CHECK(file->head().digest_seed == 3);
  CHECK(file->head().chunks == 9);
  REQUIRE(file->entries().size() == sample.entries.size());
  for (size_t i = 0; i < sample.entries.size(); ++i) {
    const DeltaFileEntry& want = sample.entries[i];
    const DeltaFileEntry& got = file->entries()[i];
    CHECK(got.chunk == want.chunk);
    CHECK(got.digest_before == want.digest_before);
    CHECK(got.digest_after == want.digest_after);
    CHECK(AsChars(got.payload) == AsChars(want.payload));
    CHECK(got.whole() == (want.chunk == 4));
  }
  CHECK(DeltaFile::Peek(path)->to == kHead.to);
  // Whoever has the file open keeps its bytes when its name is removed.
  fs::remove(path);
  CHECK(AsChars(file->entries()[1].payload) == "second one");
  CHECK(DeltaFile::Open(path).status().code() == StatusCode::kNotFound);
}

TEST_CASE("delta file: the bytes are those of the document's example") {
  const TempDir dir;
  const fs::path path = dir.path() / "1";
  REQUIRE(WriteDeltaFile(path, kHead, Sample().entries) == absl::OkStatus());
  const std::string golden = Read(fs::path(DELTAWIRE_GOLDEN_DIR) / "delta_file_v1.bin");
  REQUIRE(golden.size() == 368);
  CHECK(Read(path) == golden);
}

TEST_CASE("delta file: one in which any byte is another, or any is missing, is refused") {
  const TempDir dir;
  const fs::path path = dir.path() / "1";
  REQUIRE(WriteDeltaFile(path, kHead, Sample().entries) == absl::OkStatus());
  const std::string good = Read(path);
  for (size_t i = 0; i < good.size(); ++i) {
    CAPTURE(i);
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    Write(path, bad);
    REQUIRE(DeltaFile::Open(path).status().code() == StatusCode::kDataLoss);
    Write(path, good.substr(0, i));
    REQUIRE(DeltaFile::Open(path).status().code() == StatusCode::kDataLoss);
  }
  Write(path, good + "x");
  CHECK(DeltaFile::Open(path).status().code() == StatusCode::kDataLoss);
}

TEST_CASE("delta file: entries that are out of order, or of no chunk of the model, are refused") {
  const TempDir dir;
  const fs::path path = dir.path() / "1";
  Sample sample;
  SECTION("chunks that fall") { std::swap(sample.entries[2], sample.entries[3]); }
  SECTION("two deltas of one chunk that do not follow") { sample.entries[1].digest_before = 99; }
  SECTION("a whole chunk twice") {
    sample.entries.insert(sample.entries.begin() + 2, {4, 1, 13, {}});
  }
  SECTION("a chunk that the model has not") { sample.entries[3].chunk = 9; }
  REQUIRE(WriteDeltaFile(path, kHead, sample.entries) == absl::OkStatus());
  CHECK(DeltaFile::Open(path).status().code() == StatusCode::kDataLoss);
}

}  // namespace
}  // namespace deltawire::delta_file_test
