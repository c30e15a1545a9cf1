// Another process that has a file open or mapped, to test what leases reveal of it. Owner: the test
// case; the process dies with the object. Threads: one. Cost: a fork. Errors: fails the test if the
// process cannot start.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>

namespace deltawire::testing {

class FileUser {
 public:
  /// Starts the process, which opens the file for reading and calls `prepare`. Returns after
  /// `prepare` returned true.
  FileUser(const std::filesystem::path& path, const std::function<bool(int fd)>& prepare) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      const int fd = ::open(path.c_str(), O_RDONLY);
      const char ok = fd >= 0 && prepare(fd);
      if (::write(ready[1], &ok, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char ok = 0;
    REQUIRE(::read(ready[0], &ok, 1) == 1);
    REQUIRE(ok == 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~FileUser() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  FileUser(const FileUser&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

}  // namespace deltawire::testing
