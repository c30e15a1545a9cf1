// Directories that come into being whole or not at all.
#include "cli/new_directory.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <fstream>
#include <set>

#include "tests/support/temp_dir.h"

namespace {
/// Simulates a filesystem that cannot exchange two names: the error of renameat2, or 0.
int exchange_errno = 0;
}  // namespace

/// Replaces libc's in this program.
extern "C" int renameat2(int from_dir, const char* from, int to_dir, const char* to,
                         unsigned flags) {
  using Rename = int (*)(int, const char*, int, const char*, unsigned);
  static const auto real = reinterpret_cast<Rename>(::dlsym(RTLD_NEXT, "renameat2"));
  if (exchange_errno == 0) return real(from_dir, from, to_dir, to, flags);
  errno = exchange_errno;
  return -1;
}

namespace deltawire::cli::new_directory_test {
namespace {

namespace fs = std::filesystem;

void Put(const fs::path& file) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "x";
}

std::set<std::string> In(const fs::path& dir) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.insert(entry.path().filename());
  return names;
}

TEST_CASE("a new directory has its name when it is complete, and leaves nothing otherwise") {
  const TempDir temp;
  const fs::path to = temp.path() / "below" / "to";
  const bool empty = GENERATE(false, true);
  if (empty) fs::create_directories(to);
  {
    auto dir = NewDirectory::Create(to / "", false, {temp.path() / "from"});
    REQUIRE(dir.ok());
    Put(dir->path() / "half");
    CHECK((empty ? In(to).empty() : !fs::exists(to)));
  }
  CHECK(In(temp.path() / "below").size() == (empty ? 1 : 0));
  auto dir = NewDirectory::Create(to, false, {});
  REQUIRE(dir.ok());
  Put(dir->path() / "a");
  REQUIRE(dir->Commit().ok());
  CHECK(In(to) == std::set<std::string>{"a"});
  CHECK(In(temp.path() / "below") == std::set<std::string>{"to"});
}

TEST_CASE("what is there is replaced as a whole, and only when that is asked for") {
  const TempDir temp;
  const fs::path to = temp.path() / "to";
  exchange_errno = GENERATE(0, EINVAL);
  CAPTURE(exchange_errno);
  Put(to / "model-00001-of-00002.safetensors");
  Put(to / "below" / "b");
  const auto refused = NewDirectory::Create(to, false, {});
  CHECK(absl::IsAlreadyExists(refused.status()));
  CHECK(MessageOf(refused.status()).find("--replace") != std::string_view::npos);
  auto dir = NewDirectory::Create(to, true, {});
  REQUIRE(dir.ok());
  Put(dir->path() / "model.safetensors");
  CHECK(In(to).size() == 2);
  REQUIRE(dir->Commit().ok());
  exchange_errno = 0;
  CHECK(In(to) == std::set<std::string>{"model.safetensors"});
  CHECK(In(temp.path()) == std::set<std::string>{"to"});
}

TEST_CASE("a replacement that fails half way leaves what was there in its place") {
  const TempDir temp;
  const fs::path to = temp.path() / "to";
  Put(to / "a");
  {
    auto dir = NewDirectory::Create(to, true, {});
    REQUIRE(dir.ok());
    Put(dir->path() / "b");
    // The new directory cannot get its name, since it is gone.
    fs::remove_all(dir->path());
    exchange_errno = EINVAL;
    CHECK_FALSE(dir->Commit().ok());
    exchange_errno = 0;
  }
  CHECK(In(to) == std::set<std::string>{"a"});
  CHECK(In(temp.path()) == std::set<std::string>{"to"});
}

TEST_CASE("what is read from is not replaced, however it is named") {
  const TempDir temp;
  Put(temp.path() / "from" / "deep" / "a");
  fs::create_directory_symlink(temp.path() / "from", temp.path() / "link");
  for (const char* to : {"from", "from/", "link", "from/deep/.."}) {
    CAPTURE(to);
    const auto made = NewDirectory::Create(temp.path() / to, true, {temp.path() / "from"});
    CHECK(absl::IsInvalidArgument(made.status()));
  }
  // A folder that contains a source is refused as well. A folder beside the source or inside it
  // holds nothing that is read, so it is allowed.
  CHECK(absl::IsInvalidArgument(
      NewDirectory::Create(temp.path() / "from", true, {temp.path() / "from" / "deep"}).status()));
  CHECK(NewDirectory::Create(temp.path() / "from2", true, {temp.path() / "from"}).ok());
  CHECK(NewDirectory::Create(temp.path() / "from" / "new", false, {temp.path() / "from"}).ok());
}

}  // namespace
}  // namespace deltawire::cli::new_directory_test
