// One model's offload as a state machine: the ranks, their reports, and the offload's end. It has
// no thread, file or clock: each call says what happened and when, and returns the caller's next
// step. Offloads calls it under its lock. Errors name model, version, ranks and publishers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/version_info.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "sender/agent/offload/ended_offloads.h"
#include "sender/agent/offload/live_clients.h"
#include "sender/agent/offload/offload_ranks.h"
#include "sender/agent/offload/offload_request.h"
#include "sender/agent/offload/written_tally.h"

namespace deltawire::sender {

/// Life of an offload. Allowed moves:
///   kIdle -> kDraining -> kWriting -> kPublishing -> kIdle
///   kDraining, kWriting, kPublishing -> kIdle  (failed or abandoned)
///   kIdle -> kPublishing                       (a rollback: the agent writes the half itself)
enum class OffloadPhase : uint8_t { kIdle, kDraining, kWriting, kPublishing };

class OffloadSession {
 public:
  using Time = SteadyClock::time_point;

  struct Options {
    std::string model;  ///< its name, for messages
    bool part = false;  ///< the agent owns a part: the attempt ties it to the other agents' parts
    std::chrono::milliseconds timeout{0};  ///< from the grant until all are ready; 0: none
  };
  /// `layout`, `chunks` and `owned` outlive the session. `first_lease`: random, so that a lease of
  /// an earlier process does not match a lease of this one.
  OffloadSession(Options options, const Layout& layout, const ChunkTable& chunks,
                 const Coverage& owned, uint64_t first_lease);

  /// The next step of Begin's caller.
  enum class Next : uint8_t {
    kWait,    ///< wait until the phase changes, then call Begin again
    kDrain,   ///< prepare the half for new writers, then call FinishDrain
    kJoined,  ///< write: the half is ready
  };
  struct Begun {
    Next next = Next::kWait;
    uint64_t lease = 0;
  };
  /// `drawn`: the attempt to use when no rank gave one. Abandons another offload, unless a rank
  /// holds it; then the request is refused, naming that rank's publisher.
  StatusOr<Begun> Begin(const OffloadRequest& request, const Identity& published, uint64_t drawn,
                        Time now);
  /// kDraining -> kWriting, or -> kIdle when `drained` is an error.
  void FinishDrain(uint64_t lease, const Status& drained, double waited_seconds, Time now);

  /// Begins an attendance, a call that a rank keeps open until it is ready.
  Status Attend(uint64_t lease, uint32_t rank);
  /// Whether the rank is ready or the version published. Fails if the offload was abandoned.
  StatusOr<bool> IsReady(uint64_t lease, uint32_t rank) const;
  /// Ends an attendance, or one that never came. `gone`: its caller left before the rank was ready,
  /// which abandons the offload.
  void EndAttend(uint64_t lease, uint32_t rank, bool gone, Time now);
  /// Adds `change` to the callers that wait for the publish. While there are any, the offload is
  /// held.
  void CountWaiters(uint64_t lease, int change);
  /// Adds a stream by which a client shows that it is alive, until RemoveClient. 0 is no client.
  void AddClient(uint64_t client) { clients_.Add(client); }
  /// Removes a client's stream. A client without one is dead: the offload that it was about to
  /// attend is abandoned, and ranks of later clients do not join one in which it was ready.
  void RemoveClient(uint64_t client, Time now);

  Status Abandon(uint64_t lease, uint32_t rank, const std::string& reason);

  using Final = WrittenTally::Final;
  StatusOr<Final> MarkWritten(uint64_t lease, const WrittenNotice& notice);
  /// Returns whether this was the last rank: kWriting -> kPublishing. An error that concerns more
  /// than this call has abandoned the offload.
  StatusOr<bool> MarkReady(const ReadyNotice& notice, const Identity& published);
  /// Per tensor, whether the ranks declared it unchanged. REQUIRES: kPublishing.
  std::vector<bool> unchanged() const;

  /// kPublishing -> kIdle.
  void MarkPublished(const VersionInfo& info);
  void FailPublish(Status why);
  /// kIdle -> kPublishing, for a version that no rank writes.
  Status BeginRollback(uint64_t version, uint64_t attempt, Time now);
  /// kFailedPrecondition, with `advice`, while a rank holds an offload.
  Status CheckUndisturbed(Time now, std::string_view advice) const;

  /// Abandons the offload after its deadline. Returns whether it did.
  bool Expire(Time now);
  std::optional<Time> deadline() const;

  /// Returns the outcome of the offload of `lease`, or with lease 0 of `version` or a newer one:
  /// the info, an error, or nullopt while the caller must wait.
  std::optional<StatusOr<VersionInfo>> Outcome(uint64_t version, uint64_t lease,
                                               const VersionInfo& published,
                                               uint64_t attempt = 0) const;

  OffloadPhase phase() const { return phase_; }
  bool writing(uint64_t lease) const {
    return phase_ == OffloadPhase::kWriting && now_.name.lease == lease;
  }
  const OffloadName& current() const { return now_.name; }
  /// The time that the ranks waited for the half.
  double waited_seconds() const { return now_.waited; }
  Time granted() const { return now_.granted; }
  uint64_t abandoned() const { return abandoned_; }  ///< offloads that were not published

 private:
  struct Offload {
    OffloadName name;
    OffloadRanks ranks;
    std::unique_ptr<WrittenTally> tally;  // from kWriting on; a rollback has none
    double waited = 0;
    Time granted;
  };

  Status CheckRequest(const OffloadRequest& request, const Identity& published) const;
  /// Whether a ready rank of the current offload had died before the request's client came.
  bool OutlivedReadyRank(const OffloadRequest& request) const;
  Status EndAsGone(const OffloadRanks::Entry& rank, Time now);
  /// Checks that a request that does not join may end the current offload.
  Status MayTakeOver(const OffloadRequest& request, Time now) const;
  Status WhyOver(uint64_t lease) const;
  /// Ends the offload as failed, and returns `why`.
  Status End(Status why);
  /// Ends the offload: `why` is OK if it was published as `info`.
  void Leave(Status why, const VersionInfo& info);

  const Options options_;
  const Layout& layout_;
  const ChunkTable& chunks_;
  const Coverage& owned_;
  OffloadPhase phase_ = OffloadPhase::kIdle;
  uint64_t next_lease_;
  Offload now_;
  LiveClients clients_;
  EndedOffloads ended_;
  uint64_t abandoned_ = 0;
};

}  // namespace deltawire::sender
