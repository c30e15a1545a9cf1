// The planner of a fleet's upstreams. In each site one receiver pulls from the origin, and the
// others follow it in a tree of bounded fan-out. Former assignments stay if they can. When a
// receiver dies, only its followers move. Placing a receiver costs O(receivers).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deltawire::plan {

/// A receiver, as the origin knows it.
struct AssignNode {
  std::string id;
  std::string site;     ///< its label; empty: none reported, so it pulls from the origin
  bool serves = false;  ///< others can follow it
};

struct AssignLimits {
  uint32_t fan_out = 8;  ///< largest number of followers of one receiver; at least 1
};

/// The id of each receiver's upstream; empty: the origin.
using Parents = std::map<std::string, std::string>;

/// Returns an upstream for each of `nodes`, the present receivers with unique ids. If several could
/// take a place, the first in `nodes` does. `before` holds the former assignments; it may name
/// receivers that have gone, and may break any of these rules:
///  * no receiver follows one of another site, one that does not serve, or, through others, itself;
///  * no receiver has more than `fan_out` followers;
///  * in each site one receiver pulls from the origin. Another one does so only if the site has no
///    place for it: no receiver there serves, or all that serve have `fan_out` followers.
Parents AssignUpstreams(const std::vector<AssignNode>& nodes, const Parents& before,
                        const AssignLimits& limits);

/// Returns the back-ups of each of `nodes`, which it tries before the origin when its upstream
/// dies. The first is the receiver that will take the dead one's place, unless that is the node
/// itself. Then comes the dead one's upstream. No back-up of a node follows that node.
std::map<std::string, std::vector<std::string>> BackupsOf(const std::vector<AssignNode>& nodes,
                                                          const Parents& parents);

/// Receivers of each site, as positions in `nodes`, by their distance from the origin. The first
/// level pulls from it.
using Levels = std::vector<std::vector<size_t>>;
std::map<std::string, Levels> LevelsOf(const std::vector<AssignNode>& nodes,
                                       const Parents& parents);

}  // namespace deltawire::plan
