// The most memory that a process had at once. A PeakMemory lets the kernel count for this process,
// so no peak is missed between samples; only one may exist at a time. A MemoryWatch samples any
// process every 5 ms, from a thread of its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>

namespace deltawire::bench {

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
