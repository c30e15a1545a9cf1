// What this machine is and what its processes use, from /proc. Functions only read, from any
// thread. They return 0 or "" where there is no such process or the kernel does not tell.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace deltawire::bench {

std::string CpuName();
size_t Cores();  ///< how many cores this process may run on
uint64_t AvailableMemory();

/// The field `key` of a file of /proc, in bytes, e.g. ("/proc/self/status", "VmRSS").
/// REQUIRES: the file gives this field in KiB.
uint64_t ProcBytes(const std::string& file, const std::string& key);

/// Share of this process's anonymous memory that lies in huge pages.
double HugePageShare();

/// CPU time that a process has used so far, in user mode and in the kernel.
double CpuSeconds(pid_t pid);

}  // namespace deltawire::bench
