#include "common/base/machine.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string_view>

namespace deltawire {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

/// Returns nullopt when the file does not exist or says "max".
std::optional<uint64_t> NumberIn(const fs::path& file) {
  std::ifstream in(file);
  uint64_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

/// Sums the numbers behind these words in a file of "word number" lines.
uint64_t SumIn(const fs::path& file, std::initializer_list<std::string_view> words) {
  std::ifstream in(file);
  uint64_t sum = 0, number = 0;
  for (std::string word; in >> word >> number;) {
    if (std::find(words.begin(), words.end(), word) != words.end()) sum += number;
  }
  return sum;
}

uint64_t MachineMemory(const fs::path& proc) {
  std::ifstream in(proc / "meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t kib = 0;
    if (words >> key && key == "MemAvailable:" && words >> kib) return kib * 1024;
  }
  return kUnknown;
}

struct GroupFiles {
  const char *limit, *used;
  std::initializer_list<std::string_view> cached;
};

/// Returns the bytes that one group still allows. Cached files count as free, because the kernel
/// drops them when memory is short.
uint64_t RoomOf(const fs::path& group, const GroupFiles& files) {
  const auto limit = NumberIn(group / files.limit), used = NumberIn(group / files.used);
  if (!limit || !used) return kUnknown;
  const uint64_t held = *used - std::min(*used, SumIn(group / "memory.stat", files.cached));
  return *limit - std::min(*limit, held);
}

/// Returns this process's group below the mount of the memory controller, or "" in a container that
/// hides it.
fs::path GroupIn(const fs::path& proc, bool second_version) {
  std::ifstream in(proc / "self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is =
        second_version ? controllers == ",," : controllers.find(",memory,") != std::string::npos;
    if (is) return fs::path(line.substr(second + 1)).relative_path();
  }
  return {};
}

}  // namespace

std::optional<uint64_t> AvailableMemory(const fs::path& proc, const fs::path& cgroup) {
  uint64_t bytes = MachineMemory(proc);
  const auto look = [&](const fs::path& mount, fs::path group, const GroupFiles& files) {
    for (; !group.empty(); group = group.parent_path()) {
      bytes = std::min(bytes, RoomOf(mount / group, files));
    }
    bytes = std::min(bytes, RoomOf(mount, files));
  };
  look(cgroup, GroupIn(proc, true),
       {"memory.max", "memory.current", {"active_file", "inactive_file"}});
  look(cgroup / "memory", GroupIn(proc, false),
       {"memory.limit_in_bytes",
        "memory.usage_in_bytes",
        {"total_active_file", "total_inactive_file"}});
  return bytes == kUnknown ? std::nullopt : std::optional(bytes);
}

StatusOr<std::string> BootId(const std::filesystem::path& proc) {
  const std::filesystem::path path = proc / "sys/kernel/random/boot_id";
  std::ifstream in(path);
  std::string id;
  if (!(in >> id)) return ErrnoError(fmt::format("read {}", path.native()));
  return id;
}

}  // namespace deltawire
