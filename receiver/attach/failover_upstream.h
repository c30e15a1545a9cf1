// Several upstreams of one model as one: it uses the first that works, in order of preference. All
// of them name chunks by the same digests, so a pull continues at another upstream with the missing
// chunks. A lineage that was left for another one is not pulled again from an upstream that still
// has it. A thread of its own asks preferred upstreams whether they work again.
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
  /// origin. An upstream that is there already stays, with its record; the others are made. The
  /// change waits for the end of a running pull, unless that pull's upstream has failed. Does not
  /// block. When it returns, the replica gets no more events from an upstream that was left.
  virtual void Prefer(const std::vector<std::string>& addresses, const Make& make) = 0;
};

/// `upstreams` are at least one, in order of preference. `seed` is that of the random part of
/// pauses. `relay` is this receiver's own number as a relay (RelayNews), or 0.
std::unique_ptr<FailoverUpstream> MakeFailoverUpstream(
    std::vector<std::unique_ptr<Upstream>> upstreams, uint64_t seed, uint64_t relay = 0,
    const UpstreamChoice::Times& times = {});

}  // namespace deltawire::receiver
