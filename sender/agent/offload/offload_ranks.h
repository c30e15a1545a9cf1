// The ranks of one offload: which have begun it, which keep a call open, and which are ready.
// OffloadSession owns it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/base/sync.h"
#include "sender/agent/offload/offload_request.h"

namespace deltawire::sender {

class OffloadRanks {
 public:
  using Time = SteadyClock::time_point;
  struct Rank {
    std::string publisher;
    uint64_t client = 0;
    Time begun;
    bool ready = false;
    uint32_t attending = 0;
    bool attended = false;  ///< has attended before
    bool gone = false;      ///< its client is dead
  };
  using Entry = std::map<uint32_t, Rank>::value_type;

  OffloadRanks() = default;
  explicit OffloadRanks(uint32_t world) : world_(world) {}

  void Add(const OffloadRequest& request, Time now);
  /// Returns null if the rank has not begun.
  const Rank* Find(uint32_t rank) const;
  Rank* Find(uint32_t rank);
  /// Lets the ranks' time begin: they may write from now on. Returns a rank that is gone, or null.
  const Entry* Grant(Time now);
  /// Returns whether all ranks are ready now.
  bool MarkReady(Rank& rank);
  uint32_t ready() const { return ready_; }
  std::set<uint32_t> begun() const;

  void AddWaiters(int change) { waiting_ += static_cast<uint32_t>(change); }
  /// Marks the ranks of a client that died at `moment`. Returns one that will never be ready, or
  /// null.
  const Entry* MarkDead(uint64_t client, uint64_t moment);
  /// When the first ready rank's client died; 0: none has.
  uint64_t died() const { return died_; }

  /// Returns the rank that holds the offload (docs/lifecycle.md, "Who may begin"), or null.
  const Entry* Holder(Time now) const;
  /// "rank 0 of 2 (python train.py, process 4711 on node7)".
  std::string Describe(uint32_t rank) const;
  /// "rank 1 is not ready, rank 2 has not begun".
  std::string DescribeLate() const;

 private:
  uint32_t world_ = 1;
  std::map<uint32_t, Rank> ranks_;  // that have begun
  uint32_t ready_ = 0;
  uint32_t waiting_ = 0;  // callers that wait for the publish
  uint64_t died_ = 0;
};

}  // namespace deltawire::sender
