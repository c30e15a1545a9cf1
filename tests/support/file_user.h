// Another process that has a file open or mapped, to test what leases reveal of it. Owner: the test
// case; the process dies with the object. Threads: one. Cost: a fork. Errors: fails the test if the
// process cannot start.
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <functional>

#include "tests/support/forked.h"

namespace deltawire::testing {

class FileUser {
 public:
  /// Opens the file for reading and calls `prepare`; it is there when that has returned true.
  FileUser(const std::filesystem::path& path, const std::function<bool(int fd)>& prepare)
      : holder_([&] {
          const int fd = ::open(path.c_str(), O_RDONLY);
          return fd >= 0 && prepare(fd);
        }) {}

  pid_t pid() const { return holder_.pid(); }

 private:
  Holder holder_;
};

}  // namespace deltawire::testing
