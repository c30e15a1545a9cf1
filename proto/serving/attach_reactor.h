// One receiver's Attach call, without a thread: its reports go to the Attachments, and their events
// go down, when there is news and at each beat.
// Owner: itself, from Begin until gRPC has called OnDone. Threads: gRPC's callbacks, the alarm's,
// and whoever brings news; at most one write is under way. Cost: what it keeps of a report is
// small. Errors end the call with their status.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/serving/attachments.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/stream_turn.h"

namespace deltawire {

class PullServiceImpl;

class AttachReactor final : public grpc::ServerBidiReactor<v1::ReceiverReport, v1::SenderEvent> {
 public:
  /// `service` and `context` outlive the call.
  static AttachReactor* Begin(PullServiceImpl& service, grpc::CallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  AttachReactor(PullServiceImpl& service, grpc::CallbackServerContext& context)
      : service_(service), context_(context) {}

  /// Lets the call in until its first report, which has as much time as a silence may last.
  Status AwaitReport();
  /// Attaches whom the first report names; returns the token.
  StatusOr<uint64_t> Enter();
  /// Takes what was read, and its memory, of which a peer decides how much it is.
  ReceiverReport TakeReport();
  /// Calls `ring` when `rest` is over, unless the alarm is set anew before. Returns the alarm that
  /// this one takes the place of, to be destroyed without the lock. REQUIRES: mu_ held.
  std::unique_ptr<grpc::Alarm> SetAlarm(std::chrono::nanoseconds rest,
                                        void (AttachReactor::*ring)());
  /// Ends the call if no report has come.
  void MissReport();
  /// To be dropped without the lock; from then on the call counts no more.
  std::shared_ptr<const void> TakeAwaited();
  /// Sends what is due, or sets the alarm for what is due later. Does nothing while another thread
  /// is in it or a write is under way; these look again before they are done.
  void Pump();
  StreamTurn::Next Look();
  void Do(StreamTurn::Next next);
  /// Detaches, and finishes the call as soon as nothing of it is under way.
  void End(const Status& why);

  PullServiceImpl& service_;
  grpc::CallbackServerContext& context_;
  std::shared_ptr<AttachReactor> self_;  // until OnDone
  v1::ReceiverReport report_;            // being read
  std::string serves_;                   // the model for which the receiver serves others; or empty
  v1::SenderEvent event_;                // being written

  Mutex mu_;
  StreamTurn turn_;
  uint64_t token_ = 0;                   // 0: not attached
  std::shared_ptr<const void> awaited_;  // counts this call until its first report
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace deltawire
