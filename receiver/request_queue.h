// Who waits for a sync: callers here, by number, and orchestrators that asked through an agent.
// Those that are there when a pull begins are answered when it ends, each once; those that come
// meanwhile wait for the next. Owner: a Replica, under its lock; pure. Cost: O(log waiting).
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
    uint64_t number = 0;  ///< as the agent gave it; its answer names it
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

  /// A caller's request; the number is what it asks AnswerTo for.
  uint64_t Add(bool force_full);
  /// The same request twice, as after an attachment that was made anew, is one.
  void AddRemote(const Remote& request);
  /// The agent's attachment ended: nobody is left to answer.
  void DropRemote(size_t agent);
  /// The caller has gone.
  void Forget(uint64_t number) { local_.erase(number); }

  /// Somebody waits whom no pull serves yet.
  bool waiting() const;
  /// All of those. They are served until Answer.
  Batch Take();
  /// Gives the batch's callers `status`, and returns the orchestrators' requests that are still
  /// to be answered.
  std::vector<Remote> Answer(const Batch& batch, const Status& status);

  /// Once: null while nothing is known; the number is forgotten with the answer.
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
