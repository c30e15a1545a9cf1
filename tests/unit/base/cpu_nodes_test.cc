#include "common/base/cpu_nodes.h"

#include <sched.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/temp_dir.h"

namespace deltawire::cpu_nodes_test {
namespace {

namespace fs = std::filesystem;

using Cpus = std::vector<int>;

Cpus Allowed() {
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  Cpus cpus;
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &set)) cpus.push_back(c);
  }
  return cpus;
}

void WriteNode(const fs::path& sysfs, const std::string& node, const std::string& list) {
  fs::create_directory(sysfs / node);
  std::ofstream(sysfs / node / "cpulist") << list;
}

TEST_CASE("lists of processors are read as the kernel writes them") {
  CHECK(ParseCpuList("0-3,8,10-11\n") == Cpus{0, 1, 2, 3, 8, 10, 11});
  CHECK(ParseCpuList("5") == Cpus{5});
  CHECK(ParseCpuList("7-7\n") == Cpus{7});
  // The kernel writes an empty list for a node that has memory but no processors.
  CHECK(ParseCpuList("\n") == Cpus{});
  CHECK(ParseCpuList("") == Cpus{});
}

TEST_CASE("what is no list of processors is refused") {
  const std::string text = GENERATE("x", "1-", "-1", "3-1", "1,", ",1", "1,,2", "1 2",
                                    "0-2000000000", "99999999999", "1-2-3");
  CAPTURE(text);
  CHECK_FALSE(ParseCpuList(text).has_value());
}

TEST_CASE("processors are grouped by node, without those that this process may not use") {
  const Cpus allowed = Allowed();
  const TempDir temp;
  // The last processor has a node to itself. By number node10 comes after node2; by name it would
  // come before.
  std::string most = "900-905";
  for (size_t i = 0; i + 1 < allowed.size(); ++i)
    most.append(",").append(std::to_string(allowed[i]));
  WriteNode(temp.path(), "node2", most + "\n");
  WriteNode(temp.path(), "node10", std::to_string(allowed.back()) + "\n");
  WriteNode(temp.path(), "node3", "\n");
  WriteNode(temp.path(), "node4", "906-907\n");
  WriteNode(temp.path(), "nodes", "0-1000\n");
  CpuNodes want;
  if (allowed.size() > 1) want.emplace_back(allowed.begin(), allowed.end() - 1);
  want.push_back({allowed.back()});
  CHECK(AvailableCpuNodes(temp.path()) == want);
}

TEST_CASE("without sysfs, or with one that says nonsense, all processors are one node") {
  const TempDir temp;
  CHECK(AvailableCpuNodes(temp.path() / "absent") == CpuNodes{Allowed()});
  CHECK(AvailableCpuNodes(temp.path()) == CpuNodes{Allowed()});
  WriteNode(temp.path(), "node0", "all of them");
  CHECK(AvailableCpuNodes(temp.path()) == CpuNodes{Allowed()});
}

TEST_CASE("this machine's nodes hold every processor that this process may use, once") {
  Cpus all;
  for (const auto& node : AvailableCpuNodes()) {
    CHECK_FALSE(node.empty());
    all.insert(all.end(), node.begin(), node.end());
  }
  std::sort(all.begin(), all.end());
  CHECK(all == Allowed());
}

TEST_CASE("a pinned thread stays on its processors, and a refusal changes nothing") {
  const Cpus before = Allowed();
  Cpus pinned, refused;
  std::thread([&] {
    PinThisThread({before.back()});
    pinned = Allowed();
    PinThisThread({1'000'000, -1});
    refused = Allowed();
  }).join();
  CHECK(pinned == Cpus{before.back()});
  CHECK(refused == pinned);
  CHECK(Allowed() == before);
}

}  // namespace
}  // namespace deltawire::cpu_nodes_test
