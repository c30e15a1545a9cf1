// What this machine is and what its processes use, from /proc.
// Free functions are pure reads. A MemoryWatch samples from a thread of its own until it is
// destroyed; it is one short read per process and period, so it does not disturb what it watches.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace deltawire::bench {

std::string CpuName();
size_t Cores();  ///< that this process may run on
uint64_t AvailableMemory();

/// Resident memory of a process that is not shared: what it has beyond buffers in tmpfs files.
/// 0 when there is no such process.
uint64_t AnonymousBytes(pid_t pid);

/// CPU time that a process has used, in user and kernel; 0 when there is no such process.
double CpuSeconds(pid_t pid);

/// Keeps the highest AnonymousBytes of one process.
class MemoryWatch {
 public:
  explicit MemoryWatch(pid_t pid);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  uint64_t peak() const { return peak_; }

 private:
  void Run();
  const pid_t pid_;
  std::atomic<uint64_t> peak_{0};
  std::mutex mu_;
  std::condition_variable cv_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deltawire::bench
