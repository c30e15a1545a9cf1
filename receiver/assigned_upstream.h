// The upstream of a receiver whose sender says whom it follows: the relays that it was told, and
// after them the sender itself, with the failover of a list that an operator gives. The attachment
// to the sender stays in any case (origin_link.h).
// Owner: a replica. Threads: as Upstream says. Cost: two threads, and a connection to the sender
// beside that to the relay. Errors: those of the upstream in use.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "receiver/failover_upstream.h"
#include "receiver/upstream.h"

namespace deltawire::receiver {

struct AssignedOptions {
  std::string model;
  uint64_t seed = 0;   ///< of the random part of pauses
  uint64_t relay = 0;  ///< the number of the relay that this receiver is; 0: it is none
  UpstreamChoice::Times times;
};

/// `make` dials a relay by its control address.
std::unique_ptr<Upstream> MakeAssignedUpstream(std::unique_ptr<Upstream> sender,
                                               FailoverUpstream::Make make,
                                               const AssignedOptions& options);

}  // namespace deltawire::receiver
