// A receiver's attachment to the sender that assigns its upstream. It stays whichever upstream the
// receiver follows, so that the sender lists the receiver and sends it the next assignment. If the
// receiver follows the sender itself, this attachment is also its upstream (View). An
// AssignedUpstream owns it. Every method may be called from any thread. Only Report calls others
// under a lock.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "receiver/attach/attachment_keeper.h"
#include "receiver/attach/upstream.h"

namespace deltawire::receiver {

class OriginLink : private AttachmentKeeper::Owner {
 public:
  /// `assigned` gets each assignment that differs from the one before. It must not block.
  OriginLink(std::unique_ptr<Upstream> origin, std::string model, uint64_t seed,
             std::function<void(const Assignment&)> assigned);
  ~OriginLink() override;

  /// Returns the sender as an upstream. There is one view; it must be destroyed before this.
  std::unique_ptr<Upstream> View();
  const std::string& address() const { return origin_->address(); }

  /// Passes on a report of the replica. The first report lets the link attach.
  void Report(const ReceiverReport& report) ABSL_LOCKS_EXCLUDED(mu_);
  /// Adds a sync request of the sender that is not answered yet to `event`, which goes to the
  /// replica, if the event's upstream has the state that the sender had when it asked.
  void AddRequest(SenderEvent& event);
  /// Queues the requests again that the replica got: it has forgotten them.
  void RenewRequests();
  /// Returns the sender's newest state, or nullopt while not attached to it.
  std::optional<Identity> KnownNewest() const;
  void Cancel();
  /// Ends the attachment. Afterwards it calls neither `assigned` nor the view's callbacks.
  void Stop();

 private:
  class SenderView;
  struct Subscriber {
    std::function<void(const SenderEvent&)> event;
    std::function<void(const Status&)> ended;
    uint64_t number = 0;  ///< of the last event
  };
  struct Request {
    uint64_t number = 0;
    bool force_full = false;
    Identity newest;  ///< the sender's when it asked
  };

  // The view's calls.
  void Subscribe(Subscriber subscriber);
  void Unsubscribe(const Status& why);
  StatusOr<Identity> Newest();

  ReceiverReport MakeReport(size_t upstream) override;
  void OnEvent(size_t upstream, uint64_t attachment, const SenderEvent& event) override;
  void OnEnded(size_t upstream, const Status& why) override;
  void OnTurn() override;
  /// Delivers the last event to the subscriber. The lock is released meanwhile.
  void Deliver(MutexLock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Whether the sender has named an upstream, or has had its time for it.
  bool IsDecided() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::unique_ptr<Upstream> origin_;
  const std::string model_;
  const std::function<void(const Assignment&)> assigned_;
  Mutex report_mu_;  // keeps reports in order; before all others
  mutable CheckedMutex mu_;
  CondVar cv_;  // for delivering_
  ReceiverReport report_ ABSL_GUARDED_BY(mu_);
  SenderEvent last_ ABSL_GUARDED_BY(mu_);
  bool heard_ ABSL_GUARDED_BY(mu_) = false;  // last_ is of this attachment
  Assignment assignment_ ABSL_GUARDED_BY(mu_);
  bool decided_ ABSL_GUARDED_BY(mu_) = false;  // an event has named an upstream
  SteadyClock::time_point heard_first_ ABSL_GUARDED_BY(mu_){};
  std::unique_ptr<Subscriber> subscriber_ ABSL_GUARDED_BY(mu_);
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;  // a thread calls the subscriber
  bool greet_ ABSL_GUARDED_BY(mu_) = false;       // the subscriber has not got an event yet
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_), given_ ABSL_GUARDED_BY(mu_);
  AttachmentKeeper keeper_;
};

}  // namespace deltawire::receiver
