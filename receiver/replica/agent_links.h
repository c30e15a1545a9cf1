// The agents as a replica's pulls need them: each one's upstream, part, held state, and link
// figures from past pulls. A Replica owns it; its driving thread alone uses it. The upstreams
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
  /// Asks every agent for its description of `model`. Returns an error if the layouts differ, the
  /// parts do not make up the model, or a side file is code and `allow_code_files` is false.
  StatusOr<std::vector<ModelDescription>> Describe(const std::string& model,
                                                   bool allow_code_files) const;
  /// Asks an agent for its newest state.
  StatusOr<Identity> Newest(size_t agent, const std::string& model) const {
    return links_[agent].round.upstream->Newest(model);
  }
  void SetPart(size_t agent, const Coverage& owned);
  /// Forgets the held states: the buffer is gone.
  void ForgetHeld();

  /// Returns the agents for a round to `target`. `whole`: every chunk of the buffer is at its last
  /// state. `streams`: of each pull; 0: by the link figures.
  std::vector<RoundAgent> Plan(const Follower::Target& target, const Buffer& buffer, bool whole,
                               uint32_t streams);
  /// Notes the results of a round that has ended; `committed`: by the commit of its target.
  void NoteRoundEnd(const PullRound& round, bool committed);
  /// Notes the end of a pull at every upstream, with its fault. Among several agents the fault is
  /// not assigned to one.
  void NotePullEnd(Status fault);

 private:
  struct Link {
    RoundAgent round;
    net::LinkRecord record;
    std::string address;  // of `record`
  };
  /// Sets each agent's RoundAgent::held.
  void HoldParts(const Follower::Target& target, const Buffer& buffer, bool whole);

  std::vector<Link> links_;
};

}  // namespace deltawire::receiver
