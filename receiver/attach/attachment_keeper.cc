#include "receiver/attach/attachment_keeper.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace deltawire::receiver {

AttachmentKeeper::AttachmentKeeper(std::string model, std::vector<Upstream*> upstreams,
                                   uint64_t seed, Owner& owner)
    : model_(std::move(model)), upstreams_(std::move(upstreams)), owner_(owner) {
  attachments_.reserve(upstreams_.size());
  for (size_t i = 0; i < upstreams_.size(); ++i) {
    attachments_.emplace_back(upstreams_[i]->address(), seed + i);
  }
}

AttachmentKeeper::~AttachmentKeeper() {
  Stop();
  Join();
}

void AttachmentKeeper::Start() {
  MutexLock lock(mu_);
  if (stopping_ || thread_.joinable()) return;
  thread_ = Thread([this] { Run(); });
}

void AttachmentKeeper::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  cv_.notify_all();
}

void AttachmentKeeper::Join() {
  if (thread_.joinable()) thread_.join();
}

void AttachmentKeeper::Wake() {
  MutexLock lock(mu_);
  woken_ = true;
  cv_.notify_all();
}

bool AttachmentKeeper::IsCurrent(size_t upstream, uint64_t attachment) const {
  MutexLock lock(mu_);
  return attachments_[upstream].number() == attachment;
}

uint64_t AttachmentKeeper::lost() const {
  MutexLock lock(mu_);
  return lost_;
}

SteadyClock::time_point AttachmentKeeper::NextNeed() const {
  auto next = SteadyClock::time_point::max();
  for (const Attachment& a : attachments_) next = std::min(next, a.NextNeed());
  return next;
}

void AttachmentKeeper::Run() {
  MutexLock lock(mu_);
  while (!stopping_) {
    woken_ = false;
    {
      const MutexUnlock unlocked(mu_);
      owner_.OnTurn();
    }
    bool done = false;
    for (size_t i = 0; i < upstreams_.size() && !stopping_; ++i) done = Attend(i) || done;
    if (done || woken_ || stopping_) continue;
    // A wait of at most a beat: what the owner does in OnTurn may depend on the time.
    const auto left =
        std::min<SteadyClock::duration>(NextNeed() - SteadyClock::now(), Attachment::kBeat);
    cv_.wait_for(lock, std::max<SteadyClock::duration>(left, SteadyClock::duration(0)));
  }
}

bool AttachmentKeeper::Attend(size_t i) {
  switch (attachments_[i].NeedAt(SteadyClock::now())) {
    case Attachment::Need::kNothing:
      return false;
    case Attachment::Need::kAttach:
      Attach(i);
      return true;
    case Attachment::Need::kDetach:
      Detach(i);
      return true;
    case Attachment::Need::kBeat: {
      const MutexUnlock unlocked(mu_);
      Send(i);
      return true;
    }
  }
  return false;
}

void AttachmentKeeper::Attach(size_t i) {
  attachments_[i].Begin(SteadyClock::now());
  const uint64_t attachment = attachments_[i].number();
  const MutexUnlock unlocked(mu_);
  const Status attached = upstreams_[i]->Attach(
      model_, owner_.MakeReport(i),
      [this, i, attachment](const SenderEvent& e) { OnEvent(i, attachment, e); },
      [this, i, attachment](const Status& why) { OnEnded(i, attachment, why); });
  if (!attached.ok()) OnEnded(i, attachment, attached);
}

void AttachmentKeeper::Detach(size_t i) {
  ++lost_;
  const bool silent = attachments_[i].state() != Attachment::State::kBroken;
  const uint64_t attachment = attachments_[i].number();
  const MutexUnlock unlocked(mu_);
  if (silent) {
    LogWarn("model {}: sender {} has been silent for {} ms: attaching anew", model_,
            upstreams_[i]->address(), Attachment::kSilence.count());
  }
  // The reason comes first: Detach ends the attachment as cancelled, which says nothing.
  OnEnded(i, attachment, absl::UnavailableError(silent ? "silent" : "events were lost"));
  upstreams_[i]->Detach();
}

void AttachmentKeeper::Send(size_t upstream, const std::function<void(ReceiverReport&)>& change) {
  // Without this an older report could be sent last, and would stand until the next beat.
  const std::lock_guard one_at_a_time(send_mu_);
  const auto attached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return attachments_[upstream].state() == Attachment::State::kAttached;
  };
  {
    MutexLock lock(mu_);
    if (!attached()) return;
  }
  ReceiverReport report = owner_.MakeReport(upstream);
  {
    MutexLock lock(mu_);
    if (!attached()) return;
    report.event = attachments_[upstream].last_event();
    attachments_[upstream].NoteSent(SteadyClock::now());
  }
  if (change) change(report);
  upstreams_[upstream]->Send(report);
}

void AttachmentKeeper::OnEvent(size_t i, uint64_t attachment, const SenderEvent& event) {
  if (!IsCurrent(i, attachment) || !owner_.Accepts(i, event)) return;
  {
    MutexLock lock(mu_);
    if (attachments_[i].number() != attachment) return;
    const Status taken = attachments_[i].NoteEvent(event.number, SteadyClock::now());
    if (!taken.ok()) {
      if (absl::IsDataLoss(taken)) LogWarn("model {}: {}", model_, MessageOf(taken));
      cv_.notify_all();
      return;
    }
  }
  owner_.OnEvent(i, attachment, event);
}

void AttachmentKeeper::OnEnded(size_t i, uint64_t attachment, const Status& why) {
  {
    MutexLock lock(mu_);
    if (attachments_[i].number() != attachment) return;
    attachments_[i].End();
  }
  owner_.OnEnded(i, why);
  MutexLock lock(mu_);
  attachments_[i].NoteEnd(why, SteadyClock::now());
  cv_.notify_all();
}

}  // namespace deltawire::receiver
