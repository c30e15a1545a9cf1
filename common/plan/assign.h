// Whom each receiver of a fleet pulls from: of a site one receiver pulls from the origin, and the
// others follow it in a tree of bounded fan-out. What was assigned before stays as far as it can:
// a death moves the dead node's children alone. Plain values; a pure function of them, without
// sockets or clocks. Cost: O(receivers) for each one that is placed anew. Errors: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deltawire::plan {

/// A receiver, as the origin knows it.
struct AssignNode {
  std::string id;
  std::string site;     ///< its label; empty: it has said none, and pulls from the origin
  bool serves = false;  ///< others may be told to follow it
};

struct AssignLimits {
  uint32_t fan_out = 8;  ///< receivers that follow one receiver, at most; at least 1
};

/// The id of the receiver that each one follows; empty: the origin.
using Parents = std::map<std::string, std::string>;

/// `nodes`: the receivers that are here, each id once; where several fit, the earlier one is taken.
/// `before`: what was assigned before; it may name receivers that have gone, and be wrong in any
/// way. The result names each of `nodes`:
///  * nobody follows a receiver of another site, or one that does not serve, or itself by a circle;
///  * no receiver has more than `fan_out` followers;
///  * of each site one receiver pulls from the origin. Further ones do only where the site has no
///    place for them: none of it serves, or all that serve are full.
Parents AssignUpstreams(const std::vector<AssignNode>& nodes, const Parents& before,
                        const AssignLimits& limits);

/// Whom each of `nodes` goes to when the one that it follows dies, in order of preference, before
/// the origin: the receiver that takes the dead one's place (unless it is itself that one), then
/// the one that the dead one followed. None of them follows it.
std::map<std::string, std::vector<std::string>> BackupsOf(const std::vector<AssignNode>& nodes,
                                                          const Parents& parents);

/// Receivers of each site, as positions in `nodes`, by their distance from the origin: the first
/// level pulls from it.
using Levels = std::vector<std::vector<size_t>>;
std::map<std::string, Levels> LevelsOf(const std::vector<AssignNode>& nodes,
                                       const Parents& parents);

}  // namespace deltawire::plan
