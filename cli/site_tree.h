// Receivers as the tree of who follows whom: each one after the one that it follows, one step
// further in. Owner: none; a pure function. Threads: any. Cost: n log n. Errors: none; receivers
// that follow each other, or somebody who is not attached, stand at the beginning of a line.
#pragma once

#include <string>
#include <vector>

#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire::cli {

struct TreeRow {
  const v1::ReceiverInfo* receiver = nullptr;
  size_t depth = 0;  ///< receivers between it and the sender
};

/// Those of one model; sites and names in order. They point into `all`.
std::vector<TreeRow> TreeOf(const std::vector<const v1::ReceiverInfo*>& all);
/// Whether any of them has said a site.
bool HasSites(const v1::ListReceiversResponse& attached);
/// "  node-b" at depth 1.
std::string Indented(const TreeRow& row);
/// "node-a", "sender", "node-b (told node-a)", or "-" for one that has said no site.
std::string FollowsText(const v1::ReceiverInfo& r);

}  // namespace deltawire::cli
