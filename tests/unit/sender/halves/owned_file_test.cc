#include "sender/agent/halves/owned_file.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "tests/support/temp_dir.h"

namespace deltawire::sender::owned_file_test {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Coverage Make(std::vector<ChunkRange> ranges, uint32_t chunks) {
  return *Coverage::Create(ranges, chunks);
}

}  // namespace

TEST_CASE("owned file: a part comes back, and all of a model needs no file") {
  const TempDir temp;
  const fs::path path = temp.path() / ".deltawire.owned";
  CHECK(*ReadOwnedFile(path, 37) == Coverage::All(37));
  const Coverage part = Make({{0, 3}, {5, 12}}, 37);
  REQUIRE(WriteOwnedFile(path, part).ok());
  CHECK(*ReadOwnedFile(path, 37) == part);
  CHECK(Read(path).starts_with("deltawire owned 1\nchunks 37\n0 3\n5 12\nxxh3 "));
  REQUIRE(WriteOwnedFile(path, Coverage::All(37)).ok());
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("owned file: any changed or missing byte is refused, and so is another model") {
  const TempDir temp;
  const fs::path path = temp.path() / "f";
  REQUIRE(WriteOwnedFile(path, Make({{0, 3}, {5, 12}}, 37)).ok());
  CHECK(ReadOwnedFile(path, 36).status().code() == StatusCode::kDataLoss);
  const std::string good = Read(path);
  for (size_t i = 0; i < good.size(); ++i) {
    CAPTURE(i);
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    std::ofstream(path, std::ios::binary) << bad;
    CHECK(ReadOwnedFile(path, 37).status().code() == StatusCode::kDataLoss);
    std::ofstream(path, std::ios::binary) << good.substr(0, i);
    CHECK(ReadOwnedFile(path, 37).status().code() == StatusCode::kDataLoss);
  }
}

}  // namespace deltawire::sender::owned_file_test
