#include "common/base/cpu_nodes.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

namespace deltawire {
namespace {

namespace fs = std::filesystem;

constexpr int kMostCpus = CPU_SETSIZE;  // the size of a plain cpu_set_t

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int c = 0; c < kMostCpus; ++c) {
      if (CPU_ISSET(c, &set)) cpus.push_back(c);
    }
  }
  if (cpus.empty()) {
    const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int c = 0; c < count; ++c) cpus.push_back(c);
  }
  return cpus;
}

/// Removes an unsigned number from the front of `text`.
std::optional<int> TakeNumber(std::string_view& text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || n < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return n;
}

/// Returns the node of each processor that sysfs lists.
std::map<int, int> NodeOfCpu(const fs::path& sysfs) {
  std::map<int, int> node_of;
  std::error_code ec;
  for (fs::directory_iterator it(sysfs, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename();
    std::string_view number = name;
    if (!number.starts_with("node")) continue;
    number.remove_prefix(4);
    const auto node = TakeNumber(number);
    if (!node.has_value() || !number.empty()) continue;
    std::ifstream in(it->path() / "cpulist");
    const std::string list{std::istreambuf_iterator<char>(in), {}};
    const auto cpus = ParseCpuList(list);
    if (!cpus.has_value()) continue;
    for (const int c : *cpus) node_of[c] = *node;
  }
  return node_of;
}

}  // namespace

std::optional<std::vector<int>> ParseCpuList(std::string_view list) {
  while (!list.empty() && (list.back() == '\n' || list.back() == ' ')) list.remove_suffix(1);
  std::vector<int> cpus;
  while (!list.empty()) {
    const auto first = TakeNumber(list);
    if (!first.has_value()) return std::nullopt;
    auto last = first;
    if (list.starts_with('-')) {
      list.remove_prefix(1);
      last = TakeNumber(list);
    }
    if (!last.has_value() || *last < *first || *last >= kMostCpus) return std::nullopt;
    for (int c = *first; c <= *last; ++c) cpus.push_back(c);
    if (list.empty()) break;
    if (!list.starts_with(',') || list.size() == 1) return std::nullopt;
    list.remove_prefix(1);
  }
  return cpus;
}

CpuNodes AvailableCpuNodes(const fs::path& sysfs) {
  const std::map<int, int> node_of = NodeOfCpu(sysfs);
  std::map<int, std::vector<int>> nodes;
  std::vector<int> homeless;
  for (const int c : AllowedCpus()) {
    const auto found = node_of.find(c);
    (found == node_of.end() ? homeless : nodes[found->second]).push_back(c);
  }
  CpuNodes result;
  for (auto& [node, cpus] : nodes) result.push_back(std::move(cpus));
  if (result.empty()) result.emplace_back();
  result.front().insert(result.front().end(), homeless.begin(), homeless.end());
  return result;
}

void PinThisThread(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : cpus) {
    if (c >= 0 && c < kMostCpus) CPU_SET(c, &set);
  }
  // A failure is ignored: a thread on another node is slower, but correct.
  (void)::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace deltawire
