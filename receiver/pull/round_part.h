// One agent's part of a pull round: asks the agent for it, runs its transfer, and checks where it
// ended. A PullRound owns it; one thread at a time uses it. Errors name the agent.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/delta/pull_stats.h"
#include "receiver/pull/part_sink.h"
#include "receiver/pull/round_env.h"
#include "receiver/pull/round_transfers.h"

namespace deltawire::receiver {

class RoundPart {
 public:
  /// The outcome of the part.
  struct Result {
    Identity end;             ///< the state that its transfer ended at
    uint64_t side_files = 0;  ///< the hash that its End frame named
    net::LinkSample link;     ///< the last transfer's measurements of the link to it
    PullGrant grant;          ///< its last one; without a host if it granted nothing
  };

  RoundPart(const RoundEnv& env, const RoundWish& wish, RoundTransfers& transfers, RoundAgent agent,
            size_t index, Result& result);

  const std::string& name() const { return agent_.upstream->address(); }
  const RoundAgent& agent() const { return agent_; }
  const Result& result() const { return result_; }

  /// The agent's share of a transfer that is about to begin.
  struct Request {
    bool first = true;         ///< of the round: later ones are repairs
    uint64_t ahead_bytes = 0;  ///< see PullRequest
    std::span<const uint32_t> mismatched;
  };
  /// Asks the agent for the part, unless the agent is awaited.
  Status Ask(const Request& request);
  bool asked() const { return sink_ != nullptr; }
  /// Whether the agent has granted it.
  bool open() const { return transport_ != nullptr; }
  const RoundTransfers::Transport& transport() const { return transport_; }
  /// Receives the part, once its agent has announced it. `have` is what the buffer holds.
  void Transfer(const wire::Have& have);
  /// The end of the transfer: the error that ended it, or whether its state is the one asked for.
  Status CheckEnd();
  /// Ends the share of the transfer, and adds its link's figures to `stats`. Returns its bytes per
  /// second.
  double Close(PullStats& stats);
  Status FetchSideFiles(SideFileCache& cache) const;

 private:
  /// Asks the agent for its part. Connects during that call if the address is known.
  Status Open();
  /// Opens the part when its agent has announced it. kAborted: the other agents have sent
  /// everything first, so the rest can be pulled when it is published.
  Status Await();
  /// Refuses a single agent's state that is older than the wish's floor.
  Status CheckFloor(const Identity& state) const;

  const RoundEnv& env_;
  const RoundWish& wish_;
  RoundTransfers& transfers_;
  const RoundAgent agent_;
  const size_t index_;
  Result& result_;
  // The next or running transfer.
  PullRequest pull_;
  std::unique_ptr<PartSink> sink_;
  RoundTransfers::Transport transport_;
  StatusOr<net::PullEnd> end_ = absl::UnknownError("not run");
};

}  // namespace deltawire::receiver
