// The hops of a fleet: a hop is the receivers that pull from the same nodes in the same way. Hops
// point into the fleet, which outlives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/net/link_plan.h"
#include "common/plan/pull_cost.h"

namespace deltawire::plan {

/// The receivers of a site that pull from its upstream, or those that pull from its relays.
struct Hop {
  const Site* site = nullptr;
  std::string name;
  int upstream = -1;     ///< a hop's index; -1: the trainer
  bool local = false;    ///< pulls from the site's own relays, not over the site's link
  double members = 1;    ///< in total
  double on_link = 1;    ///< members that share one site's link
  double servers = 1;    ///< nodes that serve these members
  double on_server = 1;  ///< largest number of members that one of these nodes serves
  int depth = 1;         ///< number of pulls from the trainer to here
  uint32_t streams = 4;  ///< per pull from one agent
  double round_trip() const { return local ? site->local_round_trip : site->round_trip; }
};
std::vector<Hop> HopsOf(const Fleet& fleet);
/// Returns the number of streams of a pull: the site's own number, or else the receiver's rule
/// applied to `way`, which earlier pulls have measured.
uint32_t StreamsOf(const Hop& hop, const net::LinkRecord& way);
/// Returns whether a hop's pulls overlap those of its upstream: a relay passes chunks on at once.
inline bool PassedOn(const Hop& hop) { return hop.upstream >= 0; }
/// Return the settings of the daemon that serves a hop, and those of its nodes.
const Serving& ServingOf(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
const Node& NodeServing(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
/// Return the threads of one agent, and of one receiver, that code for a pull of this hop.
uint32_t EncodeThreads(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
uint32_t DecodeThreads(const Hop& hop);

/// Returns the share, 0 to 1, of a pull's payloads at hop `h` that a node encodes for this pull
/// alone. The others are in its cache from earlier pulls, also of other hops. `pulls` has one entry
/// per hop.
double EncodedAnew(const Fleet& fleet, const std::vector<Hop>& hops,
                   const std::vector<PullCost>& pulls, size_t h);

}  // namespace deltawire::plan
