// Tests of the simulation's runtime: fibers, virtual time, killed processes, replay.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <vector>

#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "tests/simulation/process.h"
#include "tests/simulation/scheduler.h"

namespace deltawire::simulation {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<Process> NewProcess(const std::string& name = "test") {
  return std::make_shared<Process>(name);
}

std::string RunHistory(Scheduler::Options options, const std::function<void()>& main,
                       uint64_t* hash = nullptr) {
  Scheduler scheduler(options);
  std::string failure = scheduler.Run(NewProcess(), main);
  if (hash != nullptr) *hash = scheduler.trace_hash();
  return failure;
}

TEST_CASE("threads, mutexes and a pool run on fibers") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    int counter = 0;
    std::vector<int> squares(20);
    const std::string failure = RunHistory({.seed = seed, .switches = 0.5, .spurious = 0.1}, [&] {
      Mutex mu;
      std::vector<Thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          for (int n = 0; n < 10; ++n) {
            std::lock_guard lock(mu);
            const int before = counter;
            Scheduler::current()->Point("inside");
            counter = before + 1;
          }
        });
      }
      for (Thread& t : threads) t.join();
      ThreadPool pool(3, {{0, 1, 2}});
      pool.ParallelFor(squares.size(), [&](size_t i) { squares[i] = static_cast<int>(i * i); });
    });
    CHECK(failure.empty());
    CHECK(counter == 40);
    CHECK(squares.back() == 361);
  }
}

TEST_CASE("time jumps to the next timer") {
  const std::string failure = RunHistory({}, [] {
    Mutex mu;
    CondVar cv;
    std::unique_lock lock(mu);
    const auto start = SteadyClock::now();
    CHECK(cv.wait_for(lock, 1h) == std::cv_status::timeout);
    const auto waited = SteadyClock::now() - start;
    CHECK(waited >= 1h);
    CHECK(waited < 1h + 1s);
  });
  CHECK(failure.empty());
}

TEST_CASE("a deadlock is reported with who waits for what") {
  const std::string failure = RunHistory({.seed = 3, .switches = 1}, [] {
    Mutex a, b;
    Thread other([&] {
      std::lock_guard first(b);
      Scheduler::current()->Sleep(1ms);
      std::lock_guard second(a);
    });
    std::lock_guard first(a);
    Scheduler::current()->Sleep(1ms);
    std::lock_guard second(b);
    other.join();
  });
  CHECK(failure.find("deadlock") != std::string::npos);
  CHECK(failure.find("a mutex") != std::string::npos);
}

TEST_CASE("the same seed gives the same history, and another seed gives another one") {
  const auto history = [] {
    Mutex mu;
    CondVar cv;
    int turn = 0;
    std::vector<Thread> threads;
    for (int i = 0; i < 5; ++i) {
      threads.emplace_back([&] {
        std::unique_lock lock(mu);
        ++turn;
        cv.notify_one();
        cv.wait_for(lock, 3ms);
      });
    }
    for (Thread& t : threads) t.join();
  };
  uint64_t first = 0, again = 0, other = 0;
  RunHistory({.seed = 7, .switches = 0.5}, history, &first);
  RunHistory({.seed = 7, .switches = 0.5}, history, &again);
  RunHistory({.seed = 8, .switches = 0.5}, history, &other);
  CHECK(first == again);
  CHECK(first != other);
}

TEST_CASE("a killed process loses its locks, descriptors and mappings, and keeps its bytes") {
  const auto dir = std::filesystem::path("/dev/shm") / fmt::format("deltawire-sim-{}", ::getpid());
  std::filesystem::create_directories(dir);
  const std::string path = dir / "file";
  const std::string failure = RunHistory({}, [&] {
    Scheduler& scheduler = *Scheduler::current();
    auto victim = NewProcess("victim");
    bool after = false;
    scheduler.Spawn("writer", victim, [&] {
      const int fd = ::open(path.c_str(), O_CREAT | O_RDWR, 0600);
      CHECK(::flock(fd, LOCK_EX | LOCK_NB) == 0);
      CHECK(::ftruncate(fd, 4096) == 0);
      auto* base =
          static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
      base[0] = 'x';
      scheduler.Sleep(1s);
      after = true;
    });
    scheduler.Sleep(500ms);
    const int fd = ::open(path.c_str(), O_RDWR);
    REQUIRE(fd >= 0);
    CHECK(::flock(fd, LOCK_EX | LOCK_NB) != 0);
    std::signal(SIGIO, SIG_IGN);  // the signal by which the kernel tells a lease's holder
    // While another process has the file open, no lease is granted.
    CHECK(::fcntl(fd, F_SETLEASE, F_WRLCK) != 0);
    struct stat file;
    CHECK(::fstat(fd, &file) == 0);
    CHECK(victim->Find(file.st_ino) != nullptr);
    victim->Kill();
    CHECK(victim->Find(file.st_ino) == nullptr);
    CHECK(::flock(fd, LOCK_EX | LOCK_NB) == 0);
    char byte = 0;
    CHECK(::pread(fd, &byte, 1, 0) == 1);
    CHECK(byte == 'x');
    CHECK(::fcntl(fd, F_SETLEASE, F_WRLCK) == 0);
    // An open now waits, in virtual time, until the lease is released.
    bool opened = false;
    Thread reader([&] {
      const int mine = ::open(path.c_str(), O_RDONLY);
      opened = mine >= 0;
      ::close(mine);
    });
    scheduler.Sleep(2s);
    CHECK_FALSE(opened);
    CHECK(::fcntl(fd, F_SETLEASE, F_UNLCK) == 0);
    reader.join();
    CHECK(opened);
    ::close(fd);
    scheduler.Sleep(5s);
    CHECK_FALSE(after);
  });
  std::filesystem::remove_all(dir);
  CHECK(failure == "");
}

TEST_CASE("a process can be killed at any of its points") {
  for (uint64_t point = 1; point < 30; ++point) {
    int reached = 0;
    const std::string failure = RunHistory({.seed = point}, [&] {
      Scheduler& scheduler = *Scheduler::current();
      auto victim = NewProcess("victim");
      victim->KillAfter(point);
      scheduler.Spawn("victim", victim, [&] {
        Mutex mu;
        while (true) {
          std::lock_guard lock(mu);
          ++reached;
        }
      });
      scheduler.Sleep(1s);
      CHECK_FALSE(victim->alive());
    });
    CHECK(failure == "");
    CHECK(reached == static_cast<int>(point) - 1);
  }
}

}  // namespace
}  // namespace deltawire::simulation
