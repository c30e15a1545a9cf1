// The receivers as a tree of upstreams: each receiver follows its upstream, indented one step
// further. Receivers in a cycle, or with an upstream that is not attached, stand at the root level.
#pragma once

#include <string>
#include <vector>

#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire::cli {

struct TreeRow {
  const v1::ReceiverInfo* receiver = nullptr;
  size_t depth = 0;  ///< receivers between it and the sender
};

/// Returns the tree of one model's receivers, sorted by site and name. The rows point into `all`.
std::vector<TreeRow> TreeOf(const std::vector<const v1::ReceiverInfo*>& all);
bool HasSites(const v1::ListReceiversResponse& attached);
/// Returns "  node-b" at depth 1.
std::string Indented(const TreeRow& row);
/// Returns "node-a", "sender", "node-b (told node-a)", or "-" for a receiver without a site.
std::string FollowsText(const v1::ReceiverInfo& r);

}  // namespace deltawire::cli
