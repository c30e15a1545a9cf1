#include "sender/agent/fleet/assign_course.h"

#include <algorithm>
#include <string_view>

#include "common/base/status.h"
#include "common/config/endpoint.h"

namespace deltawire::sender {
namespace {

using std::chrono::milliseconds;

// Beyond this number of known receivers, those that left are forgotten at once.
constexpr size_t kMostKnown = 8192;

bool IsLocalPeer(std::string_view peer) {
  for (const std::string_view local : {"ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:"}) {
    if (peer.starts_with(local)) return true;
  }
  return false;
}

/// Returns why the receiver's address cannot be dialed; empty if it can.
std::string ReasonAgainstAddress(const SiteReceiver& r) {
  const auto at = ParseEndpoint(r.offer.address);
  if (!at.ok() || at->port == 0) {
    return fmt::format("\"{}\" is not an address that can be dialed", r.offer.address);
  }
  if (IsWildcard(*at)) {
    return fmt::format("{} names no machine: it needs --advertise-host", r.offer.address);
  }
  if (!IsLocalPeer(r.peer) && IsLoopback(*at)) {
    return fmt::format(
        "{} can only be dialed from its own machine: it needs another --control-listen or "
        "--advertise-host",
        r.offer.address);
  }
  return "";
}

/// Returns `first`, four times as long for each of `times`, at most `longest`.
milliseconds Lengthen(milliseconds first, uint32_t times, milliseconds longest) {
  for (uint32_t i = 0; i < times && first < longest; ++i) first *= 4;
  return std::min(first, longest);
}

}  // namespace

void AssignCourse::RecordUnreached(Time now) {
  std::set<std::string> followed, told;
  for (const auto& [id, known] : known_) {
    const auto parent = parents_.find(id);
    if (!known.here || parent == parents_.end()) continue;
    const auto at = known_.find(parent->second);
    if (at == known_.end() || !at->second.here) continue;
    const bool follows = known.last.follows == at->second.last.offer.address;
    if (known.last.busy && !follows) {
      UpdateBy(now + times_.unreached);
    } else {
      (follows ? followed : told).insert(parent->second);
    }
  }
  for (auto& [id, known] : known_) {
    if (!told.contains(id) || followed.contains(id)) {
      known.unreached_since = {};
      continue;
    }
    if (known.unreached_since == Time{}) known.unreached_since = now;
    const Time until = known.unreached_since + times_.unreached;
    if (now < until) {
      UpdateBy(until);
      continue;
    }
    known.unreached_since = {};
    known.doubted_until =
        now + Lengthen(times_.unreached_doubt, known.unreached++, times_.longest_doubt);
    known.doubt = "none of its assigned followers has reached it";
  }
}

bool AssignCourse::HasPlace(const Known& known, Time now) const {
  return known.here || now < known.gone + times_.away;
}

void AssignCourse::RecordPresence(const std::vector<SiteReceiver>& here, Time now) {
  std::set<std::string> ids;
  for (const SiteReceiver& r : here) {
    ids.insert(r.id);
    Known& known = known_[r.id];
    const bool fresh = known.order == 0;
    if (!known.here) {
      known.came = now;
      // A receiver that lost its place is preferred last.
      if (fresh || !HasPlace(known, now)) known.order = next_order_++;
      if (known.deaths > 1) {
        known.doubted_until = now + Lengthen(times_.doubt, known.deaths - 2, times_.longest_doubt);
        known.doubt = fmt::format("it has left {} times lately", known.deaths);
      }
    }
    known.here = true;
    known.last = r;
  }
  for (auto& [id, known] : known_) {
    if (!known.here || ids.contains(id)) continue;
    known.here = false;
    known.deaths = now - known.came > times_.forget ? 1 : known.deaths + 1;
    known.gone = now;
  }
  const bool many = known_.size() > kMostKnown;
  std::erase_if(known_, [&](const auto& entry) {
    return !HasPlace(entry.second, now) && (many || now - entry.second.gone > times_.forget);
  });
}

std::map<std::string, std::string> AssignCourse::ReasonsAgainst(
    const std::vector<const Known*>& all, Time now) const {
  std::map<std::string, std::string> against;
  std::map<std::string, std::string> owners;  // id by address
  std::set<std::string> served;               // sites with a server that is not in doubt
  for (const Known* k : all) {
    const SiteReceiver& r = k->last;
    if (r.offer.address.empty()) continue;
    std::string& why = against[r.id];
    why = ReasonAgainstAddress(r);
    const auto [owner, first] = owners.emplace(r.offer.address, r.id);
    if (!first)
      why = fmt::format("{} is the address of {} already", r.offer.address, owner->second);
    if (r.paused) why = "it is paused";
    if (r.member) why = "it is a member of a group";
    if (r.barred) why = "its principal may not use the model any more";
    if (why.empty() && now >= k->doubted_until) served.insert(r.offer.site);
  }
  // A server in doubt gets followers if its site has no other. Without a server, every receiver
  // would cross the link.
  for (const Known* k : all) {
    const SiteReceiver& r = k->last;
    const auto why = against.find(r.id);
    if (why == against.end() || !why->second.empty()) continue;
    if (now < k->doubted_until && served.contains(r.offer.site)) {
      why->second = k->doubt;
    }
  }
  return against;
}

std::vector<plan::AssignNode> AssignCourse::Nodes(Time now) {
  std::vector<const Known*> all;
  for (const auto& [id, known] : known_) {
    if (HasPlace(known, now)) all.push_back(&known);
    if (!known.here && HasPlace(known, now)) UpdateBy(known.gone + times_.away);
    if (now < known.doubted_until) UpdateBy(known.doubted_until);
  }
  std::ranges::sort(all, {}, &Known::order);
  reasons_ = ReasonsAgainst(all, now);
  const auto serves = [&](const Known* k) {
    const auto why = reasons_.find(k->last.id);
    return why != reasons_.end() && why->second.empty();
  };
  std::set<std::string> served;
  for (const Known* k : all) {
    if (serves(k)) served.insert(k->last.offer.site);
  }
  waiting_.clear();
  std::vector<plan::AssignNode> nodes;
  for (const Known* k : all) {
    const SiteReceiver& r = k->last;
    if (r.member) continue;  // follows the sender itself
    const bool placed = parents_.contains(r.id);
    // After the sender's start, the receivers of a tree return one by one. In a fleet that starts
    // all at once, those that serve may come last. So the plan waits for both.
    const Time until = !r.follows.empty() ? started_ + times_.start : k->came + times_.serve;
    const bool waits = !r.follows.empty() || !served.contains(r.offer.site);
    if (!placed && waits && now < until) {
      waiting_.insert(r.id);
      UpdateBy(until);
      continue;
    }
    nodes.push_back({r.id, r.offer.site, serves(k)});
  }
  return nodes;
}

plan::Parents AssignCourse::CurrentParents(const std::vector<plan::AssignNode>& nodes) const {
  plan::Parents before = parents_;
  std::map<std::string, std::string> at;  // id by address
  for (const plan::AssignNode& node : nodes) {
    if (node.serves) at[known_.at(node.id).last.offer.address] = node.id;
  }
  for (const plan::AssignNode& node : nodes) {
    if (before.contains(node.id)) continue;
    const auto followed = at.find(known_.at(node.id).last.follows);
    if (followed != at.end()) before[node.id] = followed->second;
  }
  return before;
}

const std::map<std::string, SitePlace>& AssignCourse::Update(const std::vector<SiteReceiver>& here,
                                                             Time now) {
  again_ = Time::max();
  RecordPresence(here, now);
  RecordUnreached(now);
  const std::vector<plan::AssignNode> nodes = Nodes(now);
  parents_ = plan::AssignUpstreams(nodes, CurrentParents(nodes), limits_);
  const auto backups = plan::BackupsOf(nodes, parents_);
  places_.clear();
  for (const SiteReceiver& r : here) {
    SitePlace& place = places_[r.id];
    const auto why = reasons_.find(r.id);
    if (why != reasons_.end()) place.not_handed_out = why->second;
    place.told.undecided = waiting_.contains(r.id);
    const auto parent = parents_.find(r.id);
    if (parent == parents_.end() || parent->second.empty()) continue;
    place.parent = parent->second;
    place.told.upstreams.push_back(known_.at(parent->second).last.offer.address);
    for (const std::string& id : backups.at(r.id)) {
      place.told.upstreams.push_back(known_.at(id).last.offer.address);
    }
  }
  return places_;
}

}  // namespace deltawire::sender
