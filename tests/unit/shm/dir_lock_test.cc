#include "common/shm/dir_lock.h"

#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/forked.h"
#include "tests/support/snapshot.h"
#include "tests/support/temp_dir.h"

namespace deltawire::dir_lock_test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("the directory is made and locked, and the second owner is told who the first is") {
  const TempDir temp;
  const fs::path dir = temp.path() / "data" / "model";
  {
    auto first = DirLock::Acquire(dir);
    REQUIRE(first.ok());
    struct stat info;
    REQUIRE(::stat(dir.c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == 0700);
    const Status second = DirLock::Acquire(dir).status();
    CHECK(second.code() == StatusCode::kAlreadyExists);
    CHECK(MessageOf(second) ==
          fmt::format("{} is owned by process {}; stop it or choose another directory",
                      dir.native(), ::getpid()));
    const DirLock moved = std::move(*first);
    CHECK(DirLock::Acquire(dir).status().code() == StatusCode::kAlreadyExists);
  }
  CHECK(DirLock::Acquire(dir).ok());
}

TEST_CASE("a lock knows when its directory was removed, moved or made by somebody else") {
  const TempDir temp;
  const fs::path dir = temp.path() / "model";
  const auto lock = DirLock::Acquire(dir);
  REQUIRE(lock.ok());
  CHECK(lock->IsInPlace());
  SECTION("moved") {
    fs::rename(dir, temp.path() / "elsewhere");
    CHECK_FALSE(lock->IsInPlace());
    fs::rename(temp.path() / "elsewhere", dir);
    CHECK(lock->IsInPlace());
  }
  SECTION("moved, with a link in its place") {
    fs::rename(dir, temp.path() / "elsewhere");
    fs::create_symlink(temp.path() / "elsewhere", dir);
    CHECK_FALSE(lock->IsInPlace());
  }
  SECTION("removed, and made by another owner") {
    fs::remove_all(dir);
    CHECK_FALSE(lock->IsInPlace());
    const auto other = DirLock::Acquire(dir);
    REQUIRE(other.ok());
    CHECK_FALSE(lock->IsInPlace());
    CHECK(other->IsInPlace());
  }
}

TEST_CASE("files are their owner's alone, or a group's to read") {
  const TempDir temp;
  REQUIRE(DirLock::Acquire(temp.path() / "own").ok());
  CHECK(FileModeIn(temp.path() / "own") == 0600);
  CHECK(DirLock::Acquire(temp.path() / "own", "no-such-group").status().code() ==
        StatusCode::kInvalidArgument);
  const struct group* mine = ::getgrgid(::getegid());
  REQUIRE(mine != nullptr);
  REQUIRE(DirLock::Acquire(temp.path() / "shared", mine->gr_name).ok());
  struct stat info;
  REQUIRE(::stat((temp.path() / "shared").c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 02750);
  CHECK(info.st_gid == ::getegid());
  CHECK(FileModeIn(temp.path() / "shared") == 0640);
}

mode_t ModeOf(const fs::path& path) {
  struct stat info;
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

TEST_CASE("a directory that was open to others is its owner's alone without a group") {
  const TempDir temp;
  const fs::path dir = temp.path() / "model";
  const mode_t before = GENERATE(02750, 0775, 0755, 02700);
  CAPTURE(before);
  fs::create_directory(dir);
  std::ofstream(dir / ".deltawire.state") << "x";
  std::ofstream(dir / "half-0.safetensors") << "x";
  std::ofstream(temp.path() / "foreign") << "x";
  fs::create_symlink(temp.path() / "foreign", dir / "link");
  for (const char* file : {"model/half-0.safetensors", "foreign"}) {
    REQUIRE(::chmod((temp.path() / file).c_str(), 0640) == 0);
  }
  REQUIRE(::chmod(dir.c_str(), before) == 0);
  REQUIRE(DirLock::Acquire(dir).ok());
  CHECK((ModeOf(dir) & 0777) == 0700);
  CHECK(FileModeIn(dir) == 0600);
  CHECK(ModeOf(temp.path() / "foreign") == 0640);
  CHECK(ModeOf(dir / "half-0.safetensors") == 0640);  // nobody else gets to it
  // The parent may hold directories that other users have to reach.
  REQUIRE(::chmod(temp.path().c_str(), 0755) == 0);
  REQUIRE(DirLock::Acquire(dir).ok());
  CHECK(ModeOf(temp.path()) == 0755);
}

TEST_CASE("an owner with a group is not disturbed by who finds it there") {
  const struct group* mine = ::getgrgid(::getegid());
  REQUIRE(mine != nullptr);
  const TempDir temp;
  const auto owner = DirLock::Acquire(temp.path() / "model", mine->gr_name);
  REQUIRE(owner.ok());
  CHECK(DirLock::Acquire(temp.path() / "model").status().code() == StatusCode::kAlreadyExists);
  CHECK(ModeOf(temp.path() / "model") == 02750);
}

TEST_CASE("a directory that is not for us alone is refused, and nothing in it changes") {
  const TempDir temp;
  const fs::path dir = temp.path() / "there";
  fs::create_directory(dir);
  std::string refused_for;
  mode_t mode = 0755;
  bool file = true;
  SECTION("a checkpoint") { refused_for = "holds model.safetensors"; }
  SECTION("a checkpoint that a group may write") {
    refused_for = "holds model.safetensors";
    mode = 0775;
  }
  SECTION("a directory of many users") {
    refused_for = "has mode 1777";
    mode = 01777;
  }
  SECTION("an empty one that others may write") {
    refused_for = "has mode 0777";
    mode = 0777;
    file = false;
  }
  SECTION("one of many users in which an earlier run has left its files") {
    refused_for = "has mode 1777";
    mode = 01777;
    std::ofstream(dir / ".deltawire.state") << "x";
  }
  if (file) {
    std::ofstream(dir / "model.safetensors") << "a stranger's";
    REQUIRE(::chmod((dir / "model.safetensors").c_str(), 0644) == 0);
  }
  REQUIRE(::chmod(dir.c_str(), mode) == 0);
  const auto before = testing::SnapshotOf(temp.path());
  const struct group* mine = ::getgrgid(::getegid());
  REQUIRE(mine != nullptr);
  for (const std::string& group : {std::string(), std::string(mine->gr_name)}) {
    const Status refused = DirLock::Acquire(dir, group).status();
    CHECK_FALSE(refused.ok());
    CHECK(std::string(MessageOf(refused)).find(dir.native() + " " + refused_for) !=
          std::string::npos);
    CHECK(testing::SnapshotOf(temp.path()) == before);
  }
}

TEST_CASE("a link as the directory is refused, and nothing changes behind it") {
  const TempDir temp;
  const bool ours = GENERATE(true, false);
  const auto slash = GENERATE(as<std::string>(), "", "/");
  fs::create_directory(temp.path() / "target");
  if (ours) std::ofstream(temp.path() / "target" / ".deltawire.state") << "x";
  REQUIRE(::chmod((temp.path() / "target").c_str(), 0755) == 0);
  fs::create_symlink(temp.path() / "target", temp.path() / "link");
  fs::create_symlink(temp.path() / "nowhere", temp.path() / "dangling");
  const auto before = testing::SnapshotOf(temp.path());
  for (const char* name : {"link", "dangling"}) {
    const Status refused = DirLock::Acquire((temp.path() / name).native() + slash).status();
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK(std::string(MessageOf(refused)).find("is a link") != std::string::npos);
  }
  CHECK(testing::SnapshotOf(temp.path()) == before);
  // A link of our own on the way is as good as its target.
  CHECK(DirLock::Acquire(temp.path() / "link" / "model").ok());
}

TEST_CASE("a path through a link that another user owns is refused") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can give a link away");
    return;
  }
  const TempDir temp;
  fs::create_directory(temp.path() / "target");
  fs::create_symlink(temp.path() / "target", temp.path() / "link");
  REQUIRE(::lchown((temp.path() / "link").c_str(), 12345, 12345) == 0);
  const auto before = testing::SnapshotOf(temp.path());
  for (const char* dir : {"link", "link/model", "link/a/model"}) {
    const Status refused = DirLock::Acquire(temp.path() / dir).status();
    CHECK(refused.code() == StatusCode::kPermissionDenied);
    CHECK(std::string(MessageOf(refused)).find("link belongs to") != std::string::npos);
  }
  CHECK(testing::SnapshotOf(temp.path()) == before);
}

TEST_CASE("a lock's file that we did not make is left alone") {
  const TempDir temp;
  const fs::path dir = temp.path() / "model";
  REQUIRE(DirLock::Acquire(dir).ok());
  std::ofstream(temp.path() / "other") << "another's";
  fs::remove(dir / ".deltawire.lock");
  SECTION("a second name of another file") {
    fs::create_hard_link(temp.path() / "other", dir / ".deltawire.lock");
  }
  SECTION("a link") { fs::create_symlink(temp.path() / "other", dir / ".deltawire.lock"); }
  const auto before = testing::SnapshotOf(temp.path());
  CHECK_FALSE(DirLock::Acquire(dir).ok());
  CHECK(testing::SnapshotOf(temp.path()) == before);
}

TEST_CASE("a directory that is the group's already stays so, and another one is not given away") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can give a directory away");
    return;
  }
  const struct group* theirs = ::getgrgid(1);
  REQUIRE(theirs != nullptr);
  const std::string name = theirs->gr_name;
  const TempDir temp;
  fs::create_directory(temp.path() / "given");
  fs::create_directory(temp.path() / "own");
  REQUIRE(::chown((temp.path() / "given").c_str(), 12345, theirs->gr_gid) == 0);
  REQUIRE(::chown((temp.path() / "own").c_str(), 12345, 12345) == 0);
  REQUIRE(::chmod((temp.path() / "given").c_str(), 02750) == 0);
  REQUIRE(::chmod(temp.path().c_str(), 0755) == 0);
  // A user who is not in the group, as a daemon's in a unit without it.
  testing::Forked daemon([&] {
    if (::setgroups(0, nullptr) != 0 || ::setgid(12345) != 0 || ::setuid(12345) != 0) ::_exit(1);
    if (!DirLock::Acquire(temp.path() / "given", name).ok()) ::_exit(2);
    const Status refused = DirLock::Acquire(temp.path() / "own", name).status();
    if (refused.code() != StatusCode::kPermissionDenied) ::_exit(3);
    if (MessageOf(refused).find("to group " + name) == std::string_view::npos) ::_exit(4);
  });
  const int ended = daemon.Wait();
  REQUIRE(WIFEXITED(ended));
  CHECK(WEXITSTATUS(ended) == 0);
  CHECK(FileModeIn(temp.path() / "given") == 0640);
}

TEST_CASE("another user's directory is refused, and both are named") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can give a directory away");
    return;
  }
  const TempDir temp;
  fs::create_directory(temp.path() / "theirs");
  REQUIRE(::chown((temp.path() / "theirs").c_str(), 12345, 12345) == 0);
  for (const char* dir : {"theirs", "theirs/model"}) {
    const Status status = DirLock::Acquire(temp.path() / dir).status();
    CHECK(status.code() == StatusCode::kPermissionDenied);
    const std::string message(MessageOf(status));
    CAPTURE(message);
    CHECK(message.find((temp.path() / "theirs").native()) != std::string::npos);
    CHECK(message.find("12345") != std::string::npos);
    CHECK(message.find("root (0)") != std::string::npos);
  }
}

TEST_CASE("in a user namespace, directories of outside are as good as root's") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can become another user");
    return;
  }
  const TempDir temp;
  fs::create_directories(temp.path() / "real" / "theirs");
  fs::create_symlink("real", temp.path() / "link");
  fs::create_symlink("theirs", temp.path() / "real" / "link");
  REQUIRE(::chmod(temp.path().c_str(), 0755) == 0);
  for (const char* dir : {"real", "real/theirs"}) {
    REQUIRE(::chmod((temp.path() / dir).c_str(), 01777) == 0);
  }
  // As in a container without privileges that has the machine's /dev/shm.
  testing::Forked inside([&] {
    if (::setgroups(0, nullptr) != 0 || ::setgid(12345) != 0 || ::setuid(12345) != 0) ::_exit(1);
    ::prctl(PR_SET_DUMPABLE, 1);  // else only root may write the map
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(2);
    std::ofstream("/proc/self/uid_map") << "0 12345 1";
    if (::geteuid() != 0) ::_exit(2);
    if (!DirLock::Acquire(temp.path() / "real" / "model").ok()) ::_exit(3);
    if (!DirLock::Acquire(temp.path() / "link" / "another").ok()) ::_exit(4);
    // But a directory of our own is of our own.
    if (DirLock::Acquire(temp.path() / "real").ok()) ::_exit(5);
    // A file that anybody may have made there is not root's.
    if (DirLock::Acquire(temp.path() / "real" / "theirs" / "model").ok()) ::_exit(6);
    if (DirLock::Acquire(temp.path() / "real" / "link" / "model").ok()) ::_exit(7);
  });
  const int ended = WEXITSTATUS(inside.Wait());
  if (ended == 2) {
    WARN("SKIPPED: this machine allows no user namespaces");
    return;
  }
  CHECK(ended == 0);
}

TEST_CASE("a killed owner's lock is free") {
  const TempDir temp;
  std::optional<StatusOr<DirLock>> lock;
  std::optional<testing::Holder> owner(std::in_place, [&] {
    lock = DirLock::Acquire(temp.path());
    return lock->ok();
  });
  const Status held = DirLock::Acquire(temp.path()).status();
  CHECK(held.code() == StatusCode::kAlreadyExists);
  CHECK(std::string(MessageOf(held)).find(fmt::format("process {};", owner->pid())) !=
        std::string::npos);
  owner.reset();
  CHECK(DirLock::Acquire(temp.path()).ok());
}

TEST_CASE("an owner that has not written its pid yet is not given a wrong one") {
  const TempDir temp;
  const auto lock = DirLock::Acquire(temp.path());
  REQUIRE(lock.ok());
  fs::resize_file(temp.path() / ".deltawire.lock", 0);
  const Status second = DirLock::Acquire(temp.path()).status();
  CHECK(second.code() == StatusCode::kAlreadyExists);
  CHECK(std::string(MessageOf(second)).find("another process") != std::string::npos);
}

TEST_CASE("a path that cannot be a directory is named") {
  const TempDir temp;
  std::ofstream(temp.path() / "file") << "x";
  for (const char* below : {"file", "file/model", "file/a/b"}) {
    const Status status = DirLock::Acquire(temp.path() / below).status();
    CHECK_FALSE(status.ok());
    CHECK(std::string(MessageOf(status)).find("file") != std::string::npos);
  }
}

}  // namespace
}  // namespace deltawire::dir_lock_test
