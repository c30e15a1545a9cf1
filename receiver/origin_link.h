// A receiver's attachment to the sender that says whom it follows. It stays whomever the receiver
// follows: the sender lists it, and tells it of the next assignment. Where the receiver follows the
// sender itself, the same attachment is its upstream (View).
// Owner: an AssignedUpstream. Threads: every method from any; a thread of its own attaches and
// sends beats. No lock is held while it calls others. Errors: the sender's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/base/sync.h"
#include "receiver/follower.h"
#include "receiver/upstream.h"

namespace deltawire::receiver {

class OriginLink {
 public:
  /// `assigned` is told of each assignment that is another than the one before; it does not block.
  OriginLink(std::unique_ptr<Upstream> origin, std::string model, uint64_t seed,
             std::function<void(const Assignment&)> assigned);
  ~OriginLink();

  /// The sender as an upstream. There is one view; it must be destroyed before this.
  std::unique_ptr<Upstream> View();
  const std::string& address() const { return origin_->address(); }

  /// What the replica reports; the first one lets the thread attach.
  void Report(const receiver::Report& report);
  /// `event` is on its way to the replica. If the sender has asked for a sync that is not answered
  /// yet, and the event's upstream has what the sender had when it asked, the request goes along.
  void AddRequest(UpstreamEvent& event);
  /// The replica has forgotten the requests that it was given.
  void RenewRequests();
  /// The sender's newest state; nullopt: it is not attached to.
  std::optional<Identity> Told() const;
  void Cancel();
  /// Ends the attachment, and calls nobody from its return on.
  void Stop();

 private:
  class SenderView;
  struct Subscriber {
    std::function<void(const UpstreamEvent&)> event;
    std::function<void(const Status&)> ended;
    uint64_t number = 0;  ///< of the last event
  };
  struct Request {
    uint64_t number = 0;
    bool force_full = false;
    Identity newest;  ///< the sender's when it asked
  };

  // Of the view.
  void Subscribe(Subscriber subscriber);
  void Unsubscribe(const Status& why);
  StatusOr<Identity> Newest();

  void KeepAttached();
  void Attend(Follower::Need need, std::unique_lock<Mutex>& lock);
  /// Says again what was said last. REQUIRES: mu_ not held.
  void Beat();
  void OnEvent(uint64_t attachment, const UpstreamEvent& event);
  void OnEnded(uint64_t attachment, const Status& why);
  // REQUIRES (here and below): mu_ held.
  /// Tells the subscriber of the last event. The lock is released meanwhile.
  void Deliver(std::unique_lock<Mutex>& lock);
  /// Whether the sender has said whom to follow, or has had its time for it.
  bool Decided() const;
  receiver::Report Latest() const;

  const std::unique_ptr<Upstream> origin_;
  const std::string model_;
  const std::function<void(const Assignment&)> assigned_;
  Mutex send_mu_;  // held while a report is made and sent, to keep the order; before mu_
  mutable Mutex mu_;
  CondVar cv_;
  Follower follower_;
  receiver::Report report_;
  bool started_ = false;  // there is a report
  bool stopping_ = false;
  uint64_t attachment_ = 0;  // the present one's number; a late event has an earlier one's
  UpstreamEvent last_;
  bool heard_ = false;  // last_ is of this attachment
  Assignment assignment_;
  bool decided_ = false;  // once, by some event
  SteadyClock::time_point heard_first_{};
  std::unique_ptr<Subscriber> subscriber_;
  bool delivering_ = false;  // a thread calls the subscriber
  bool greet_ = false;       // the subscriber is new
  std::deque<Request> requests_, given_;
  Thread thread_;
};

}  // namespace deltawire::receiver
