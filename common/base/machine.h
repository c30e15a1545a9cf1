// Facts about this machine from /proc, and about this process's control group. Each call reads a
// few small files, and fails with nullopt or a status that names the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// Returns the bytes that this process can still use without swapping. The machine (MemAvailable)
/// and the control groups from its own upward (version 1 or 2) both limit them. Groups count the
/// pages of tmpfs too; files in a group's page cache count as free.
std::optional<uint64_t> AvailableMemory(const std::filesystem::path& proc = "/proc",
                                        const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// Returns an id that changes at each boot and is the same in all of the machine's containers.
StatusOr<std::string> BootId(const std::filesystem::path& proc = "/proc");

}  // namespace deltawire
