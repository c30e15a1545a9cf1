// The requests for a sync or for a check of all chunks, from callers, and from orchestrators
// through an agent. A pull serves the requests that exist when it begins, and answers each once
// when it ends; so does a check. Later requests wait for the next one. A Replica owns it. Every
// method may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/identity.h"
#include "common/base/listeners.h"
#include "common/base/status.h"
#include "receiver/replica/commit_log.h"

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
  /// The limit on requests through agents that are not answered. An agent keeps 16 for a receiver,
  /// so only one that invents requests reaches it.
  static constexpr size_t kMostRemote = 1024;

  explicit RequestQueue(const CommitLog& commits) : commits_(commits) {}

  // Callers.
  /// Has `news` called, without a lock, when an answer may have come or a request makes progress;
  /// see Listeners. REQUIRES: it is added before the request.
  [[nodiscard]] Listeners::Listener OnAnswers(std::function<void()> news) {
    return listeners_.Add(std::move(news));
  }
  /// Calls the listeners. REQUIRES: no lock is held.
  void Notify() { listeners_.Call(); }
  /// Adds a request and returns its number. `repair`: a sync then fetches the corrupt chunks.
  uint64_t AddSync(bool force_full) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t AddCheck(bool repair) ABSL_LOCKS_EXCLUDED(mu_);
  /// Discards a request whose caller has gone.
  void Forget(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  /// Returns the answer, nullopt if there is none yet, or the error of the sync or check. An answer
  /// is given once; then the request is forgotten.
  StatusOr<std::optional<Commit>> SyncAnswer(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  StatusOr<std::optional<VerifyResult>> CheckAnswer(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  /// Ends the requests that have no answer, with kUnavailable.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Orchestrators.
  /// Adds a request, unless it is there already, as after a new attachment. One beyond kMostRemote
  /// is never answered.
  void AddRemote(const Remote& request) ABSL_LOCKS_EXCLUDED(mu_);
  /// Discards the requests that came through `agent`. Its attachment has ended, so no caller waits.
  void DropRemote(size_t agent) ABSL_LOCKS_EXCLUDED(mu_);

  // Syncs.
  /// Whether a request waits for a pull that has not begun.
  bool wants_pull() const ABSL_LOCKS_EXCLUDED(mu_);
  /// Takes all such requests for one pull, which serves them until Answer.
  Batch Take() ABSL_LOCKS_EXCLUDED(mu_);
  /// Stores `status` for the batch's local callers, and returns the orchestrators' requests that
  /// the caller must now answer.
  std::vector<Remote> Answer(const Batch& batch, const Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Checks.
  /// Whether a caller waits for a check, also for one that runs.
  bool wants_check() const ABSL_LOCKS_EXCLUDED(mu_);
  /// Begins a check for the callers that wait for one. Returns false if there are none.
  bool BeginCheck() ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether a caller still waits for the check that runs.
  bool checking() const ABSL_LOCKS_EXCLUDED(mu_);
  /// Notes the end of the check. Returns true if it found corrupt chunks, and callers now wait for
  /// the next pull to repair them.
  bool EndCheck(const StatusOr<VerifyResult>& found) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Local {
    /// kCheck -> kRepair, when its check has found corrupt chunks that are to be repaired.
    enum class Wants : uint8_t { kSync, kCheck, kRepair };
    Wants wants = Wants::kSync;
    bool force_full = false;  // of kSync
    bool repairs = false;     // of kCheck
    bool taken = false;       // a pull, or a check, serves it
    VerifyResult found;
    std::optional<Status> answer;
  };
  /// Whether a request wants a check (or else a sync), and none that has begun serves it.
  static bool Waits(const Local& local, bool check);
  bool AnyChecking() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Removes the answered request, and returns it; nullopt: it has no answer.
  StatusOr<std::optional<Local>> TakeAnswered(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  const CommitLog& commits_;
  Listeners listeners_;  // not under mu_
  mutable CheckedMutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Local> local_ ABSL_GUARDED_BY(mu_);
  std::vector<Remote> remote_ ABSL_GUARDED_BY(mu_);  // not taken yet
  std::vector<Remote> serving_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
