#include "cli/site_tree.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace deltawire::cli {

std::vector<TreeRow> TreeOf(const std::vector<const v1::ReceiverInfo*>& all) {
  std::vector<const v1::ReceiverInfo*> sorted = all;
  std::ranges::stable_sort(
      sorted, {}, [](const v1::ReceiverInfo* r) { return std::pair(r->site(), r->receiver_id()); });
  std::set<std::string> ids;
  for (const auto* r : sorted) ids.insert(r->receiver_id());
  std::map<std::string, std::vector<const v1::ReceiverInfo*>> followers;
  std::vector<TreeRow> stack, rows;
  for (const auto* r : sorted) {
    if (!r->follows().empty() && ids.contains(r->follows())) followers[r->follows()].push_back(r);
  }
  std::set<const v1::ReceiverInfo*> shown;
  const auto show = [&](const v1::ReceiverInfo* first) {
    stack.push_back({first, 0});
    while (!stack.empty()) {
      const TreeRow row = stack.back();
      stack.pop_back();
      if (!shown.insert(row.receiver).second) continue;
      rows.push_back(row);
      const auto below = followers.find(row.receiver->receiver_id());
      if (below == followers.end()) continue;
      for (auto r = below->second.rbegin(); r != below->second.rend(); ++r) {
        stack.push_back({*r, row.depth + 1});
      }
    }
  };
  for (const auto* r : sorted) {
    if (r->follows().empty() || !ids.contains(r->follows())) show(r);
  }
  for (const auto* r : sorted) show(r);  // a cycle, for a moment while assignments change
  return rows;
}

bool HasSites(const v1::ListReceiversResponse& attached) {
  return std::ranges::any_of(attached.receivers(),
                             [](const v1::ReceiverInfo& r) { return !r.site().empty(); });
}

std::string Indented(const TreeRow& row) {
  return std::string(2 * row.depth, ' ') + row.receiver->receiver_id();
}

std::string FollowsText(const v1::ReceiverInfo& r) {
  if (r.site().empty()) return "-";
  const auto name = [](const std::string& id) { return id.empty() ? "sender" : id; };
  if (r.follows() == r.assigned()) return name(r.follows());
  return fmt::format("{} (told {})", name(r.follows()), name(r.assigned()));
}

}  // namespace deltawire::cli
