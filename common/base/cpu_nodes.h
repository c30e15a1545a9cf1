// The NUMA nodes of this machine, limited to the processors that this process may run on.
// Plain values and functions, thread-safe. Cost: reads a few small files of sysfs.
// Errors: none. A machine that does not say which nodes it has counts as one node.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace deltawire {

/// The processors of each node, nodes in rising order; no node is empty.
using CpuNodes = std::vector<std::vector<int>>;

/// The processors of a list as the kernel writes it ("0-3,8,10-11\n"); nullopt for any other text.
std::optional<std::vector<int>> ParseCpuList(std::string_view list);

/// The processors that this thread may run on, by node. `sysfs` is a folder of node*/cpulist.
/// A processor that no node lists counts as one of the first node's.
CpuNodes AvailableCpuNodes(const std::filesystem::path& sysfs = "/sys/devices/system/node");

/// Keeps the calling thread on these processors. If the kernel refuses, the thread stays unpinned.
void PinThisThread(const std::vector<int>& cpus);

}  // namespace deltawire
