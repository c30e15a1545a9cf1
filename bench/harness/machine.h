// Facts about this machine and its processes, from /proc. Functions return 0 or "" if there is no
// such process or the kernel does not tell. A PeakMemory lets the kernel count for this process, so
// no peak is missed between samples; only one may exist at a time. A MemoryWatch samples any
// process every 5 ms, on its own thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

namespace deltawire::bench {

std::string CpuName();
size_t Cores();  ///< the cores that this process may run on

/// Returns the field `key` of a file of /proc, in bytes, e.g. ("/proc/self/status", "VmRSS").
/// REQUIRES: the file gives this field in KiB.
uint64_t ProcBytes(const std::string& file, const std::string& key);

double HugePageShare();

/// Returns a process's CPU time so far, in user mode and in the kernel.
double CpuSeconds(pid_t pid);

/// The growth of this process's resident memory since the object was made. Shared pages count too,
/// so touch buffers before.
class PeakMemory {
 public:
  PeakMemory();
  /// In bytes; nullopt if the kernel does not let the peak be reset.
  std::optional<uint64_t> Beyond() const;

 private:
  uint64_t start_ = 0;
  bool reset_ = false;
};

/// The peak of a process's anonymous memory, which excludes its buffers in tmpfs files.
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
