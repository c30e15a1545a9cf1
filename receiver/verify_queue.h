// The callers that wait for a check of all chunks. A pass over the buffer serves those who are
// there when it begins, and answers them all when it ends; who comes later waits for the next pass.
// Owner: a Replica, under its lock; pure. Cost: O(callers). No errors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"

namespace deltawire::receiver {

struct VerifyResult {
  Identity committed;
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t bad_chunks = 0;
  std::vector<std::string> bad_tensors;
  bool repaired = false;
};

class VerifyQueue {
 public:
  /// Adds a caller; `repair`: bad chunks are then to be fetched. Returns its number.
  uint64_t Add(bool repair) {
    calls_[++last_].repair = repair;
    return last_;
  }
  /// Drops a caller that has gone. Returns the sync that it waited for; 0: none.
  uint64_t Forget(uint64_t number) {
    const auto it = calls_.find(number);
    if (it == calls_.end()) return 0;
    const uint64_t sync = it->second.sync;
    calls_.erase(it);
    return sync;
  }
  /// Whether anybody waits for an answer.
  bool waiting() const {
    for (const auto& [number, call] : calls_) {
      if (!call.answer) return true;
    }
    return false;
  }

  /// Begins a pass for those who wait for one; false: nobody does.
  bool Begin() {
    for (auto& [number, call] : calls_) call.served = call.served || !call.done();
    return passes();
  }
  /// Whether somebody still waits for the pass.
  bool passes() const {
    for (const auto& [number, call] : calls_) {
      if (call.served && !call.done()) return true;
    }
    return false;
  }
  /// The pass has ended. Returns those who want what is bad repaired, and have no answer yet.
  std::vector<uint64_t> End(const StatusOr<VerifyResult>& found) {
    std::vector<uint64_t> repairs;
    for (auto& [number, call] : calls_) {
      if (!call.served || call.done()) continue;
      if (found.ok()) call.found = *found;
      if (call.repair && found.ok() && found->bad_chunks > 0) {
        call.repairing = true;
        repairs.push_back(number);
      } else {
        call.answer = found.status();
      }
    }
    return repairs;
  }
  /// The caller now waits for this sync.
  void Repairs(uint64_t number, uint64_t sync) { calls_.at(number).sync = sync; }
  void RepairFailed(uint64_t number, const Status& why) { calls_.at(number).answer = why; }
  /// The sync that the caller waits for; 0: none.
  uint64_t sync(uint64_t number) const {
    const auto it = calls_.find(number);
    return it == calls_.end() ? 0 : it->second.sync;
  }
  void Repaired(uint64_t number, const Status& synced, const Identity& committed) {
    Call& call = calls_.at(number);
    call.sync = 0;
    call.answer = synced;
    call.found.committed = committed;
    call.found.repaired = synced.ok();
  }

  /// The answer to a caller, who is then forgotten; nullopt until there is one.
  std::optional<StatusOr<VerifyResult>> AnswerTo(uint64_t number) {
    const auto it = calls_.find(number);
    if (it == calls_.end() || !it->second.answer) return std::nullopt;
    const Call call = std::move(it->second);
    calls_.erase(it);
    if (!call.answer->ok()) return StatusOr<VerifyResult>(*call.answer);
    return StatusOr<VerifyResult>(call.found);
  }

 private:
  struct Call {
    bool repair = false;
    bool served = false;     // by the pass that runs
    bool repairing = false;  // the pass is over
    uint64_t sync = 0;
    VerifyResult found;
    std::optional<Status> answer;
    bool done() const { return repairing || answer.has_value(); }
  };
  uint64_t last_ = 0;
  std::map<uint64_t, Call> calls_;
};

}  // namespace deltawire::receiver
