// Whom a receiver pulls from where its sender says so: what the receiver says of itself, and what
// it is told. Owner: whoever holds the values. Threads: as any value. Cost: some short texts.
// Errors: none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deltawire {

/// What a receiver says of itself when it attaches.
struct SiteOffer {
  std::string site;     ///< its label; empty: it chooses its upstream itself
  std::string address;  ///< "host:port" where it serves others; empty: it does not

  friend bool operator==(const SiteOffer&, const SiteOffer&) = default;
};

/// Limit of a site's label, and of an address, in bytes.
inline constexpr size_t kMaxSiteName = 128;
inline constexpr size_t kMaxServeAddress = 300;

/// Whom a receiver is to follow: a state and not a step, which every event repeats.
struct Assignment {
  /// Control addresses in order of preference, after which comes the sender; none: the sender.
  std::vector<std::string> upstreams;
  /// Not decided yet: the receiver goes on following whom it follows.
  bool undecided = false;

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

}  // namespace deltawire
