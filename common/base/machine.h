// What the kernel says of this machine in /proc. Plain functions, thread-safe. Cost: each call
// reads one small file. Errors: nullopt, or a status with the file's name, where the kernel does
// not say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// MemAvailable, in bytes: what programs can still take without swapping. A control group may allow
/// less.
std::optional<uint64_t> AvailableMachineMemory(const std::filesystem::path& proc = "/proc");

/// An id that is new after every start of the machine, and the same in all its containers.
StatusOr<std::string> BootId(const std::filesystem::path& proc = "/proc");

}  // namespace deltawire
