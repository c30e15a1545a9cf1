#include "common/base/machine.h"

#include <fstream>
#include <sstream>

namespace deltawire {

std::optional<uint64_t> AvailableMachineMemory(const std::filesystem::path& proc) {
  std::ifstream in(proc / "meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t kib = 0;
    if (words >> key && key == "MemAvailable:" && words >> kib) return kib * 1024;
  }
  return std::nullopt;
}

StatusOr<std::string> BootId(const std::filesystem::path& proc) {
  const std::filesystem::path path = proc / "sys/kernel/random/boot_id";
  std::ifstream in(path);
  std::string id;
  if (!(in >> id)) return ErrnoError(fmt::format("read {}", path.native()));
  return id;
}

}  // namespace deltawire
