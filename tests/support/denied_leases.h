// Simulates a filesystem or kernel without leases: this fcntl replaces libc's in the whole program.
// Owner: the test case, which sets lease_errno and resets it. Threads: any. Cost: one more call.
// Errors: none.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace deltawire::testing {
/// The error with which fcntl(F_SETLEASE) fails in this program; 0: the call goes to the kernel.
inline std::atomic<int> lease_errno{0};

/// Denies leases while it lives.
struct DeniedLeases {
  explicit DeniedLeases(int error) { lease_errno = error; }
  ~DeniedLeases() { lease_errno = 0; }
  DeniedLeases(const DeniedLeases&) = delete;
};
}  // namespace deltawire::testing

// Weak, so that several sources of a program may include this.
extern "C" [[gnu::weak]] int fcntl(int fd, int command, ...) {
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
