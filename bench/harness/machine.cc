#include "bench/harness/machine.h"

#include <sched.h>
#include <time.h>

#include <chrono>
#include <fstream>

#include "common/base/status.h"

namespace deltawire::bench {
namespace {

constexpr std::chrono::milliseconds kPeriod{5};

// What follows `key` in a line of `file`; "" when there is none.
std::string Field(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t:", key.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

uint64_t Kibibytes(const std::string& text) {
  return std::strtoull(text.c_str(), nullptr, 10) * 1024;
}

}  // namespace

std::string CpuName() {
  const std::string name = Field("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

size_t Cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return std::thread::hardware_concurrency();
  return static_cast<size_t>(CPU_COUNT(&set));
}

uint64_t AvailableMemory() { return Kibibytes(Field("/proc/meminfo", "MemAvailable")); }

uint64_t AnonymousBytes(pid_t pid) {
  return Kibibytes(Field(fmt::format("/proc/{}/status", pid), "RssAnon"));
}

double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec used{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

MemoryWatch::MemoryWatch(pid_t pid) : pid_(pid), thread_([this] { Run(); }) {}

MemoryWatch::~MemoryWatch() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  cv_.notify_all();
  thread_.join();
}

void MemoryWatch::Run() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    peak_ = std::max<uint64_t>(peak_, AnonymousBytes(pid_));
    cv_.wait_for(lock, kPeriod);
  }
}

}  // namespace deltawire::bench
