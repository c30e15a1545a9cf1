#include "bench/harness/machine.h"

#include <malloc.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <fstream>

namespace deltawire::bench {
namespace {

// Returns the text after `key` in a line of `file`; "" if there is none.
std::string Field(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t:", key.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
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

uint64_t ProcBytes(const std::string& file, const std::string& key) {
  return std::strtoull(Field(file, key).c_str(), nullptr, 10) * 1024;
}

double HugePageShare() {
  const char* const file = "/proc/self/smaps_rollup";
  const auto all = static_cast<double>(ProcBytes(file, "Anonymous:"));
  return all > 0 ? static_cast<double>(ProcBytes(file, "AnonHugePages:")) / all : 0;
}

double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec used{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

PeakMemory::PeakMemory() {
  malloc_trim(0);  // or the reuse of freed, still resident memory would go unseen
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;  // resets VmHWM
  reset_ = out.good();
  start_ = ProcBytes("/proc/self/status", "VmRSS");
}

std::optional<uint64_t> PeakMemory::Beyond() const {
  const uint64_t peak = ProcBytes("/proc/self/status", "VmHWM");
  if (!reset_ || peak == 0) return std::nullopt;
  return peak > start_ ? peak - start_ : 0;
}

MemoryWatch::MemoryWatch(pid_t pid) {
  thread_ = std::thread([this, status = fmt::format("/proc/{}/status", pid)] {
    while (!stopping_) {
      peak_ = std::max(peak_.load(), ProcBytes(status, "RssAnon"));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
}

MemoryWatch::~MemoryWatch() {
  stopping_ = true;
  thread_.join();
}

}  // namespace deltawire::bench
