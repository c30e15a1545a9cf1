#include "cli/raw_reader.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "common/base/bytes.h"
#include "tests/support/temp_dir.h"

namespace deltawire::cli::raw_reader_test {
namespace {

std::filesystem::path Write(const TempDir& dir, const std::string& header, const std::string& data,
                            uint64_t length) {
  const auto file = dir.path() / "model.safetensors";
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << header << data;
  REQUIRE(out.flush().good());
  return file;
}

std::filesystem::path Write(const TempDir& dir, const std::string& header,
                            const std::string& data) {
  return Write(dir, header, data, header.size());
}

// The header of a file with two tensors of four bytes each, written by hand.
constexpr const char* kHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
    R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )";

std::vector<WantedTensor> Wanted() {
  return {{"a", "F32", {1}, AsBytes("AAAA")}, {"b", "BF16", {2}, AsBytes("BBBB")}};
}

std::string Difference(const std::filesystem::path& file, const std::vector<WantedTensor>& want) {
  ThreadPool pool(2);
  const auto opened = RawModelFile::Open(file);
  REQUIRE(opened.ok());
  return std::string(MessageOf(CheckEqual(*opened, want, pool)));
}

TEST_CASE("equal files are equal") {
  const TempDir dir;
  CHECK(Difference(Write(dir, kHeader, "AAAABBBB"), Wanted()) == "");
}

TEST_CASE("each kind of difference is found and named") {
  const TempDir dir;
  const auto file = Write(dir, kHeader, "AAAABBBB");
  SECTION("one bit") {
    CHECK(Difference(Write(dir, kHeader, "AAAABBBC"), Wanted()) == "tensor b: other bytes");
  }
  SECTION("a tensor less") {
    CHECK(Difference(file, {Wanted()[0]}) == "2 tensors where 1 are wanted");
  }
  SECTION("another name") {
    auto wanted = Wanted();
    wanted[0].name = "c";
    CHECK(Difference(file, wanted) == "tensor c: missing");
  }
  SECTION("another dtype") {
    auto wanted = Wanted();
    wanted[1].dtype = "F16";
    CHECK(Difference(file, wanted) == "tensor b: another dtype or shape");
  }
  SECTION("another shape of the same size") {
    auto wanted = Wanted();
    wanted[1].shape = {1, 2};
    CHECK(Difference(file, wanted) == "tensor b: another dtype or shape");
  }
}

TEST_CASE("files that are broken are refused") {
  const TempDir dir;
  SECTION("a header longer than the file") {
    CHECK_FALSE(RawModelFile::Open(Write(dir, "{}", "", 1000)).ok());
  }
  SECTION("no JSON") { CHECK_FALSE(RawModelFile::Open(Write(dir, "{\"a\":", "")).ok()); }
  SECTION("data outside the file") {
    CHECK_FALSE(RawModelFile::Open(Write(dir, kHeader, "AAAA")).ok());
  }
  SECTION("no file") { CHECK_FALSE(RawModelFile::Open(dir.path() / "none").ok()); }
}

}  // namespace
}  // namespace deltawire::cli::raw_reader_test
