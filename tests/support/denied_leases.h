// A filesystem, or a kernel, without leases, anywhere: this fcntl stands before libc's for the
// whole program. Included by one source of a program. Owner: the test case, which sets lease_errno
// and sets it back.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace deltawire::testing {
/// What fcntl(F_SETLEASE) fails with in this program; 0: what the kernel says.
inline std::atomic<int> lease_errno{0};

/// While it lives, leases are denied.
struct DeniedLeases {
  explicit DeniedLeases(int error) { lease_errno = error; }
  ~DeniedLeases() { lease_errno = 0; }
  DeniedLeases(const DeniedLeases&) = delete;
};
}  // namespace deltawire::testing

extern "C" int fcntl(int fd, int command, ...) {
  using Fcntl = int (*)(int, int, ...);
  static const auto real = reinterpret_cast<Fcntl>(::dlsym(RTLD_NEXT, "fcntl"));
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (command == F_SETLEASE && argument != reinterpret_cast<void*>(F_UNLCK) &&
      deltawire::testing::lease_errno != 0) {
    errno = deltawire::testing::lease_errno;
    return -1;
  }
  return real(fd, command, argument);
}
