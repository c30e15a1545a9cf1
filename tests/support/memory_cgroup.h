// A memory cgroup for one process, version 2 or 1, whichever this machine has the controller of.
// Owner: a test case; the processes in it must be gone before the destructor. Threads: one.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace deltawire::testing {

class MemoryCgroup {
 public:
  /// Nullopt: no cgroup can be made here.
  static std::optional<MemoryCgroup> Make(uint64_t limit_bytes) {
    namespace fs = std::filesystem;
    const std::string name = "deltawire-test-" + std::to_string(getpid());
    for (const bool second : {true, false}) {
      const fs::path root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
      if (!fs::exists(root / (second ? "cgroup.subtree_control" : "memory.limit_in_bytes"))) {
        continue;
      }
      if (second) Write(root / "cgroup.subtree_control", "+memory");
      std::error_code failed;
      if (!fs::create_directory(root / name, failed) || failed) continue;
      MemoryCgroup group(root / name, second);
      const char* const limit = second ? "memory.max" : "memory.limit_in_bytes";
      if (Write(group.path_ / limit, std::to_string(limit_bytes))) return group;
    }
    return std::nullopt;
  }
  MemoryCgroup(MemoryCgroup&& other) noexcept
      : path_(std::exchange(other.path_, {})), second_(other.second_) {}
  MemoryCgroup& operator=(MemoryCgroup&&) = delete;
  ~MemoryCgroup() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  /// What the process takes from now on counts.
  bool Add(pid_t pid) const { return Write(path_ / "cgroup.procs", std::to_string(pid)); }
  /// The most bytes so far; 0: this kernel does not say.
  uint64_t peak() const {
    std::ifstream file(path_ / (second_ ? "memory.peak" : "memory.max_usage_in_bytes"));
    uint64_t bytes = 0;
    return file >> bytes ? bytes : 0;
  }

 private:
  MemoryCgroup(std::filesystem::path path, bool second) : path_(std::move(path)), second_(second) {}
  static bool Write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream file(path);
    return static_cast<bool>(file << text << std::flush);
  }
  std::filesystem::path path_;
  bool second_;
};

}  // namespace deltawire::testing
