#include "common/base/machine.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <tuple>

#include "tests/support/temp_dir.h"

namespace deltawire::machine_test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("available memory is one line of meminfo, and unknown without it") {
  const TempDir proc;
  const auto says = [&](const std::string& text) {
    std::ofstream(proc.path() / "meminfo") << text;
    return AvailableMemory(proc.path(), proc.path() / "no groups");
  };
  CHECK_FALSE(AvailableMemory(proc.path(), proc.path() / "no groups").has_value());
  CHECK_FALSE(says("").has_value());
  CHECK_FALSE(says("MemTotal:  900 kB\nMemFree:  1 kB\n").has_value());
  CHECK_FALSE(says("MemTotal:  900 kB\nMemAvailable:\n").has_value());
  CHECK(says("MemTotal:  900 kB\nMemFree:  1 kB\nMemAvailable:   500 kB\nBuffers: 7 kB\n") ==
        500u * 1024);
  CHECK(says("HugePages_Total:       0\nMemAvailable:500 kB\nMemAvailable: 16777216 kB") ==
        uint64_t{16} << 30);
}

TEST_CASE("available memory is at most what each control group above the process leaves") {
  const TempDir dir;
  const fs::path proc = dir.path() / "proc", mount = dir.path() / "cgroup";
  const auto write = [](const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  const auto room = [&] { return AvailableMemory(proc, mount); };
  write(proc / "meminfo", "MemAvailable:  500 kB\n");
  std::string name, limit, used, active, none;
  fs::path top = mount;
  SECTION("version 2") {
    std::tie(name, limit, used, active) = std::tuple("0::", "memory.max", "memory.current", "");
    none = "max";
  }
  SECTION("version 1") {
    std::tie(name, limit, used, active) =
        std::tuple("9:cpu:/other\n4:hugetlb,memory:", "memory.limit_in_bytes",
                   "memory.usage_in_bytes", "total_");
    none = "9223372036854771712";
    top = mount / "memory";
  }
  write(proc / "self/cgroup", name + "/pods/one\n");
  CHECK(room() == 500u * 1024);
  write(top / "pods/one" / limit, none + "\n");
  write(top / "pods/one" / used, "1000\n");
  CHECK(room() == 500u * 1024);
  write(top / "pods/one" / limit, "3000\n");
  CHECK(room() == 2000);
  write(top / "pods/one" / "memory.stat",
        fmt::format("anon 5\n{0}inactive_file 300\n{0}active_file 100\n", active));
  CHECK(room() == 2400);
  // The group above has less left, and other groups' memory counts in it.
  write(top / "pods" / limit, "5000\n");
  write(top / "pods" / used, "4500\n");
  CHECK(room() == 500);
  write(top / "pods/one" / used, "9000\n");
  CHECK(room() == 0);
  // In a container the mount is the process's own group.
  write(proc / "self/cgroup", name + "/\n");
  write(top / limit, "700\n");
  write(top / used, "100\n");
  CHECK(room() == 600);
}

TEST_CASE("a boot has one id, without the end of its line") {
  const TempDir proc;
  const StatusOr<std::string> none = BootId(proc.path());
  CHECK(none.status().code() == StatusCode::kNotFound);
  CHECK(MessageOf(none.status()).find("sys/kernel/random/boot_id") != std::string_view::npos);
  std::filesystem::create_directories(proc.path() / "sys/kernel/random");
  std::ofstream(proc.path() / "sys/kernel/random/boot_id") << "5e2f-77\n";
  CHECK(BootId(proc.path()).value() == "5e2f-77");
}

TEST_CASE("this machine says how much memory is available, and which boot it is") {
  CHECK(AvailableMemory().value_or(0) > 0);
  const StatusOr<std::string> id = BootId();
  REQUIRE(id.ok());
  CHECK(id->size() == 36);
  CHECK(BootId().value() == *id);
}

}  // namespace
}  // namespace deltawire::machine_test
