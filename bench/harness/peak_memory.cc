#include "bench/harness/peak_memory.h"

#include <malloc.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "bench/harness/machine.h"

namespace deltawire::bench {

PeakMemory::PeakMemory() {
  malloc_trim(0);  // memory that is freed but still resident would be taken again unseen
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;  // VmHWM starts anew
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
