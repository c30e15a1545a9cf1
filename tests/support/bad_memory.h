// Simulates bad memory: flips a bit of a file. The file's times are restored, since a daemon would
// notice a changed time sooner. Owner: none; free functions. Threads: any. Cost: a few system
// calls. Errors: fail the test.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>

#include "common/layout/layout.h"

namespace deltawire::testing {

/// Flips a bit of the byte at `at`; a negative `at` counts from the file's end.
inline void FlipByte(const std::filesystem::path& file, int64_t at) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  struct stat before;
  REQUIRE((fd >= 0 && ::fstat(fd, &before) == 0));
  if (at < 0) at += before.st_size;
  uint8_t byte = 0;
  REQUIRE(::pread(fd, &byte, 1, at) == 1);
  byte ^= 0x10;
  REQUIRE(::pwrite(fd, &byte, 1, at) == 1);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  REQUIRE(::futimens(fd, times) == 0);
  ::close(fd);
}

/// Flips a bit of the byte at `offset` of the data section, which ends the file.
inline void Flip(const std::filesystem::path& file, const Layout& layout, uint64_t offset) {
  FlipByte(file, static_cast<int64_t>(offset) - static_cast<int64_t>(layout.total_bytes()));
}

}  // namespace deltawire::testing
