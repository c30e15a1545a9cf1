#include "proto/serving/attach_reactor.h"

#include <utility>

#include "common/base/log.h"
#include "proto/convert.h"
#include "proto/serving/pull_service.h"
#include "proto/serving/serving_convert.h"

namespace deltawire {
namespace {

void ToProto(const SenderEvent& in, v1::SenderEvent* out) {
  out->Clear();
  out->set_number(in.number);
  ToProto(in.newest, out->mutable_newest());
  out->set_side_files_hash(in.newest.side_files_hash);
  out->set_sync_request(in.sync_request);
  out->set_force_full(in.force_full);
  if (!in.group.name.empty()) {
    v1::GroupWord* group = out->mutable_group();
    group->set_name(in.group.name);
    group->set_round(in.group.round);
    if (!in.group.prepare.empty()) ToProto(in.group.prepare, group->mutable_prepare());
    if (!in.group.commit.empty()) ToProto(in.group.commit, group->mutable_commit());
  }
  if (in.assignment) {
    v1::Assignment* assignment = out->mutable_assignment();
    for (const std::string& address : in.assignment->upstreams) assignment->add_upstreams(address);
    assignment->set_undecided(in.assignment->undecided);
  }
  if (!in.incoming.version.empty()) {
    ToProto(in.incoming.version, out->mutable_incoming()->mutable_version());
    if (!in.incoming.base.empty()) {
      ToProto(in.incoming.base, out->mutable_incoming()->mutable_base());
    }
  }
  if (in.relay == RelayNews{}) return;
  v1::RelayNews* relay = out->mutable_relay();
  if (!in.relay.fetching.empty()) ToProto(in.relay.fetching, relay->mutable_fetching());
  relay->set_fetched_bytes(in.relay.fetched_bytes);
  relay->set_applying(in.relay.applying);
  for (const uint64_t number : in.relay.path) relay->add_path(number);
}

}  // namespace

AttachReactor* AttachReactor::Begin(PullServiceImpl& service,
                                    grpc::CallbackServerContext& context) {
  std::shared_ptr<AttachReactor> reactor(new AttachReactor(service, context));
  reactor->self_ = reactor;
  const Status awaited = reactor->AwaitReport();
  if (awaited.ok()) {
    reactor->StartRead(&reactor->report_);
  } else {
    reactor->End(ToGrpc(awaited));
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
  {
    std::lock_guard lock(mu_);
    if (token_ != 0) return;
  }
  End({grpc::StatusCode::DEADLINE_EXCEEDED,
       fmt::format("no report has come for {} ms, so it is not known who attaches; attach again",
                   service_.attachments().limits().silence.count())});
}

std::unique_ptr<grpc::Alarm> AttachReactor::SetAlarm(std::chrono::nanoseconds rest,
                                                     void (AttachReactor::*ring)()) {
  auto before = std::exchange(alarm_, std::make_unique<grpc::Alarm>());
  const auto at =
      std::chrono::system_clock::now() + std::chrono::ceil<std::chrono::microseconds>(rest);
  alarm_->Set(at, [weak = std::weak_ptr(self_), ring](bool rang) {
    if (!rang) return;  // it was replaced
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
  // The principals may have changed since it attached, and others are told to trust its address.
  if (!serves_.empty()) report.barred = !service_.MayTouch(context_, serves_);
  v1::ReceiverReport().Swap(&report_);
  return report;
}

StatusOr<uint64_t> AttachReactor::Enter() {
  DW_ASSIGN_OR_RETURN(auto model, service_.Find(context_, report_.model()));
  model.reset();  // an attachment outlasts a model that is replaced
  PullRequest who{.model = report_.model(), .receiver_id = report_.receiver_id()};
  DW_RETURN_IF_ERROR(service_.Identify(context_, who));
  Attachments& attachments = service_.attachments();
  const SiteOffer offer = OfferOf(report_);
  if (!offer.address.empty()) serves_ = who.model;
  DW_ASSIGN_OR_RETURN(
      const uint64_t token,
      attachments.Attach(who.model, who.receiver_id, context_.peer(), who.principal, offer));
  attachments.Report(token, TakeReport());
  attachments.OnNews(token, [weak = std::weak_ptr(self_)] {
    if (const auto reactor = weak.lock()) reactor->Pump();
  });
  return token;
}

void AttachReactor::OnReadDone(bool ok) {
  if (!ok) return End(grpc::Status::CANCELLED);
  uint64_t token = 0;
  {
    std::lock_guard lock(mu_);
    if (ended_) return;
    token = token_;
  }
  if (token != 0) {
    service_.attachments().Report(token, TakeReport());
  } else {
    const auto entered = Enter();
    const auto awaited = TakeAwaited();
    if (!entered.ok()) return End(ToGrpc(entered.status()));
    bool ended = false;
    {
      std::lock_guard lock(mu_);
      token_ = *entered;
      ended = ended_;
    }
    if (ended) return service_.attachments().Detach(*entered);  // End came before there was a token
    Pump();
  }
  StartRead(&report_);
}

void AttachReactor::Pump() {
  uint64_t token = 0;
  {
    std::lock_guard lock(mu_);
    again_ = step_ != Step::kIdle;
    if (ended_ || again_ || token_ == 0) return;
    step_ = Step::kPumping;
    token = token_;
  }
  while (true) {
    const auto due = service_.attachments().TakeEvent(token);
    if (due.ok() && due->event) ToProto(*due->event, &event_);
    std::unique_lock lock(mu_);
    if (ended_) {  // while this thread was here, so the end was left to it
      step_ = Step::kIdle;
      lock.unlock();
      return Finish(status_);
    }
    if (!due.ok()) {
      step_ = Step::kIdle;
      lock.unlock();
      if (absl::IsDeadlineExceeded(due.status())) LogWarn("{}", MessageOf(due.status()));
      return End(grpc::Status::CANCELLED);
    }
    if (due->event) {
      step_ = Step::kWriting;  // an End from here on leaves Finish to OnWriteDone
      lock.unlock();
      return StartWrite(&event_);
    }
    if (std::exchange(again_, false)) continue;
    step_ = Step::kIdle;
    const auto alarm = SetAlarm(due->again - SteadyClock::now(), &AttachReactor::Pump);
    lock.unlock();
    return;  // the old alarm goes here, without the lock
  }
}

void AttachReactor::OnWriteDone(bool ok) {
  bool ended = false;
  {
    std::lock_guard lock(mu_);
    step_ = Step::kIdle;
    ended = ended_;
  }
  if (ended) return Finish(status_);
  if (!ok) return End(grpc::Status::CANCELLED);
  Pump();
}

void AttachReactor::OnCancel() { End(grpc::Status::CANCELLED); }

void AttachReactor::End(const grpc::Status& status) {
  uint64_t token = 0;
  Step step = Step::kIdle;
  {
    std::lock_guard lock(mu_);
    if (std::exchange(ended_, true)) return;
    status_ = status;
    token = token_;
    step = step_;
  }
  if (token != 0) service_.attachments().Detach(token);
  if (step == Step::kIdle) return Finish(status);
  if (step == Step::kWriting) context_.TryCancel();  // a peer that reads nothing would hold it up
}

void AttachReactor::OnDone() {
  std::unique_ptr<grpc::Alarm> alarm;
  {
    std::lock_guard lock(mu_);
    alarm = std::move(alarm_);
  }
  TakeAwaited().reset();
  const auto last = std::move(self_);  // deletes this, unless a callback is just here
}

}  // namespace deltawire
