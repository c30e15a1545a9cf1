// Several upstreams of one model, used as one: always the first that works, in order of preference.
// All of them name chunks by the same digests, so a pull goes on at another upstream with the
// chunks that are missing. A lineage that was left for another is not taken again from an upstream
// that still has it. Owner: a replica. Threads: as Upstream says; a thread of its own asks
// preferred upstreams whether they are well again. Errors: those of the upstream in use.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "receiver/attach/upstream.h"
#include "receiver/attach/upstream_choice.h"

namespace deltawire::receiver {

class FailoverUpstream : public Upstream {
 public:
  using Make = std::function<std::unique_ptr<Upstream>(const std::string& address)>;
  /// Replaces the upstreams by those at `addresses`, in order of preference; the last one is the
  /// origin. An upstream that is there already stays, with all that is known of it; the others are
  /// made. The change waits for the end of a pull that runs, unless that pull's upstream has
  /// failed. Does not block. When it returns, the replica gets no more events from an upstream that
  /// was left.
  virtual void Prefer(const std::vector<std::string>& addresses, const Make& make) = 0;
};

/// `upstreams`: in order of preference, at least one. `seed`: of the random part of pauses.
/// `relay`: this receiver's own number as a relay (RelayNews); 0: it serves nobody.
std::unique_ptr<FailoverUpstream> MakeFailoverUpstream(
    std::vector<std::unique_ptr<Upstream>> upstreams, uint64_t seed, uint64_t relay = 0,
    const UpstreamChoice::Times& times = {});

}  // namespace deltawire::receiver
