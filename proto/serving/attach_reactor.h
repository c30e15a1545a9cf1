// One receiver's Attach call, without a thread. It passes reports to the Attachments, and sends
// their events down on news and at each beat. It owns itself from Begin until gRPC has called
// OnDone. gRPC's callbacks, the alarm's and any thread with news call it; at most one write is
// under way.
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

  /// Admits the call until its first report, which may take as long as a silence may last.
  Status AwaitReport();
  /// Attaches the receiver that the first report names, and returns the token.
  StatusOr<uint64_t> Enter();
  /// Moves the report out and frees its memory, whose size the peer determines.
  ReceiverReport TakeReport();
  /// Calls `ring` after `rest`, unless the alarm is set anew before. Returns the previous alarm, to
  /// be destroyed outside the lock. REQUIRES: mu_ held.
  std::unique_ptr<grpc::Alarm> SetAlarm(std::chrono::nanoseconds rest,
                                        void (AttachReactor::*ring)());
  /// Ends the call if no report has come.
  void MissReport();
  /// Destroy the result outside the lock; from then on the call no longer counts.
  std::shared_ptr<const void> TakeAwaited();
  /// Sends what is due, or sets the alarm for what is due later. Does nothing while another thread
  /// runs it or a write is under way; these look again before they are done.
  void Pump();
  StreamTurn::Next Look();
  void Do(StreamTurn::Next next);
  /// Detaches, and finishes the call when none of its operations is under way.
  void End(const Status& why);

  PullServiceImpl& service_;
  grpc::CallbackServerContext& context_;
  std::shared_ptr<AttachReactor> self_;  // until OnDone
  v1::ReceiverReport report_;            // the report that is being read
  std::string serves_;                   // the model that the receiver serves to others; or empty
  v1::SenderEvent event_;                // the event that is being written

  Mutex mu_;
  StreamTurn turn_;
  uint64_t token_ = 0;                   // 0: not attached
  std::shared_ptr<const void> awaited_;  // counts this call until its first report
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace deltawire
