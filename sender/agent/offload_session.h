// One model's offload as a state machine: who writes which version, what each rank has said, and
// how it ends. Pure: no thread, file or clock in it; calls say what happened and when, answers what
// is to be done. Owner: the Model, under its lock. Errors name model, version, ranks, publishers.
// Cost: 5 bytes per tensor and 12 per chunk while an offload is under way; events are O(their
// size).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "sender/agent/version_info.h"

namespace deltawire::sender {

/// Life of an offload. Allowed moves:
///   kIdle -> kDraining -> kWriting -> kPublishing -> kIdle
///   kDraining, kWriting, kPublishing -> kIdle  (failed or abandoned)
///   kIdle -> kPublishing                       (a rollback: the agent writes the half itself)
enum class OffloadPhase : uint8_t { kIdle, kDraining, kWriting, kPublishing };

/// A rank's wish to write its part of a version.
struct OffloadRequest {
  uint64_t version = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t attempt = 0;   ///< 0: the agent's draw, or the one that the other ranks have
  std::string publisher;  ///< who asks, for messages; empty: not said
  uint64_t client = 0;    ///< of the one who asks, drawn at random; 0: not to be recognised
};

/// What a rank has finished before it is ready.
struct WrittenNotice {
  uint32_t rank = 0;
  std::vector<uint32_t> tensors;
  bool sole = false;  ///< no other rank writes any part of `tensors`
  /// Bytes of chunks that this rank has finished since it last said so; equally long.
  std::vector<uint32_t> chunks, chunk_bytes;
};

struct ReadyNotice {
  uint64_t version = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t lease = 0;
  bool wrote_all = false;
  std::vector<uint32_t> written;
  std::vector<uint32_t> unchanged;
};

class OffloadSession {
 public:
  using Time = SteadyClock::time_point;

  struct Options {
    std::string model;  ///< its name, for messages
    bool part = false;  ///< the agent owns a part: the attempt ties it to the other agents' parts
    std::chrono::milliseconds timeout{0};  ///< from the grant until all are ready; 0: none
  };
  /// `layout`, `chunks` and `owned` outlive the session. `first_lease`: random, so that a lease of
  /// an earlier process names nothing here.
  OffloadSession(Options options, const Layout& layout, const ChunkTable& chunks,
                 const Coverage& owned, uint64_t first_lease);

  /// What the caller of Begin has to do.
  enum class Next : uint8_t {
    kWait,    ///< the phase must change first; ask again then
    kDrain,   ///< get the half ready for new writers, then say Drained
    kJoined,  ///< write: the half is there
  };
  struct Begun {
    Next next = Next::kWait;
    uint64_t lease = 0;
  };
  /// `drawn`: the attempt to use when nobody gave one. An offload that is in the way and that
  /// nobody holds is abandoned; one that is held refuses the request and names its publishers.
  StatusOr<Begun> Begin(const OffloadRequest& request, const Identity& published, uint64_t drawn,
                        Time now);
  /// kDraining -> kWriting, or -> kIdle when `drained` is an error.
  void Drained(uint64_t lease, const Status& drained, double waited_seconds, Time now);

  /// Attending: a call that a rank keeps open until it is ready.
  Status Attend(uint64_t lease, uint32_t rank);
  /// OK and true: the rank is ready, or the version published. An error: the offload is over.
  StatusOr<bool> Attended(uint64_t lease, uint32_t rank) const;
  /// The call has ended, for whatever reason, or never came. `gone`: its caller went before the
  /// rank was ready, which abandons the offload.
  void EndAttend(uint64_t lease, uint32_t rank, bool gone, Time now);
  /// Somebody waits for the offload to be published: it is not to be taken for forgotten.
  void Waits(uint64_t lease, int change);

  Status Abandon(uint64_t lease, uint32_t rank, const std::string& reason);

  /// What may be diffed now though others still write.
  struct Final {
    std::vector<uint32_t> tensors;
    std::vector<uint32_t> chunks;
  };
  StatusOr<Final> Written(uint64_t lease, const WrittenNotice& notice);
  /// True when this was the last rank: kWriting -> kPublishing. An error that is not about this
  /// call alone has abandoned the offload.
  StatusOr<bool> Ready(const ReadyNotice& notice, const Identity& published);
  /// Per tensor: declared unchanged. REQUIRES: kPublishing.
  std::vector<bool> unchanged() const;

  /// kPublishing -> kIdle.
  void Published(const VersionInfo& info);
  void PublishFailed(Status why);
  /// kIdle -> kPublishing, as a version that no rank writes.
  Status BeginRollback(uint64_t version, uint64_t attempt, Time now);
  /// kFailedPrecondition while somebody holds an offload. One that nobody holds makes way.
  Status MayRollBack(Time now) const;

  /// Abandons an offload whose time is up; true when it did.
  bool Expire(Time now);
  std::optional<Time> deadline() const;

  /// How a wait for `version` or a newer one stands: the info, an error, or nothing yet. With a
  /// lease, of that offload only; one that is not known is what is published if that came of
  /// `attempt`.
  std::optional<StatusOr<VersionInfo>> Outcome(uint64_t version, uint64_t lease,
                                               const VersionInfo& published,
                                               uint64_t attempt = 0) const;

  OffloadPhase phase() const { return phase_; }
  bool idle() const { return phase_ == OffloadPhase::kIdle; }
  bool writing(uint64_t lease) const {
    return phase_ == OffloadPhase::kWriting && now_.lease == lease;
  }
  uint64_t version() const { return now_.version; }  ///< 0 when idle
  uint64_t lease() const { return now_.lease; }      ///< 0 when idle, and for a rollback
  uint64_t attempt() const { return now_.attempt; }
  double waited_seconds() const { return now_.waited; }
  Time granted() const { return now_.granted; }

 private:
  struct Rank {
    std::string publisher;
    uint64_t client = 0;
    Time begun;
    bool ready = false;
    uint32_t attending = 0;
    bool attended = false;  // at any time
  };
  /// Bytes of a chunk that ranks have counted so far.
  struct Counted {
    uint32_t bytes = 0;
    uint32_t first_rank = 0;
    bool several = false;
  };
  struct Offload {
    uint64_t version = 0;
    uint64_t lease = 0;
    uint64_t attempt = 0;
    uint32_t world = 1;
    std::map<uint32_t, Rank> ranks;  // that have begun
    uint32_t ready = 0;
    uint32_t waiting = 0;
    std::vector<uint8_t> marks;    // per tensor: kWritten | kUnchanged | kEarly
    std::vector<uint32_t> sole;    // per tensor: 1 + the rank that alone writes it, or 0
    std::vector<Counted> counted;  // per chunk, once a rank counts
    double waited = 0;
    Time granted;
  };
  struct Ended {
    uint64_t version = 0, lease = 0;
    Status why;  // OK: published
    VersionInfo info;
  };

  /// "rank 0 of 2 (python train.py, process 4711 on node7)".
  std::string Describe(uint32_t rank) const;
  Status CheckRequest(const OffloadRequest& request, const Identity& published) const;
  bool Joins(const OffloadRequest& request) const;
  /// A rank that stands for the offload being alive; null when nobody does.
  const std::map<uint32_t, Rank>::value_type* Holder(Time now) const;
  /// Why a request that does not join may not end the offload that is under way; OK if it may.
  Status MayTakeOver(const OffloadRequest& request, Time now) const;
  Status Over(uint64_t lease) const;
  /// Ends it as failed, and returns why.
  Status End(Status why);
  void Remember(Ended ended);
  Status CheckTensors(const std::vector<uint32_t>& tensors) const;
  Status ClaimSole(uint32_t tensor, uint32_t rank);
  StatusOr<bool> Count(uint32_t chunk, uint32_t bytes, uint32_t rank);
  Status Mark(const ReadyNotice& notice);
  Status CheckComplete(const Identity& published) const;
  std::string LateRanks() const;

  const Options options_;
  const Layout& layout_;
  const ChunkTable& chunks_;
  const Coverage& owned_;
  OffloadPhase phase_ = OffloadPhase::kIdle;
  uint64_t next_lease_;
  Offload now_;
  std::deque<Ended> ended_;  // the newest at the back
};

}  // namespace deltawire::sender
