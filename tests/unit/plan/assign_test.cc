// The tree of a site: laws over seeded fleets that grow, shrink and change, and the cases that a
// law does not show.
#include "common/plan/assign.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

namespace deltawire::plan::assign_test {
namespace {

using Nodes = std::vector<AssignNode>;

const AssignNode& Named(const Nodes& nodes, const std::string& id) {
  return *std::ranges::find(nodes, id, &AssignNode::id);
}

bool Here(const Nodes& nodes, const std::string& id) {
  return std::ranges::find(nodes, id, &AssignNode::id) != nodes.end();
}

/// Pulls from the origin by site.
std::map<std::string, size_t> Crossings(const Nodes& nodes, const Parents& parents) {
  std::map<std::string, size_t> n;
  for (const AssignNode& node : nodes) n[node.site] += parents.at(node.id).empty() ? 1 : 0;
  return n;
}

std::map<std::string, size_t> Followers(const Parents& parents) {
  std::map<std::string, size_t> n;
  for (const auto& [id, parent] : parents) ++n[parent];
  return n;
}

/// What is true of every assignment.
void CheckLaws(const Nodes& nodes, const Parents& parents, uint32_t fan_out) {
  REQUIRE(parents.size() == nodes.size());
  auto followers = Followers(parents);
  std::map<std::string, size_t> room;  // by site: places that are left
  for (const AssignNode& node : nodes) {
    const std::string& parent = parents.at(node.id);
    if (node.serves) {
      REQUIRE(followers[node.id] <= fan_out);
      room[node.site] += fan_out - followers[node.id];
    } else {
      REQUIRE(followers[node.id] == 0);
    }
    if (node.site.empty()) REQUIRE(parent.empty());
    if (parent.empty()) continue;
    REQUIRE(Here(nodes, parent));
    REQUIRE(Named(nodes, parent).site == node.site);
    size_t steps = 0;
    for (std::string at = node.id; !at.empty(); at = parents.at(at))
      REQUIRE(++steps <= nodes.size());
  }
  for (const auto& [site, crossings] : Crossings(nodes, parents)) {
    if (site.empty()) continue;
    const bool any = std::ranges::any_of(
        nodes, [&](const AssignNode& node) { return node.site == site && node.serves; });
    // A second one crosses the link only if the tree of the first has no place left; room under
    // the second one itself is none.
    const bool all = std::ranges::all_of(
        nodes, [&](const AssignNode& node) { return node.site != site || node.serves; });
    if (any && all) REQUIRE(crossings == 1);
    if (any && room[site] == 0) continue;
    if (any && crossings > 1) {
      // Whoever has room hangs below one of the others, and none of the first tree's does.
      std::set<std::string> roots_with_room;
      for (const AssignNode& node : nodes) {
        if (node.site != site || !node.serves || followers[node.id] == fan_out) continue;
        std::string root = node.id;
        while (!parents.at(root).empty()) root = parents.at(root);
        roots_with_room.insert(root);
      }
      REQUIRE(roots_with_room.size() < crossings);
    }
  }
}

void CheckBackups(const Nodes& nodes, const Parents& parents) {
  for (const auto& [id, backups] : BackupsOf(nodes, parents)) {
    if (parents.at(id).empty()) REQUIRE(backups.empty());
    for (const std::string& backup : backups) {
      REQUIRE(backup != parents.at(id));
      REQUIRE(Named(nodes, backup).serves);
      // Following it makes no circle.
      for (std::string at = backup; !at.empty(); at = parents.at(at)) REQUIRE(at != id);
    }
  }
}

Nodes Site(const std::string& name, size_t serving, size_t others = 0) {
  Nodes nodes;
  for (size_t i = 0; i < serving + others; ++i) {
    nodes.push_back({name + std::to_string(i), name, i < serving});
  }
  return nodes;
}

std::set<std::string> Moved(const Parents& before, const Parents& after) {
  std::set<std::string> moved;
  for (const auto& [id, parent] : after) {
    const auto was = before.find(id);
    if (was != before.end() && was->second != parent) moved.insert(id);
  }
  return moved;
}

}  // namespace

TEST_CASE("assign: any fleet, whatever was assigned before") {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto upto = [&](size_t n) { return random() % (n + 1); };
    Nodes nodes;
    for (size_t i = 0, n = upto(24); i < n; ++i) {
      const char* const sites[] = {"", "east", "west"};
      nodes.push_back({"n" + std::to_string(i), sites[upto(2)], upto(3) > 0});
    }
    Parents before;
    for (size_t i = 0; i < 30; ++i) {
      if (upto(2) == 0) continue;
      before["n" + std::to_string(i)] = upto(4) == 0 ? "" : "n" + std::to_string(upto(29));
    }
    const auto fan_out = static_cast<uint32_t>(1 + upto(4));
    CAPTURE(fan_out, nodes.size());
    const Parents parents = AssignUpstreams(nodes, before, {fan_out});
    CheckLaws(nodes, parents, fan_out);
    CheckBackups(nodes, parents);
    // Nothing moves when nothing has changed.
    const Parents again = AssignUpstreams(nodes, parents, {fan_out});
    REQUIRE(again == parents);
  }
}

TEST_CASE("assign: a death moves the dead one's followers alone, and a join nobody") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto fan_out = static_cast<uint32_t>(1 + random() % 4);
    Nodes nodes, away = Site("w", 1 + random() % 20);
    Parents parents;
    for (int step = 0; step < 60; ++step) {
      CAPTURE(step);
      const bool join = nodes.empty() || (!away.empty() && random() % 2 == 0);
      Nodes& from = join ? away : nodes;
      Nodes& to = join ? nodes : away;
      const auto at = from.begin() + static_cast<ptrdiff_t>(random() % from.size());
      const std::string id = at->id;
      to.push_back(*at);
      from.erase(at);
      // What it followed when it was last here must not matter.
      const Parents after = AssignUpstreams(nodes, parents, {fan_out});
      CheckLaws(nodes, after, fan_out);
      CheckBackups(nodes, after);
      for (const std::string& moved : Moved(parents, after)) {
        REQUIRE_FALSE(join);
        REQUIRE(parents.at(moved) == id);
      }
      // Whoever has lost the one that it followed is where its back-up said that it would go, or
      // below: the back-up has taken the dead one's place.
      if (!join && !nodes.empty()) {
        Nodes all = nodes;
        all.push_back({id, "w", true});
        const std::string& place = parents.at(id);
        const bool had =
            std::ranges::any_of(parents, [&](const auto& follows) { return follows.second == id; });
        if (had) {
          const bool taken = std::ranges::any_of(after, [&](const auto& follows) {
            return parents.at(follows.first) == id && follows.second == place;
          });
          REQUIRE(taken);
        }
      }
      parents = after;
    }
  }
}

TEST_CASE("assign: eight receivers of two sites make two crossings, and the trees are shallow") {
  Nodes nodes = Site("east", 4);
  for (AssignNode& node : Site("west", 4)) nodes.push_back(node);
  const Parents parents = AssignUpstreams(nodes, {}, {2});
  CHECK(Crossings(nodes, parents) == std::map<std::string, size_t>{{"east", 1}, {"west", 1}});
  const auto levels = LevelsOf(nodes, parents);
  REQUIRE(levels.at("west").size() == 3);
  CHECK(levels.at("west")[0].size() == 1);
  CHECK(levels.at("west")[1].size() == 2);
  CHECK(levels.at("west")[2].size() == 1);
}

TEST_CASE("assign: receivers without a site, or alone in one, pull from the origin") {
  const Nodes nodes = {{"a", "", true},
                       {"b", "", true},
                       {"c", "alone", true},
                       {"d", "dumb", false},
                       {"e", "dumb", false}};
  for (const auto& [id, parent] : AssignUpstreams(nodes, {}, {4})) CHECK(parent.empty());
}

TEST_CASE("assign: one that serves takes the place of one that does not, who follows it") {
  Nodes nodes = Site("w", 1, 2);
  Parents parents = AssignUpstreams(nodes, {}, {2});
  CHECK(parents.at("w1") == "w0");
  CHECK(parents.at("w2") == "w0");
  nodes.push_back({"w3", "w", false});
  parents = AssignUpstreams(nodes, parents, {2});
  CHECK(parents.at("w3").empty());  // full: it crosses the link
  nodes.push_back({"w4", "w", true});
  parents = AssignUpstreams(nodes, parents, {2});
  CHECK(Crossings(nodes, parents).at("w") == 1);
  CHECK(parents.at("w4") == "w0");
}

TEST_CASE("assign: one that serves no more keeps its place, and loses its followers") {
  Nodes nodes = Site("w", 5);
  const Parents before = AssignUpstreams(nodes, {}, {2});
  REQUIRE(before.at("w0").empty());
  nodes[0].serves = false;
  const Parents after = AssignUpstreams(nodes, before, {2});
  CheckLaws(nodes, after, 2);
  CHECK_FALSE(after.at("w0").empty());
  CHECK(after.at("w1").empty());  // the first of its followers
  nodes[0].serves = true;
  CHECK(AssignUpstreams(nodes, after, {2}) == after);
}

TEST_CASE("assign: a tree of 585 receivers with eight followers each has four levels") {
  const Nodes nodes = Site("w", 585);  // 1 + 8 + 64 + 512
  const auto levels = LevelsOf(nodes, AssignUpstreams(nodes, {}, {8}));
  REQUIRE(levels.at("w").size() == 4);
  CHECK(levels.at("w")[3].size() == 512);
}

}  // namespace deltawire::plan::assign_test
