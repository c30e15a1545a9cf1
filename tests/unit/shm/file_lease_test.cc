// Leases while another process has the file open, has only mapped it, has left it to a child, or is
// about to open it.
#include "common/shm/file_lease.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <optional>

#include "common/shm/mapped_file.h"
#include "tests/support/denied_leases.h"
#include "tests/support/file_user.h"
#include "tests/support/forked.h"
#include "tests/support/temp_dir.h"

namespace deltawire::file_lease_test {
namespace {

namespace fs = std::filesystem;
using Answer = FileLease::Answer;

constexpr size_t kBytes = 4096;

/// The file as its owner has it: one descriptor, and a mapping made through it.
struct Owned {
  explicit Owned(const fs::path& dir) : path(dir / "file.safetensors") {
    fd = UniqueFd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    REQUIRE(fd.get() >= 0);
    REQUIRE(::ftruncate(fd.get(), kBytes) == 0);
    map = *Mapping::Map(fd.get(), kBytes, true, path);
    lease = FileLease(fd.get());
  }
  fs::path path;
  UniqueFd fd;
  Mapping map;
  FileLease lease;
};

bool MapAndClose(int fd) {
  const bool ok = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED;
  ::close(fd);
  return ok;
}

TEST_CASE("where leases are granted no problem is found, and an absent directory is named") {
  const TempDir temp;
  CHECK(LeaseProblem(temp.path()) == "");
  CHECK(fs::is_empty(temp.path()));
  CHECK(LeaseProblem(temp.path() / "absent").find("absent") != std::string::npos);
}

TEST_CASE("the owner's own descriptor and mapping are nobody else's") {
  const TempDir temp;
  Owned file(temp.path());
  for (int i = 0; i < 3; ++i) {
    CHECK(file.lease.Try() == Answer::kAlone);
    CHECK(file.lease.Try() == Answer::kAlone);
    CHECK(file.lease.held());
    file.lease.Release();
    CHECK_FALSE(file.lease.held());
  }
  CHECK(WhoHas(file.fd.get()).empty());
}

TEST_CASE("a reader in another process is seen, and named") {
  const TempDir temp;
  Owned file(temp.path());
  const std::function<bool(int)> ways[] = {
      [](int) { return true; },
      MapAndClose,
      // The process that opened the file closes it, but a child that it forked still has it open.
      [](int fd) {
        static const testing::Forked child([] {  // as long as the process lives
          for (;;) ::pause();
        });
        ::close(fd);
        return true;
      },
  };
  for (const auto& way : ways) {
    {
      const testing::FileUser other(file.path, way);
      CHECK(file.lease.Try() == Answer::kInUse);
      const auto holders = WhoHas(file.fd.get());
      REQUIRE_FALSE(holders.empty());  // a parent and its child may both be listed
      CHECK(holders[0].name == "shm_test");
      CHECK(DescribeHolders(holders).find("(shm_test)") != std::string::npos);
    }
    // The kernel may close a killed process's descriptors a moment after the wait for it has
    // returned.
    while (file.lease.Try() != Answer::kAlone) ::sched_yield();
    file.lease.Release();
  }
  CHECK(DescribeHolders({}).find("/proc") != std::string::npos);
}

TEST_CASE("a second descriptor of the same process counts") {
  const TempDir temp;
  Owned file(temp.path());
  {
    const UniqueFd second(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    CHECK(file.lease.Try() == Answer::kInUse);
    const auto holders = WhoHas(file.fd.get());
    REQUIRE(holders.size() == 1);
    CHECK(holders[0].pid == ::getpid());
  }
  CHECK(file.lease.Try() == Answer::kAlone);
}

/// A process that opens the file, reads its first byte and passes it on.
class Opener {
 public:
  explicit Opener(const fs::path& path) {
    REQUIRE(::pipe(opened_) == 0);
    child_.emplace([&] {
      const int fd = ::open(path.c_str(), O_RDONLY);
      char byte = 0;
      if (::pread(fd, &byte, 1, 0) != 1 || ::write(opened_[1], &byte, 1) != 1) ::_exit(1);
    });
  }
  ~Opener() {
    CHECK(child_->Wait() == 0);
    ::close(opened_[0]);
    ::close(opened_[1]);
  }
  char Read() {
    char byte = 0;
    REQUIRE(::read(opened_[0], &byte, 1) == 1);
    return byte;
  }

 private:
  int opened_[2];
  std::optional<testing::Forked> child_;
};

TEST_CASE("one who opens it meanwhile waits, hurts nobody, and goes on when it is released") {
  const TempDir temp;
  Owned file(temp.path());
  REQUIRE(file.lease.Try() == Answer::kAlone);
  Opener opener(file.path);
  // Once the opener waits, F_GETLEASE no longer says F_WRLCK. The signal that the kernel sends as
  // well has no effect.
  while (::fcntl(file.fd.get(), F_GETLEASE) == F_WRLCK) ::sched_yield();
  file.map.base()[0] = std::byte{7};
  file.lease.Release();
  CHECK(opener.Read() == 7);
}

TEST_CASE("asking again lets one go on who waits to open it") {
  const TempDir temp;
  Owned file(temp.path());
  REQUIRE(file.lease.Try() == Answer::kAlone);
  Opener opener(file.path);
  while (::fcntl(file.fd.get(), F_GETLEASE) == F_WRLCK) ::sched_yield();
  CHECK(file.lease.Try() == Answer::kInUse);
  CHECK_FALSE(file.lease.held());
  // If Try did not release the lease, the opener would wait until the kernel breaks it after
  // fs.lease-break-time, which is usually 45 s.
  const auto start = std::chrono::steady_clock::now();
  opener.Read();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("where leases are not to be had it says why") {
  const TempDir temp;
  Owned file(temp.path());
  for (const auto& [err, word] :
       {std::pair{EINVAL, "fs.leases-enable"}, {EACCES, "another user"}, {ENOLCK, "lock"}}) {
    const testing::DeniedLeases denied(err);
    CHECK(file.lease.Try() == Answer::kUnsupported);
    CHECK(file.lease.reason().find(word) != std::string::npos);
    CHECK(LeaseProblem(temp.path()) == file.lease.reason());
  }
  CHECK(file.lease.Try() == Answer::kAlone);
}

}  // namespace
}  // namespace deltawire::file_lease_test
