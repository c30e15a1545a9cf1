#include "bench/harness/peak_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace deltawire::bench {
namespace {

uint64_t StatusBytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key)) return std::strtoull(&line[key.size()], nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

PeakMemory::PeakMemory() {
  malloc_trim(0);  // or freed memory, still resident, would be taken again unseen
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;  // VmHWM starts anew
  reset_ = out.good();
  start_ = StatusBytes("VmRSS:");
}

std::optional<uint64_t> PeakMemory::Beyond() const {
  const uint64_t peak = StatusBytes("VmHWM:");
  if (!reset_ || peak == 0) return std::nullopt;
  return peak > start_ ? peak - start_ : 0;
}

}  // namespace deltawire::bench
