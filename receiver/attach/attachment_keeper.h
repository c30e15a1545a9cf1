// The attachments of one model to its upstreams. A thread makes them, sends beats, ends those that
// fall silent or lose events, and makes them anew after a pause. A Replica or an OriginLink owns
// it; the upstreams outlive it. Public methods may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "receiver/attach/attachment.h"
#include "receiver/attach/upstream.h"

namespace deltawire::receiver {

class AttachmentKeeper {
 public:
  /// Called from the thread and from those of the upstreams, never under the lock of
  /// AttachmentKeeper.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Returns the report to `upstream`; the caller fills in Report::event. Calls for reports come
    /// one at a time.
    virtual ReceiverReport MakeReport(size_t upstream) = 0;
    /// Returns false for an event that must be ignored. It is no sign of life either.
    virtual bool Accepts(size_t /*upstream*/, const SenderEvent& /*event*/) { return true; }
    /// The owner checks IsCurrent under its own lock, since the attachment may have ended.
    virtual void OnEvent(size_t upstream, uint64_t attachment, const SenderEvent& event) = 0;
    /// Called once for each attachment, before the next one to that upstream begins.
    virtual void OnEnded(size_t upstream, const Status& why) = 0;
    /// The thread calls this after Wake, and at least once per beat.
    virtual void OnTurn() {}
  };

  /// `seed` is that of the random part of pauses.
  AttachmentKeeper(std::string model, std::vector<Upstream*> upstreams, uint64_t seed,
                   Owner& owner);
  ~AttachmentKeeper();

  /// Begins to attach; later calls do nothing.
  void Start() ABSL_LOCKS_EXCLUDED(mu_);
  /// Tells the thread to end. The caller then cancels the upstreams' calls, joins, and detaches.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  void Join();
  /// Has the thread call OnTurn soon.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);

  bool IsCurrent(size_t upstream, uint64_t attachment) const ABSL_LOCKS_EXCLUDED(mu_);
  /// Sends a new report, altered by `change`, if the upstream is attached.
  void Send(size_t upstream, const std::function<void(ReceiverReport&)>& change = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  /// The number of attachments that ended because of silence or lost events.
  uint64_t lost() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  /// Does what the attachment to upstream `i` needs now. Returns false if it needs nothing.
  bool Attend(size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Attach(size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Detach(size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEvent(size_t i, uint64_t attachment, const SenderEvent& event) ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnded(size_t i, uint64_t attachment, const Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  SteadyClock::time_point NextNeed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string model_;
  const std::vector<Upstream*> upstreams_;
  Owner& owner_;
  /// Keeps reports in order: it is held while one is made and sent. Locked before all others.
  Mutex send_mu_;
  mutable CheckedMutex mu_;
  CondVar cv_;
  std::vector<Attachment> attachments_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t lost_ ABSL_GUARDED_BY(mu_) = 0;
  Thread thread_;
};

}  // namespace deltawire::receiver
