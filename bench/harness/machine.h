// What this machine is and what its processes use, from /proc. Functions only read, from any
// thread, and return 0 or "" where there is no such process or the kernel does not tell. A
// PeakMemory lets the kernel count for this process, so no peak is missed between samples; only one
// may exist at a time. A MemoryWatch samples any process every 5 ms, from a thread of its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

namespace deltawire::bench {

std::string CpuName();
size_t Cores();  ///< how many cores this process may run on

/// The field `key` of a file of /proc, in bytes, e.g. ("/proc/self/status", "VmRSS").
/// REQUIRES: the file gives this field in KiB.
uint64_t ProcBytes(const std::string& file, const std::string& key);

/// Share of this process's anonymous memory that lies in huge pages.
double HugePageShare();

/// CPU time that a process has used so far, in user mode and in the kernel.
double CpuSeconds(pid_t pid);

/// How much resident memory this process has taken since the object was made. Shared pages count
/// too, so buffers should be touched before.
class PeakMemory {
 public:
  PeakMemory();
  /// Bytes; nothing where the kernel does not let the peak be reset.
  std::optional<uint64_t> Beyond() const;

 private:
  uint64_t start_ = 0;
  bool reset_ = false;
};

/// The most anonymous memory of a process, that is, without its buffers in tmpfs files.
class MemoryWatch {
 public:
  explicit MemoryWatch(pid_t pid);
  ~MemoryWatch();
  uint64_t peak() const { return peak_; }

 private:
  std::atomic<uint64_t> peak_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace deltawire::bench
