// The upstream of a receiver whose sender chooses it: the relays that the sender names, then the
// sender itself, with the same failover as between addresses that an operator lists. The receiver
// stays attached to the sender whichever upstream it follows (origin_link.h). It takes two threads,
// and a connection to the sender beside that to the relay.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "receiver/attach/failover_upstream.h"
#include "receiver/attach/upstream.h"

namespace deltawire::receiver {

struct AssignedOptions {
  std::string model;
  uint64_t seed = 0;   ///< for the random part of pauses
  uint64_t relay = 0;  ///< this receiver's number as a relay; 0: it serves nobody
  UpstreamChoice::Times times;
};

/// `make` dials a relay by its control address.
std::unique_ptr<Upstream> MakeAssignedUpstream(std::unique_ptr<Upstream> sender,
                                               FailoverUpstream::Make make,
                                               const AssignedOptions& options);

}  // namespace deltawire::receiver
