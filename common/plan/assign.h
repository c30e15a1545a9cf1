// Whom each receiver of a fleet pulls from: of each site one receiver pulls from the origin, and
// the others follow it in a tree of bounded fan-out. What was assigned before stays as far as it
// can; when a receiver dies, only its followers move. Pure functions of plain values, without
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

/// `nodes`: the receivers that are here, each id once; where several could take a place, the one
/// that comes first in `nodes` does. `before`: what was assigned before; it may name receivers that
/// have gone, and may break any of the rules below. The result has an entry for each of `nodes`:
///  * nobody follows a receiver of another site, one that does not serve, or, through others,
///    itself;
///  * no receiver has more than `fan_out` followers;
///  * of each site one receiver pulls from the origin. Another one does so only if the site has no
///    place for it: nobody there serves, or all who serve have as many followers as they may.
Parents AssignUpstreams(const std::vector<AssignNode>& nodes, const Parents& before,
                        const AssignLimits& limits);

/// The back-ups of each of `nodes`: whom it turns to, before the origin, when the receiver that it
/// follows dies. First comes the receiver that will take the dead one's place (unless that is the
/// node itself), then the one that the dead one followed. No back-up of a node follows that node.
std::map<std::string, std::vector<std::string>> BackupsOf(const std::vector<AssignNode>& nodes,
                                                          const Parents& parents);

/// Receivers of each site, as positions in `nodes`, by their distance from the origin: the first
/// level pulls from it.
using Levels = std::vector<std::vector<size_t>>;
std::map<std::string, Levels> LevelsOf(const std::vector<AssignNode>& nodes,
                                       const Parents& parents);

}  // namespace deltawire::plan
