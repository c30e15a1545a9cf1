// Side files on disk: which set is kept for which use, and that a SIGKILL at any moment leaves
// whole sets.
#include "sender/agent/halves/side_file_store.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "tests/support/forked.h"
#include "tests/support/temp_dir.h"

namespace deltawire::sender::side_file_store_test {
namespace {

namespace fs = std::filesystem;
using Use = SideFileStore::Use;
constexpr Use kAll[] = {Use::kHalf0, Use::kHalf1, Use::kNext};

std::shared_ptr<const SideFileSet> Set(const std::string& text, size_t files = 2) {
  std::vector<SideFile> all;
  for (size_t i = 0; i < files; ++i) {
    all.push_back({fmt::format("file-{}.json", i), fmt::format("{} {}", text, i)});
  }
  return *MakeSideFileSet(std::move(all));
}

size_t Directories(const fs::path& dir) {
  size_t n = 0;
  for (const auto& entry : fs::directory_iterator(dir)) n += entry.is_directory();
  return n;
}

}  // namespace

TEST_CASE("each use has its set, and unused sets go") {
  const TempDir temp;
  SideFileStore store(temp.path() / "side");
  CHECK((*store.Load(Use::kHalf0))->files.empty());
  REQUIRE(store.Keep(Use::kNext, Set("a")).ok());
  REQUIRE(store.Keep(Use::kHalf0, Set("a")).ok());
  REQUIRE(store.Keep(Use::kHalf1, Set("b")).ok());
  CHECK(Directories(temp.path() / "side") == 2);
  REQUIRE(store.Keep(Use::kNext, Set("c", 0)).ok());
  REQUIRE(store.Keep(Use::kHalf0, Set("c", 0)).ok());
  CHECK(Directories(temp.path() / "side") == 2);
  const SideFileStore again(temp.path() / "side");
  CHECK((*again.Load(Use::kHalf0))->files.empty());
  CHECK((*again.Load(Use::kHalf1))->hash == Set("b")->hash);
  CHECK((*again.Load(Use::kHalf1))->files[1].content == "b 1");
}

TEST_CASE("side files that somebody changed are refused by name") {
  const TempDir temp;
  SideFileStore store(temp.path() / "side");
  const auto set = Set("a");
  REQUIRE(store.Keep(Use::kHalf0, set).ok());
  const fs::path file = temp.path() / "side" / fmt::format("{:016x}", set->hash) / "file-0.json";
  std::ofstream(file) << "other";
  const auto loaded = store.Load(Use::kHalf0);
  CHECK(absl::IsDataLoss(loaded.status()));
  CHECK(MessageOf(loaded.status()).find(file.parent_path().native()) != std::string::npos);
}

TEST_CASE("no set is removed while a name cannot be read") {
  const TempDir temp;
  const fs::path dir = temp.path() / "side";
  SideFileStore store(dir);
  REQUIRE(store.Keep(Use::kHalf0, Set("a")).ok());
  const fs::path kept = dir / fmt::format("{:016x}", Set("a")->hash);
  const bool damaged = GENERATE(false, true);
  CAPTURE(damaged);
  fs::rename(dir / "half-0", temp.path() / "aside");
  if (damaged) {
    std::ofstream(dir / "half-0") << "deltawire side 1\n";
  } else {
    fs::create_directory(dir / "half-0");  // whoever runs as root may read any file
  }
  CHECK_FALSE(store.Load(Use::kHalf0).ok());
  CHECK(store.Keep(Use::kNext, Set("b")).ok());
  CHECK(fs::is_directory(kept));
  // When it can be read again, what is needed is still there, and goes when it is not needed.
  fs::remove(dir / "half-0");
  fs::rename(temp.path() / "aside", dir / "half-0");
  CHECK((*store.Load(Use::kHalf0))->hash == Set("a")->hash);
  REQUIRE(store.Keep(Use::kHalf0, Set("c")).ok());
  CHECK_FALSE(fs::exists(kept));
}

TEST_CASE("names of side files are checked") {
  for (const char* name : {"../a", "model.safetensors", ".hidden", ""}) {
    CHECK(absl::IsInvalidArgument(MakeSideFileSet({{name, "x"}}).status()));
  }
  CHECK(absl::IsInvalidArgument(MakeSideFileSet({{"a", "x"}, {"a", "y"}}).status()));
}

TEST_CASE("a SIGKILL while sets are kept leaves each use one whole set") {
  const TempDir temp;
  const fs::path dir = temp.path() / "side";
  const uint64_t seed = 20261;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    testing::Forked child([&] {
      SideFileStore store(dir);
      for (uint64_t i = 0;; ++i) {
        (void)store.Keep(kAll[i % 3], Set(fmt::format("set {}", i % 5), 1 + i % 4));
      }
    });
    ::usleep(static_cast<useconds_t>(200 + random() % 4000));
    child.Kill();
    const SideFileStore store(dir);
    for (const Use use : kAll) {
      const auto loaded = store.Load(use);
      INFO(loaded.status());
      REQUIRE(loaded.ok());
      const std::string text = (*loaded)->files.empty() ? "set" : (*loaded)->files[0].content;
      CHECK(text.starts_with("set"));
    }
  }
}

}  // namespace deltawire::sender::side_file_store_test
