// The NUMA nodes of this machine, as far as this process may run on them.
// Plain values; pure functions but for what they read from sysfs. Thread-safe; cheap.
// Errors: none. A machine that does not tell its nodes counts as one node.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace deltawire {

/// For each node, in rising order, its processors; no node is empty.
using CpuNodes = std::vector<std::vector<int>>;

/// Processors of a list as the kernel writes it ("0-3,8,10-11\n"); nullopt when it is none.
std::optional<std::vector<int>> ParseCpuList(std::string_view list);

/// The processors that this thread may run on, by node. `sysfs` is a folder of node*/cpulist;
/// processors that no node claims are in the first.
CpuNodes AvailableCpuNodes(const std::filesystem::path& sysfs = "/sys/devices/system/node");

/// Keeps the calling thread on these processors. Where the kernel refuses, it runs as before.
void PinThisThread(const std::vector<int>& cpus);

}  // namespace deltawire
