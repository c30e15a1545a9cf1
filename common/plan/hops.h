// Who pulls from whom in a fleet: receivers that pull from the same nodes in the same way are a
// hop. Hops point into the fleet, which outlives them. Pure functions. Cost: by the number of
// sites. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/net/link_plan.h"
#include "common/plan/pull_cost.h"

namespace deltawire::plan {

/// Receivers that pull alike: of a site those that pull from its upstream, or those that pull from
/// its relays.
struct Hop {
  const Site* site = nullptr;
  std::string name;
  int upstream = -1;     ///< a hop's index; -1: the trainer
  bool local = false;    ///< from the site's own relays, past the site's link
  double members = 1;    ///< in all
  double on_link = 1;    ///< members that share one site's link
  double servers = 1;    ///< nodes that serve these
  double on_server = 1;  ///< members that one of these nodes serves, at most
  int depth = 1;         ///< pulls from the trainer to here
  uint32_t streams = 4;  ///< of one pull from one agent
  double round_trip() const { return local ? site->local_round_trip : site->round_trip; }
};
std::vector<Hop> HopsOf(const Fleet& fleet);
/// How many streams a pull of this hop takes: as many as its site states, else by the receiver's
/// own rule from `way`, which the pulls before it have measured.
uint32_t StreamsOf(const Hop& hop, const net::LinkRecord& way);
/// Whether a hop's pulls run while those of its upstream do: a relay passes on what comes to it.
inline bool PassedOn(const Hop& hop) { return hop.upstream >= 0; }
/// Who serves a hop, and how many nodes and cores that is.
const Serving& ServingOf(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
const Node& NodeServing(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
/// Threads of one agent, and of one receiver, that code for a pull of this hop.
uint32_t EncodeThreads(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
uint32_t DecodeThreads(const Hop& hop);

/// The share, 0 to 1, of the payloads of a pull at hop `h` that a node encodes for this pull alone.
/// It has encoded the others for earlier pulls, also of other hops, and they are still in its
/// cache. `pulls` has one for each hop.
double EncodedAnew(const Fleet& fleet, const std::vector<Hop>& hops,
                   const std::vector<PullCost>& pulls, size_t h);

}  // namespace deltawire::plan
