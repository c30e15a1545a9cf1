// The sender's choice of upstreams for a receiver, and the site and address that the receiver
// reports so that the sender can choose.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/fields.h"

namespace deltawire {

struct SiteOffer {
  std::string site;     ///< its label; empty: the receiver chooses its upstream itself
  std::string address;  ///< "host:port" where it serves other receivers; empty: it does not serve

  friend bool operator==(const SiteOffer&, const SiteOffer&) = default;
};

/// Limits of a site's label and of an address, in bytes.
inline constexpr size_t kMaxSiteName = 128;
inline constexpr size_t kMaxServeAddress = 300;

/// A receiver's assigned upstreams. Every event repeats the whole assignment, so a lost one does no
/// harm.
struct Assignment {
  /// Control addresses in order of preference; the sender comes after them.
  std::vector<std::string> upstreams;
  /// The sender has not decided yet: the receiver keeps its present upstream.
  bool undecided = false;

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

template <FieldsOf<Assignment> T>
void ForEachField(T& assignment, const auto& f) {
  f("upstreams", assignment.upstreams);
  f("undecided", assignment.undecided);
}

}  // namespace deltawire
