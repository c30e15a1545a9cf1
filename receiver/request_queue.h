// The requests that wait for a sync: from local callers, by number, and from orchestrators that
// asked through an agent. A pull serves the requests that exist when it begins, and answers each
// once when it ends; later requests wait for the next pull. Owner: a Replica, under its lock; pure.
// Cost: O(log requests). No errors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/status.h"

namespace deltawire::receiver {

class RequestQueue {
 public:
  struct Remote {
    size_t agent = 0;
    uint64_t number = 0;  ///< chosen by the agent; the answer repeats it
    bool force_full = false;
    friend bool operator==(const Remote&, const Remote&) = default;
  };
  /// The requests that one pull serves.
  struct Batch {
    std::vector<uint64_t> local;
    std::vector<Remote> remote;
    bool force_full = false;
    bool empty() const { return local.empty() && remote.empty(); }
  };

  /// Adds a local caller's request and returns its number, for AnswerTo.
  uint64_t Add(bool force_full);
  /// Requests that came through agents and are not answered. An agent keeps 16 for a receiver, so
  /// only one that makes up requests reaches this.
  static constexpr size_t kMostRemote = 1024;

  /// Adds an orchestrator's request. One that comes again, as after a new attachment, counts once;
  /// one beyond kMostRemote is never answered.
  void AddRemote(const Remote& request);
  /// Drops the requests that came through `agent`: its attachment has ended, so nobody waits.
  void DropRemote(size_t agent);
  /// Drops a local request whose caller has gone.
  void Forget(uint64_t number) { local_.erase(number); }

  /// True when a request waits that no pull serves yet.
  bool waiting() const;
  /// Takes all such requests for one pull, which serves them until Answer.
  Batch Take();
  /// Stores `status` for the batch's local callers, and returns the orchestrators' requests that
  /// the caller must now answer.
  std::vector<Remote> Answer(const Batch& batch, const Status& status);

  /// The answer to a local request; nullopt until there is one. Forgets an answered request.
  std::optional<Status> AnswerTo(uint64_t number);

 private:
  struct Local {
    bool force_full = false;
    bool taken = false;
    std::optional<Status> answer;
  };
  uint64_t last_ = 0;
  std::map<uint64_t, Local> local_;
  std::vector<Remote> remote_;  // not taken yet
  std::vector<Remote> serving_;
};

}  // namespace deltawire::receiver
