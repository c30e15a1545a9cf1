// The NUMA nodes of this machine, limited to the processors that this process may run on. A machine
// that does not report its nodes counts as one node. Each call reads a few small files of sysfs.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace deltawire {

/// The processors of each node, nodes in rising order; no node is empty.
using CpuNodes = std::vector<std::vector<int>>;

/// Parses a processor list in the kernel's format ("0-3,8,10-11\n"); nullopt for any other text.
std::optional<std::vector<int>> ParseCpuList(std::string_view list);

/// Returns the processors that this thread may run on, by node. `sysfs` is a folder of
/// node*/cpulist. A processor that no node lists is added to the first node.
CpuNodes AvailableCpuNodes(const std::filesystem::path& sysfs = "/sys/devices/system/node");

/// Pins the calling thread to these processors. If the kernel refuses, the thread stays unpinned.
void PinThisThread(const std::vector<int>& cpus);

}  // namespace deltawire
