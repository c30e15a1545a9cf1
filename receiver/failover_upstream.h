// Several upstreams of the same model as one: the first in order of preference that works. What is
// held here is named by digests that all of them share, so a pull goes on at another one with the
// chunks that are missing. Owner: a replica. Threads: as Upstream says; a thread of its own asks
// preferred upstreams whether they are well again. Errors: those of the upstream in use.
#pragma once

#include <memory>
#include <vector>

#include "receiver/upstream.h"

namespace deltawire::receiver {

/// `upstreams`: in order of preference, at least one. `seed`: of the random part of pauses.
std::unique_ptr<Upstream> MakeFailoverUpstream(std::vector<std::unique_ptr<Upstream>> upstreams,
                                               uint64_t seed);

}  // namespace deltawire::receiver
