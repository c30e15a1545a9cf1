#include "common/base/machine.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace deltawire::machine_test {
namespace {

TEST_CASE("available memory is one line of meminfo, and unknown without it") {
  const TempDir proc;
  const auto says = [&](const std::string& text) {
    std::ofstream(proc.path() / "meminfo") << text;
    return AvailableMachineMemory(proc.path());
  };
  CHECK_FALSE(AvailableMachineMemory(proc.path()).has_value());
  CHECK_FALSE(says("").has_value());
  CHECK_FALSE(says("MemTotal:  900 kB\nMemFree:  1 kB\n").has_value());
  CHECK_FALSE(says("MemTotal:  900 kB\nMemAvailable:\n").has_value());
  CHECK(says("MemTotal:  900 kB\nMemFree:  1 kB\nMemAvailable:   500 kB\nBuffers: 7 kB\n") ==
        500u * 1024);
  CHECK(says("HugePages_Total:       0\nMemAvailable:500 kB\nMemAvailable: 16777216 kB") ==
        uint64_t{16} << 30);
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
  CHECK(AvailableMachineMemory().value_or(0) > 0);
  const StatusOr<std::string> id = BootId();
  REQUIRE(id.ok());
  CHECK(id->size() == 36);
  CHECK(BootId().value() == *id);
}

}  // namespace
}  // namespace deltawire::machine_test
