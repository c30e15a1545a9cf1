// Facts from the kernel: this machine in /proc, and this process's control group. Plain
// functions, thread-safe. Cost: each call reads a few small files. Errors: nullopt, or a status
// with the file's name, where the kernel does not say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// Bytes that this process can still take without swapping: of the machine's memory (MemAvailable),
/// and of what its control group and those above it allow (version 1 or 2, which count the pages of
/// tmpfs too). Files in a group's page cache count as free.
std::optional<uint64_t> AvailableMemory(const std::filesystem::path& proc = "/proc",
                                        const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// An id that is new after every start of the machine, and the same in all its containers.
StatusOr<std::string> BootId(const std::filesystem::path& proc = "/proc");

}  // namespace deltawire
