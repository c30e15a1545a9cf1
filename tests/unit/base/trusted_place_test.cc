#include "common/base/trusted_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/support/temp_dir.h"

namespace deltawire::trusted_place_test {
namespace {

namespace fs = std::filesystem;

bool Everybody(uid_t) { return true; }

std::string Said(const Status& status) { return std::string(MessageOf(status)); }

TEST_CASE("a place counts as trusted where only its owners could replace it") {
  const TempDir dir;
  const fs::path deep = dir.path() / "a" / "b";
  fs::create_directories(deep);
  CHECK(CheckTrustedPlace(deep) == absl::OkStatus());
  CHECK(CheckTrustedPlace(deep, Everybody) == absl::OkStatus());
  const Status missing = CheckTrustedPlace(deep / "c");
  CHECK(missing.code() == StatusCode::kNotFound);
  CHECK(Said(missing).find((deep / "c").native()) != std::string::npos);
}

TEST_CASE("an empty path is the working directory, as for a file named without a directory") {
  // Some directory on the way may belong to whoever made this tree.
  CHECK(CheckTrustedPlace("", Everybody) == CheckTrustedPlace(".", Everybody));
  CHECK(CheckTrustedPlace("", Everybody).code() != StatusCode::kInvalidArgument);
}

TEST_CASE("a directory on the way that all users may write is refused, but not a sticky one") {
  const TempDir dir;
  const fs::path open = dir.path() / "open", deep = open / "deep";
  fs::create_directories(deep);
  REQUIRE(::chmod(open.c_str(), 0777) == 0);
  const Status refused = CheckTrustedPlace(deep);
  CHECK(refused.code() == StatusCode::kPermissionDenied);
  CHECK(Said(refused).find(open.native() + " may be written by all users") != std::string::npos);
  REQUIRE(::chmod(open.c_str(), 01777) == 0);
  CHECK(CheckTrustedPlace(deep) == absl::OkStatus());
}

TEST_CASE("each directory's owner is asked for, up to the root, and on both sides of a link") {
  const TempDir dir;
  const fs::path real = dir.path() / "real", link = dir.path() / "link";
  fs::create_directories(real);
  fs::create_directory_symlink(real, link);
  CHECK(CheckTrustedPlace(link) == absl::OkStatus());
  int asked = 0;
  CHECK(CheckTrustedPlace(real, [&](uid_t) { return ++asked > 0; }) == absl::OkStatus());
  const auto parts = static_cast<int>(std::distance(real.begin(), real.end()));
  CHECK(asked == 2 * parts);
  const uid_t me = ::geteuid();
  const Status refused = CheckTrustedPlace(link, [&](uid_t uid) { return uid != me; });
  CHECK(refused.code() == StatusCode::kPermissionDenied);
  CHECK(Said(refused).find(link.native() + " belongs to user ") != std::string::npos);
  // Behind the link a directory may be open to all.
  REQUIRE(::chmod(real.c_str(), 0777) == 0);
  CHECK(Said(CheckTrustedPlace(link)).find(real.native() + " may be written") == 0);
}

}  // namespace
}  // namespace deltawire::trusted_place_test
