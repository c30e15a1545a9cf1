#include "common/serving/attached_receiver.h"

#include <algorithm>

#include "common/layout/names.h"

namespace deltawire {

AttachedReceiver::AttachedReceiver(uint64_t token, Who who, Time now)
    : token_(token), who_(std::move(who)), since_(now), heard_(now), acknowledged_(now) {}

bool AttachedReceiver::IsSilent(Time now, std::chrono::milliseconds silence) const {
  // A receiver whose reports acknowledge no new event does not get the events.
  return now - std::min(heard_, acknowledged_) > silence;
}

void AttachedReceiver::SetNews(std::function<void()> news) {
  news_ = std::make_shared<const std::function<void()>>(std::move(news));
}

void AttachedReceiver::Wake(DueCalls& calls) const {
  if (news_ != nullptr) calls.push_back(news_);
}

bool AttachedReceiver::Assign(const Assignment& assignment) {
  if (assignment_ == assignment) return false;
  assignment_ = assignment;
  reassigned_ = true;
  return true;
}

void AttachedReceiver::AddSync(const std::shared_ptr<SyncCall>& call, bool force_full,
                               uint64_t number) {
  syncs_.Add(call, force_full, number);
  call->Add(token_, who_.id);
  if (reported_) call->Report(token_, report_);
}

AttachedReceiver::Noted AttachedReceiver::TakeReport(const ReceiverReport& report, Time now,
                                                     DueCalls& calls) {
  heard_ = now;
  if (report.event > report_.event || report.event == number_) acknowledged_ = now;
  const auto paused = [](const ReceiverReport& r) { return r.phase == ReceiverPhase::kPaused; };
  Noted noted{.census = !(report.engines == report_.engines),
              .site = !reported_ || report.follows != report_.follows ||
                      report.barred != report_.barred || paused(report) != paused(report_)};
  report_ = report;
  if (report_.message.size() > kMaxReportMessage) {
    report_.message = FitUtf8(report_.message, kMaxReportMessage);
  }
  if (!report.committed.empty()) {
    const bool other = !(report.committed == committed_);
    noted.committed = reported_ && other;
    noted.census |= other || report.committed.attempt != committed_.attempt;
    committed_ = report.committed;  // the same state may come by another attempt
  }
  reported_ = true;
  if (report_.sync_request != 0) {
    for (const auto& call : syncs_.TakeAnswered(report_.sync_request)) {
      call->Answer(token_, report_);
      calls.push_back(call->news());
    }
    if (syncs_.due()) Wake(calls);
  }
  for (const auto& call : syncs_.callers()) {
    if (call->Report(token_, report_)) calls.push_back(call->news());
  }
  return noted;
}

bool AttachedReceiver::IsEventDue(const VersionFeed::State& state, const Word* word) const {
  return number_ == 0 || state.newest.serial != version_ || !HasWord(word) || reassigned_ ||
         syncs_.due() || (state.incoming_serial != 0 && state.incoming_serial != incoming_);
}

AttachedReceiver::Due AttachedReceiver::TakeEvent(const VersionFeed::State& state, const Word* word,
                                                  bool assigns, const AttachmentLimits& limits,
                                                  Time now) {
  const bool known = state.newest.serial != 0;
  Due due;
  if (known && (now - sent_ >= limits.beat || IsEventDue(state, word))) {
    SenderEvent& event = due.event.emplace();
    if (const auto request = syncs_.Send()) {
      event.sync_request = request->number;
      event.force_full = request->force_full;
    }
    event.number = ++number_;
    event.newest = state.newest.info;
    event.relay = state.relay;
    if (word != nullptr) event.group = word->word;
    if (assigns && !who_.offer.site.empty()) event.assignment = assignment_;
    event.incoming = state.incoming;
    reassigned_ = false;
    incoming_ = state.incoming_serial;
    version_ = state.newest.serial;
    word_ = word == nullptr ? 0 : word->serial;
    sent_ = now;
  }
  const Time silent = std::min(heard_, acknowledged_) + limits.silence;
  const Time next = known ? std::min(silent, sent_ + limits.beat) : silent;
  // Silence must exceed the limit, so one millisecond more.
  due.again = next + std::chrono::milliseconds(1);
  return due;
}

void AttachedReceiver::EndSyncs(const Status& why, DueCalls& calls) {
  for (const auto& call : syncs_.callers()) {
    if (why.ok()) {
      call->Leave(token_);
    } else {
      call->Stop(why);
    }
    calls.push_back(call->news());
  }
}

}  // namespace deltawire
