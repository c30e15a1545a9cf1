#include "proto/serving/attach_reactor.h"

#include <utility>

#include "common/base/log.h"
#include "proto/convert.h"
#include "proto/serving/pull_service.h"

namespace deltawire {
namespace {

using Turn = StreamTurn::Next;

Status Left() { return absl::CancelledError("the receiver has gone"); }

}  // namespace

AttachReactor* AttachReactor::Begin(PullServiceImpl& service,
                                    grpc::CallbackServerContext& context) {
  std::shared_ptr<AttachReactor> reactor(new AttachReactor(service, context));
  reactor->self_ = reactor;
  const Status awaited = reactor->AwaitReport();
  if (awaited.ok()) {
    reactor->StartRead(&reactor->report_);
  } else {
    reactor->End(awaited);
  }
  return reactor.get();
}

Status AttachReactor::AwaitReport() {
  DW_ASSIGN_OR_RETURN(auto awaited, service_.AwaitReport(context_));
  std::lock_guard lock(mu_);
  awaited_ = std::move(awaited);
  SetAlarm(service_.attachments().limits().silence, &AttachReactor::MissReport);
  return absl::OkStatus();
}

void AttachReactor::MissReport() {
  Turn next = Turn::kNothing;
  {
    // Check and end in one step, because gRPC keeps nothing alive for an alarm. A report that
    // arrives in between may start a write, which End would cancel after the call is over.
    std::lock_guard lock(mu_);
    if (token_ != 0) return;
    next = turn_.End(
        Errorf(StatusCode::kDeadlineExceeded,
               "no report has come for {} ms, so it is not known who attaches; attach again",
               service_.attachments().limits().silence.count()));
  }
  Do(next);
}

std::unique_ptr<grpc::Alarm> AttachReactor::SetAlarm(std::chrono::nanoseconds rest,
                                                     void (AttachReactor::*ring)()) {
  auto before = std::exchange(alarm_, std::make_unique<grpc::Alarm>());
  const auto at =
      std::chrono::system_clock::now() + std::chrono::ceil<std::chrono::microseconds>(rest);
  alarm_->Set(at, [weak = std::weak_ptr(self_), ring](bool rang) {
    if (!rang) return;  // a newer alarm replaced it
    if (const auto reactor = weak.lock()) ((*reactor).*ring)();
  });
  return before;
}

std::shared_ptr<const void> AttachReactor::TakeAwaited() {
  std::lock_guard lock(mu_);
  return std::exchange(awaited_, nullptr);
}

ReceiverReport AttachReactor::TakeReport() {
  ReceiverReport report = FromProto(report_);
  // The principals may have changed since it attached, and other receivers are given its address.
  if (!serves_.empty()) report.barred = !service_.MayTouch(context_, serves_);
  v1::ReceiverReport().Swap(&report_);
  return report;
}

StatusOr<uint64_t> AttachReactor::Enter() {
  DW_ASSIGN_OR_RETURN(auto model, service_.Find(context_, report_.model()));
  model.reset();  // an attachment outlasts a replaced model
  DW_ASSIGN_OR_RETURN(const PullCaller who,
                      service_.Identify(context_, report_.model(), report_.receiver_id()));
  Attachments& attachments = service_.attachments();
  const SiteOffer offer = OfferOf(report_);
  if (!offer.address.empty()) serves_ = report_.model();
  DW_ASSIGN_OR_RETURN(
      const uint64_t token,
      attachments.Attach(report_.model(), report_.receiver_id(), who.peer, who.principal, offer));
  attachments.Report(token, TakeReport());
  attachments.OnNews(token, [weak = std::weak_ptr(self_)] {
    if (const auto reactor = weak.lock()) reactor->Pump();
  });
  return token;
}

void AttachReactor::OnReadDone(bool ok) {
  if (!ok) return End(Left());
  uint64_t token = 0;
  {
    std::lock_guard lock(mu_);
    if (turn_.ended()) return;
    token = token_;
  }
  if (token != 0) {
    service_.attachments().Report(token, TakeReport());
  } else {
    const auto entered = Enter();
    const auto awaited = TakeAwaited();
    if (!entered.ok()) return End(entered.status());
    bool ended = false;
    {
      std::lock_guard lock(mu_);
      token_ = *entered;
      ended = turn_.ended();
    }
    if (ended) return service_.attachments().Detach(*entered);  // End ran before there was a token
    Pump();
  }
  StartRead(&report_);
}

void AttachReactor::Pump() {
  Turn next = Turn::kNothing;
  {
    std::lock_guard lock(mu_);
    if (token_ != 0) next = turn_.News();
  }
  Do(next);
}

StreamTurn::Next AttachReactor::Look() {
  uint64_t token = 0;
  {
    std::lock_guard lock(mu_);
    token = token_;
  }
  const auto due = service_.attachments().TakeEvent(token);
  if (!due.ok()) {
    if (absl::IsDeadlineExceeded(due.status())) LogWarn("{}", MessageOf(due.status()));
    service_.attachments().Detach(token);
    std::lock_guard lock(mu_);
    return turn_.FoundEnd(absl::CancelledError(due.status().message()));
  }
  if (due->event) ToProto(*due->event, &event_);
  std::unique_ptr<grpc::Alarm> before;  // destroyed outside the lock
  std::lock_guard lock(mu_);
  if (due->event) return turn_.Found();
  const Turn next = turn_.FoundNothing();
  if (next == Turn::kNothing) {
    before = SetAlarm(due->again - SteadyClock::now(), &AttachReactor::Pump);
  }
  return next;
}

void AttachReactor::Do(Turn next) {
  while (next == Turn::kLook) next = Look();
  if (next == Turn::kWrite) return StartWrite(&event_);
  if (next == Turn::kCancel) return context_.TryCancel();
  if (next == Turn::kNothing) return;
  Status why;
  {
    std::lock_guard lock(mu_);
    why = turn_.why();
  }
  Finish(ToGrpc(why));
}

void AttachReactor::OnWriteDone(bool ok) {
  Turn next = Turn::kNothing;
  uint64_t token = 0;
  {
    std::lock_guard lock(mu_);
    next = turn_.Written(ok);
    token = token_;
  }
  if (!ok) service_.attachments().Detach(token);
  Do(next);
}

void AttachReactor::OnCancel() { End(Left()); }

void AttachReactor::End(const Status& why) {
  Turn next = Turn::kNothing;
  uint64_t token = 0;
  {
    std::lock_guard lock(mu_);
    if (turn_.ended()) return;
    next = turn_.End(why);
    token = token_;
  }
  if (token != 0) service_.attachments().Detach(token);
  Do(next);
}

void AttachReactor::OnDone() {
  std::unique_ptr<grpc::Alarm> alarm;
  {
    std::lock_guard lock(mu_);
    alarm = std::move(alarm_);
  }
  TakeAwaited().reset();
  const auto last = std::move(self_);  // deletes this, unless a callback is running
}

}  // namespace deltawire
