// The pulls' side of a replica's agents: each one's upstream, part and held state, and what past
// pulls showed of the way to it. A Replica owns it; its driving thread alone uses it. The upstreams
// outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "receiver/attach/follower.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer.h"
#include "receiver/pull/pull_round.h"

namespace deltawire::receiver {

class AgentLinks {
 public:
  explicit AgentLinks(const std::vector<Upstream*>& upstreams);

  size_t size() const { return links_.size(); }
  /// Asks every agent for its description of `model`. An error if the layouts differ, the parts do
  /// not make up the model, or a side file is code and `allow_code_files` is false.
  StatusOr<std::vector<ModelDescription>> Describe(const std::string& model,
                                                   bool allow_code_files) const;
  /// Asks an agent for its newest state.
  StatusOr<Identity> Newest(size_t agent, const std::string& model) const {
    return links_[agent].round.upstream->Newest(model);
  }
  void SetPart(size_t agent, const Coverage& owned);
  /// The buffer's bytes are no agent's state any more.
  void ForgetHeld();

  /// The agents for a round to `target`. `whole`: the buffer wholly is its last state, by every
  /// chunk. `streams`: of each pull; 0: by what was measured of the way.
  std::vector<RoundAgent> Plan(const Follower::Target& target, const Buffer& buffer, bool whole,
                               uint32_t streams);
  /// Learns from a round that has ended; `committed`: by the commit of its target.
  void RoundEnded(const PullRound& round, bool committed);
  /// Tells every upstream what it did wrong in the last pull. Of several agents' pulls nobody knows
  /// whose was at fault.
  void PullEnded(Status fault);

 private:
  struct Link {
    RoundAgent round;
    net::LinkRecord record;
    std::string address;  // the address that `record` is of
  };
  /// Sets each agent's RoundAgent::held.
  void HoldParts(const Follower::Target& target, const Buffer& buffer, bool whole);

  std::vector<Link> links_;
};

}  // namespace deltawire::receiver
