// One version on its way through a fleet, on virtual time: publish, then hop by hop connect,
// transfer, apply and commit, each pull as the daemons do it. What overlaps there overlaps here;
// hops come one after the other, since a relay serves what it has committed. Plain values of one
// thread. Cost: hops squared. Errors: none.
#pragma once

#include <string>
#include <vector>

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
  double round_trip() const { return local ? site->local_round_trip : site->round_trip; }
};
std::vector<Hop> HopsOf(const Fleet& fleet);
/// Who serves a hop, and how many nodes and cores that is.
const Serving& ServingOf(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
const Node& NodeServing(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
/// Threads of one agent, and of one receiver, that code for a pull of this hop.
uint32_t EncodeThreads(const Fleet& fleet, const std::vector<Hop>& hops, const Hop& hop);
uint32_t DecodeThreads(const Hop& hop);

/// The part of a pull's encoding that is its own: what one pull made is kept for the others, up to
/// the cache's limit.
double EncodedAnew(const Fleet& fleet, const Hop& hop, const PullCost& cost);

struct StageTime {
  std::string stage;  ///< publish, connect, transfer, apply, commit
  std::string at;     ///< the trainer, or a hop's name
  double begin = 0;   ///< seconds since the trainer was ready
  double seconds = 0;
  std::string bound_by;  ///< what it spent most of its time on
};

struct HopTimes {
  std::vector<StageTime> stages;
  double committed = 0;
};

struct LinkUse {
  std::string name;
  double count = 1;  ///< links alike
  double rate = 0;   ///< bytes/s for payloads
  double bytes = 0;  ///< of one of them
  double busy_seconds = 0;
  double price = 0;  ///< of the bytes of all of them
};

struct NodeUse {
  std::string name;
  double count = 1;
  uint32_t cores = 1;
  double core_seconds = 0;  ///< of one of them
};

struct Timeline {
  StageTime publish;
  std::vector<HopTimes> hops;
  std::vector<LinkUse> links;
  std::vector<NodeUse> nodes;
  double seconds = 0;  ///< until the last receiver has committed
  size_t last = 0;     ///< its hop
};

/// `costs` has one pull for each hop.
Timeline RunVersion(const Fleet& fleet, const CutChunks& model, const std::vector<Hop>& hops,
                    const std::vector<PullCost>& costs, bool full);

/// Seconds that TCP's slow start adds to `bytes` at `bytes_per_s`.
double SlowStartSeconds(double bytes, double bytes_per_s, double streams, double round_trip);

}  // namespace deltawire::plan
