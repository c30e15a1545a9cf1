#include "common/plan/assign.h"

#include <algorithm>
#include <cstddef>

namespace deltawire::plan {
namespace {

constexpr int kOrigin = -1;
constexpr int kNone = -2;  // not placed yet

/// The plan of one site. Receivers are numbered in their order.
class SitePlan {
 public:
  SitePlan(std::vector<const AssignNode*> nodes, const Parents& before, uint32_t fan_out)
      : nodes_(std::move(nodes)),
        before_(before),
        fan_out_(fan_out),
        parent_(nodes_.size(), kNone),
        children_(nodes_.size()) {
    for (size_t i = 0; i < nodes_.size(); ++i) number_[nodes_[i]->id] = static_cast<int>(i);
  }

  void Run(Parents& out) {
    Keep();
    Inherit();
    const int root = ChooseRoot();
    if (root == kNone) {
      std::ranges::fill(parent_, kOrigin);
    } else {
      PlaceAll(root);
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      out[nodes_[i]->id] = parent_[i] < 0 ? "" : nodes_[static_cast<size_t>(parent_[i])]->id;
    }
  }

 private:
  bool serves(int node) const { return nodes_[static_cast<size_t>(node)]->serves; }
  int& parent(int node) { return parent_[static_cast<size_t>(node)]; }
  std::vector<int>& children(int node) { return children_[static_cast<size_t>(node)]; }
  bool HasRoom(int node) { return serves(node) && children(node).size() < fan_out_; }

  void Hang(int node, int under) {
    parent(node) = under;
    if (under >= 0) children(under).push_back(node);
  }
  void Unhang(int node) {
    if (parent(node) >= 0) std::erase(children(parent(node)), node);
    parent(node) = kNone;
  }

  /// Returns the former upstream of `node`: a receiver's number, or kOrigin. kNone: no upstream, or
  /// one that has gone or no longer serves.
  int Before(int node) const {
    const auto was = before_.find(nodes_[static_cast<size_t>(node)]->id);
    if (was == before_.end()) return kNone;
    if (was->second.empty()) return kOrigin;
    const auto number = number_.find(was->second);
    return number == number_.end() || !serves(number->second) ? kNone : number->second;
  }

  /// Keeps former assignments that the rules still allow.
  void Keep() {
    for (int node = 0; node < size(); ++node) {
      const int was = Before(node);
      if (was == kOrigin) parent(node) = kOrigin;
      if (was >= 0 && was != node && HasRoom(was) && !Above(node, was)) Hang(node, was);
    }
  }

  /// Returns whether `other` is `node`, or follows it directly or through others.
  bool Above(int node, int other) {
    for (int at = other; at >= 0; at = parent(at)) {
      if (at == node) return true;
    }
    return false;
  }

  /// Replaces each receiver that has gone or no longer serves: its first follower takes its place,
  /// and the other followers follow that one.
  void Inherit() {
    std::map<std::string, int> heirs;  // by the receiver that has gone
    for (int node = 0; node < size(); ++node) {
      if (parent(node) != kNone || !serves(node)) continue;
      const auto was = before_.find(nodes_[static_cast<size_t>(node)]->id);
      if (was == before_.end() || was->second.empty() || !Gone(was->second)) continue;
      if (!heirs.emplace(was->second, node).second) continue;
      const int place = PlaceOf(was->second);
      if (place == kOrigin) parent(node) = kOrigin;
      if (place >= 0 && HasRoom(place) && !Above(node, place)) Hang(node, place);
    }
    for (int node = 0; node < size(); ++node) {
      const auto was = before_.find(nodes_[static_cast<size_t>(node)]->id);
      if (parent(node) != kNone || was == before_.end()) continue;
      const auto heir = heirs.find(was->second);
      if (heir == heirs.end() || !HasRoom(heir->second) || Above(node, heir->second)) continue;
      Hang(node, heir->second);
    }
  }

  bool Gone(const std::string& id) const {
    const auto number = number_.find(id);
    return number == number_.end() || !serves(number->second);
  }

  /// Returns the nearest receiver above `gone`, in the former tree, that is still here and serves.
  int PlaceOf(const std::string& gone) const {
    std::string id = gone;
    for (size_t steps = 0; steps <= before_.size(); ++steps) {
      const auto was = before_.find(id);
      if (was == before_.end()) return kNone;
      id = was->second;
      if (id.empty()) return kOrigin;
      if (!Gone(id)) return number_.at(id);
    }
    return kNone;
  }

  int SubtreeSize(int node) {
    int size = 1;
    for (const int child : children(node)) size += SubtreeSize(child);
    return size;
  }

  /// Returns the receiver that pulls from the origin for all others; kNone: none of them serves.
  int ChooseRoot() {
    int root = kNone;
    const auto better = [&](int node) {
      if (root == kNone) return true;
      if ((parent(node) == kOrigin) != (parent(root) == kOrigin)) return parent(node) == kOrigin;
      return SubtreeSize(node) > SubtreeSize(root);
    };
    for (int node = 0; node < size(); ++node) {
      if (serves(node) && parent(node) < 0 && better(node)) root = node;
    }
    return root;
  }

  void PlaceAll(int root) {
    parent(root) = kOrigin;
    std::vector<int> serving, others;
    for (int node = 0; node < size(); ++node) {
      if (node == root || parent(node) >= 0) continue;
      parent(node) = kNone;
      (serves(node) ? serving : others).push_back(node);
    }
    for (const int node : serving) {
      if (Place(node, root)) continue;
      const int moved = MakeRoom(node, root);
      if (moved != kNone) others.push_back(moved);
    }
    // Receivers placed later may have brought room.
    for (const int node : serving) {
      if (parent(node) == kNone && !Place(node, root)) parent(node) = kOrigin;
    }
    for (const int node : others) {
      if (!Place(node, root)) parent(node) = kOrigin;
    }
  }

  /// Returns the root and all that follow it, directly or through others, the nearest first.
  std::vector<int> Connected(int root) {
    std::vector<int> all{root};
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& below = children(all[i]);
      all.insert(all.end(), below.begin(), below.end());
    }
    return all;
  }

  /// Places `node` under the receiver with room that is nearest to the root. Ties go to the
  /// receiver with the fewest followers. Returns false if no receiver has room.
  bool Place(int node, int root) {
    std::vector<int> level{root};
    while (!level.empty()) {
      int under = kNone;
      std::vector<int> next;
      for (const int at : level) {
        if (HasRoom(at) && (under == kNone || children(at).size() < children(under).size())) {
          under = at;
        }
        next.insert(next.end(), children(at).begin(), children(at).end());
      }
      if (under != kNone) {
        Hang(node, under);
        return true;
      }
      level = std::move(next);
    }
    return false;
  }

  /// Gives `node`, which serves, the place of a receiver that does not, and returns that receiver.
  /// Returns kNone if there is none, or if it would gain nothing, since no receiver under `node`
  /// has room.
  int MakeRoom(int node, int root) {
    const auto below = Connected(node);
    if (std::ranges::none_of(below, [&](int at) { return HasRoom(at); })) return kNone;
    for (const int at : Connected(root)) {
      if (serves(at)) continue;
      const int under = parent(at);
      Unhang(at);
      Hang(node, under);
      return at;
    }
    return kNone;
  }

  int size() const { return static_cast<int>(nodes_.size()); }

  const std::vector<const AssignNode*> nodes_;
  const Parents& before_;
  const size_t fan_out_;
  std::map<std::string, int> number_;
  std::vector<int> parent_;
  std::vector<std::vector<int>> children_;
};

}  // namespace

Parents AssignUpstreams(const std::vector<AssignNode>& nodes, const Parents& before,
                        const AssignLimits& limits) {
  Parents parents;
  std::map<std::string, std::vector<const AssignNode*>> sites;
  for (const AssignNode& node : nodes) {
    if (node.site.empty()) {
      parents[node.id] = "";
    } else {
      sites[node.site].push_back(&node);
    }
  }
  for (auto& [site, members] : sites) {
    SitePlan(std::move(members), before, std::max<uint32_t>(limits.fan_out, 1)).Run(parents);
  }
  return parents;
}

std::map<std::string, std::vector<std::string>> BackupsOf(const std::vector<AssignNode>& nodes,
                                                          const Parents& parents) {
  const auto followed = [&](const std::string& id) {
    const auto parent = parents.find(id);
    return parent == parents.end() ? std::string() : parent->second;
  };
  std::map<std::string, std::string> heirs;  // by the receiver that each replaces
  for (const AssignNode& node : nodes) {
    if (node.serves) heirs.emplace(followed(node.id), node.id);
  }
  std::map<std::string, std::vector<std::string>> backups;
  for (const AssignNode& node : nodes) {
    std::vector<std::string>& of = backups[node.id];
    const std::string parent = followed(node.id);
    if (parent.empty()) continue;
    if (const auto heir = heirs.find(parent); heir != heirs.end() && heir->second != node.id) {
      of.push_back(heir->second);
    }
    if (std::string above = followed(parent); !above.empty()) of.push_back(std::move(above));
  }
  return backups;
}

std::map<std::string, Levels> LevelsOf(const std::vector<AssignNode>& nodes,
                                       const Parents& parents) {
  std::map<std::string, Levels> sites;
  for (size_t i = 0; i < nodes.size(); ++i) {
    size_t depth = 0;
    for (auto at = parents.find(nodes[i].id); at != parents.end() && !at->second.empty();
         at = parents.find(at->second)) {
      ++depth;
    }
    Levels& levels = sites[nodes[i].site];
    levels.resize(std::max(levels.size(), depth + 1));
    levels[depth].push_back(i);
  }
  return sites;
}

}  // namespace deltawire::plan
