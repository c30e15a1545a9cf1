#include "common/base/log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "tests/support/forked.h"

namespace deltawire::log_test {
namespace {

using testing::Forked;

/// Makes `to` the child's stderr, and starts its log.
void LogInto(int to) {
  ::dup2(to, STDERR_FILENO);
  if (!InitLogging("child", "info").ok()) ::_exit(2);
}

TEST_CASE("A log that nobody reads stops nobody who logs") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Forked child([&] {
    LogInto(ends[1]);
    ::alarm(30);  // ends the child if a call does not return
    // These lines are more than the pipe (64 KiB) and the log's queue (8,192 lines) can hold.
    for (int i = 0; i < 50'000; ++i) LogInfo("line {}", i);
    std::_Exit(0);  // the thread sanitizer's _exit would wait for stderr
  });
  CHECK(child.Wait() == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("A process whose log nobody reads ends all the same") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Forked child([&] {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);  // hides what Catch prints at exit
    LogInto(ends[1]);
    ::alarm(30);  // ends the child if it does not end
    for (int i = 0; i < 50'000; ++i) LogInfo("line {}", i);
    std::exit(EndLogging(3));
  });
  const int status = child.Wait();
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("A process that ends has written all of its log") {
  const bool waits = GENERATE(false, true);
  const int file = ::memfd_create("log", MFD_CLOEXEC);
  REQUIRE(file >= 0);
  Forked child([&] {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);  // hides what Catch prints at exit
    LogInto(file);
    for (int i = 0; i < 1000; ++i) LogWarn("line {} of {}", i, 1000);
    if (!waits) std::exit(0);
    ::_exit(EndLogging(0));  // exit() would wait for them itself
  });
  REQUIRE(child.Wait() == 0);
  std::string text(static_cast<size_t>(::lseek(file, 0, SEEK_END)), '\0');
  REQUIRE(::pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  ::close(file);
  CHECK(std::ranges::count(text, '\n') == 1000);
  CHECK(text.ends_with(" child: line 999 of 1000\n"));
}

}  // namespace
}  // namespace deltawire::log_test
