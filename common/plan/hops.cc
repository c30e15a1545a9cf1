#include "common/plan/hops.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "common/delta/codec_choice.h"
#include "common/plan/assign.h"
#include "common/serving/encoded_cache.h"

namespace deltawire::plan {
namespace {

/// Adds the levels of the tree that a sender assigns to one site, from the same planner.
void AddAssigned(const Fleet& fleet, const Site& site, std::vector<Hop>& hops) {
  std::vector<AssignNode> nodes;
  const uint32_t serving = site.relays > 0 ? site.relays : site.receivers;
  for (uint32_t i = 0; i < site.receivers; ++i) {
    nodes.push_back({std::to_string(i), site.name, i < serving});
  }
  const Parents parents = AssignUpstreams(nodes, {}, {.fan_out = site.fan_out});
  const Levels levels = LevelsOf(nodes, parents).at(site.name);
  for (size_t depth = 0; depth < levels.size(); ++depth) {
    std::map<std::string, double> followers;
    for (const size_t node : levels[depth]) ++followers[parents.at(nodes[node].id)];
    Hop hop{
        .site = &site,
        .name = levels.size() == 1 ? site.name : fmt::format("{}/level {}", site.name, depth + 1)};
    hop.depth = static_cast<int>(depth) + 1;
    hop.members = static_cast<double>(levels[depth].size()) * site.count;
    if (depth == 0) {
      hop.on_link = static_cast<double>(levels[0].size());
      hop.servers = fleet.trainer.nodes;
      hop.on_server = hop.members;
    } else {
      hop.upstream = static_cast<int>(hops.size()) - 1;
      hop.local = true;
      hop.servers = static_cast<double>(followers.size()) * site.count;
      for (const auto& [parent, number] : followers)
        hop.on_server = std::max(hop.on_server, number);
      hop.on_link = hop.on_server;
    }
    hops.push_back(hop);
  }
}

}  // namespace

std::vector<Hop> HopsOf(const Fleet& fleet) {
  std::vector<Hop> hops;
  std::map<std::string, int> serving;  // the serving hop of each site, by name
  for (const Site& site : fleet.sites) {
    if (site.fan_out > 0) {
      serving[site.name] = static_cast<int>(hops.size());
      AddAssigned(fleet, site, hops);
      continue;
    }
    const bool relayed = site.relays > 0 && site.relays < site.receivers;
    const double first = relayed ? site.relays : site.receivers;
    Hop hop{.site = &site, .name = relayed ? site.name + "/relays" : site.name};
    hop.members = first * site.count;
    hop.on_link = first;
    hop.on_server = hop.members;
    if (site.upstream != "trainer") {
      hop.upstream = serving.at(site.upstream);
      const Hop& up = hops[static_cast<size_t>(hop.upstream)];
      hop.servers = up.members;
      hop.on_server = std::ceil(hop.members / hop.servers);
      hop.depth = up.depth + 1;
    } else {
      hop.servers = fleet.trainer.nodes;
    }
    hops.push_back(hop);
    serving[site.name] = static_cast<int>(hops.size()) - 1;
    if (!relayed) continue;
    Hop leaves{.site = &site, .name = site.name + "/leaves"};
    leaves.upstream = static_cast<int>(hops.size()) - 1;
    leaves.local = true;
    leaves.members = static_cast<double>(site.receivers - site.relays) * site.count;
    leaves.servers = hop.members;
    leaves.on_server = std::ceil(static_cast<double>(site.receivers - site.relays) / site.relays);
    leaves.on_link = leaves.on_server;
    leaves.depth = hop.depth + 1;
    hops.push_back(leaves);
  }
  return hops;
}

uint32_t StreamsOf(const Hop& hop, const net::LinkRecord& way) {
  return hop.site->streams > 0 ? hop.site->streams : net::ChooseStreams(way.figures());
}

const Serving& ServingOf(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop) {
  if (hop.upstream < 0) return fleet.trainer;
  return *hops[static_cast<size_t>(hop.upstream)].site;
}

const Node& NodeServing(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop) {
  if (hop.upstream < 0) return fleet.trainer;
  return *hops[static_cast<size_t>(hop.upstream)].site;
}

uint32_t EncodeThreads(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop) {
  return CodingThreads(NodeServing(fleet, hops, hop).cores, hop.streams);
}

uint32_t DecodeThreads(const Hop& hop) { return CodingThreads(hop.site->cores, hop.streams); }

double EncodedAnew(const Fleet& fleet, const std::vector<Hop>& hops,
                   const std::vector<PullCost>& pulls, size_t h) {
  const int upstream = hops[h].upstream;
  std::array<double, kernels::kForms> sharers{};  // one node's pulls, by form
  double made = 0;                                // in all forms, which share the node's cache
  for (size_t form = kernels::FormOf(kernels::Codec::kFast) + 1; form < kernels::kForms; ++form) {
    double largest = 0;
    for (size_t other = 0; other < hops.size(); ++other) {
      const double bytes = pulls[other].bytes[form];
      if (hops[other].upstream != upstream || bytes <= 0) continue;
      sharers[form] += hops[other].on_server;
      largest = std::max(largest, bytes);
    }
    made += largest;
  }
  const double of_node = made / (upstream < 0 ? fleet.trainer.nodes : 1);
  const double kept =
      std::min(1.0, static_cast<double>(EncodedCache::kUsualBytes) / std::max(1.0, of_node));
  double coded = 0, anew = 0;
  for (size_t form = 0; form < kernels::kForms; ++form) {
    if (sharers[form] <= 0) continue;
    coded += pulls[h].bytes[form];
    anew += pulls[h].bytes[form] * (kept / sharers[form] + (1 - kept));
  }
  return coded > 0 ? anew / coded : 1;
}

}  // namespace deltawire::plan
