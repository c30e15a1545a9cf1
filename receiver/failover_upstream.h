// Several upstreams of the same model as one: the first in order of preference that works. What is
// held here is named by digests that all of them share, so a pull goes on at another one with the
// chunks that are missing. Owner: a replica. Threads: as Upstream says; a thread of its own asks
// preferred upstreams whether they are well again. Errors: those of the upstream in use. A lineage
// that was left for another one is not taken again from whoever still has it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "receiver/upstream.h"
#include "receiver/upstream_choice.h"

namespace deltawire::receiver {

class FailoverUpstream : public Upstream {
 public:
  using Make = std::function<std::unique_ptr<Upstream>(const std::string& address)>;
  /// These are the upstreams from now on, in order of preference; the last one is the origin. One
  /// that is there already stays, with all that is known of it; the others are made. A pull that
  /// runs is not disturbed: the change waits for its end, unless its upstream has failed. Does not
  /// block. When it returns, nothing more goes on to the replica from one that was left.
  virtual void Prefer(const std::vector<std::string>& addresses, const Make& make) = 0;
};

/// `upstreams`: in order of preference, at least one. `seed`: of the random part of pauses.
/// `relay`: the number of the relay that this receiver is (RelayNews); 0: it is none.
std::unique_ptr<FailoverUpstream> MakeFailoverUpstream(
    std::vector<std::unique_ptr<Upstream>> upstreams, uint64_t seed, uint64_t relay = 0,
    const UpstreamChoice::Times& times = {});

}  // namespace deltawire::receiver
