#include "receiver/origin_link.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// How long a sender may take to say whom to follow. Its own patience is shorter.
constexpr std::chrono::milliseconds kUndecided{4000};
// As many requests as a sender keeps for a receiver.
constexpr size_t kMostRequests = 64;

}  // namespace

/// The sender's attachment, calls and pulls, as one of several upstreams.
class OriginLink::SenderView : public Upstream {
 public:
  explicit SenderView(OriginLink& link) : link_(link) {}
  ~SenderView() override { Detach(); }

  const std::string& address() const override { return link_.address(); }
  double round_trip() const override { return link_.origin_->round_trip(); }
  StatusOr<ModelDescription> Describe(const std::string& model) override {
    return link_.origin_->Describe(model);
  }
  StatusOr<Identity> Newest(const std::string&) override { return link_.Newest(); }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    return link_.origin_->SideFiles(model, hash);
  }
  StatusOr<PullGrant> OpenPull(const std::string& model, const PullWish& wish) override {
    return link_.origin_->OpenPull(model, wish);
  }
  void PullEnded(const Status& status) override { link_.origin_->PullEnded(status); }
  Status Attach(const std::string&, const receiver::Report&,
                std::function<void(const UpstreamEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    link_.Subscribe({.event = std::move(event), .ended = std::move(ended)});
    return absl::OkStatus();
  }
  void Send(const receiver::Report&) override {}  // the link gets every report of the replica
  void Detach() override { link_.Unsubscribe(absl::CancelledError("detached")); }
  void Cancel() override { link_.Cancel(); }

 private:
  OriginLink& link_;
};

OriginLink::OriginLink(std::unique_ptr<Upstream> origin, std::string model, uint64_t seed,
                       std::function<void(const Assignment&)> assigned)
    : origin_(std::move(origin)),
      model_(std::move(model)),
      assigned_(std::move(assigned)),
      follower_({origin_->address()}, {.follow = true, .seed = seed}),
      thread_([this] { KeepAttached(); }) {}

OriginLink::~OriginLink() { Stop(); }

void OriginLink::Stop() {
  Cancel();
  if (thread_.joinable()) thread_.join();
  origin_->Detach();
}

std::unique_ptr<Upstream> OriginLink::View() { return std::make_unique<SenderView>(*this); }

void OriginLink::Cancel() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    cv_.notify_all();
  }
  origin_->Cancel();
}

void OriginLink::Report(const receiver::Report& report) {
  const std::lock_guard one_at_a_time(send_mu_);
  receiver::Report latest;
  {
    std::lock_guard lock(mu_);
    report_ = report;
    report_.sync_request = 0;
    if (!std::exchange(started_, true)) cv_.notify_all();
    std::erase_if(given_, [&](const Request& r) { return r.number == report.sync_request; });
    if (!follower_.attached(0)) return;
    follower_.Sent(0, Clock::now());
    latest = report;
    latest.event = follower_.last_event(0);
  }
  origin_->Send(latest);
}

void OriginLink::AddRequest(UpstreamEvent& event) {
  std::lock_guard lock(mu_);
  if (requests_.empty() || event.sync_request != 0) return;
  const Request& first = requests_.front();
  const bool has =
      event.newest.lineage == first.newest.lineage && !IsLater(first.newest, event.newest);
  if (!has) return;
  event.sync_request = first.number;
  event.force_full = first.force_full;
  given_.push_back(first);
  requests_.pop_front();
}

void OriginLink::RenewRequests() {
  std::lock_guard lock(mu_);
  requests_.insert(requests_.begin(), given_.begin(), given_.end());
  given_.clear();
}

void OriginLink::Subscribe(Subscriber subscriber) {
  std::lock_guard lock(mu_);
  subscriber_ = std::make_unique<Subscriber>(std::move(subscriber));
  greet_ = true;
  cv_.notify_all();
}

void OriginLink::Unsubscribe(const Status& why) {
  std::unique_ptr<Subscriber> subscriber;
  {
    std::unique_lock lock(mu_);
    cv_.wait(lock, [this] { return !delivering_; });
    subscriber = std::move(subscriber_);
  }
  if (subscriber != nullptr) subscriber->ended(why);
}

StatusOr<Identity> OriginLink::Newest() {
  {
    std::lock_guard lock(mu_);
    // An event that came less than a beat ago says what is newest; no call is needed.
    if (heard_ && follower_.attached(0)) return last_.newest;
  }
  return origin_->Newest(model_);
}

std::optional<Identity> OriginLink::Told() const {
  std::lock_guard lock(mu_);
  if (!heard_ || !follower_.attached(0)) return std::nullopt;
  return last_.newest;
}

bool OriginLink::Decided() const { return decided_ || Clock::now() >= heard_first_ + kUndecided; }

receiver::Report OriginLink::Latest() const {
  receiver::Report latest = report_;
  latest.event = follower_.last_event(0);
  return latest;
}

void OriginLink::KeepAttached() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (!started_) {
      cv_.wait(lock);
      continue;
    }
    if (greet_ && heard_ && !delivering_ && Decided()) {
      Deliver(lock);
      continue;
    }
    const Follower::Need need = follower_.Needs(0, Clock::now());
    if (need != Follower::Need::kNothing) {
      Attend(need, lock);
      continue;
    }
    cv_.wait_for(lock, std::max<Clock::duration>(follower_.NextNeed() - Clock::now(), {}));
  }
}

void OriginLink::Beat() {
  const std::lock_guard one_at_a_time(send_mu_);
  receiver::Report latest;
  {
    std::lock_guard lock(mu_);
    if (!follower_.attached(0)) return;
    latest = Latest();
    follower_.Sent(0, Clock::now());
  }
  origin_->Send(latest);
}

void OriginLink::Attend(Follower::Need need, std::unique_lock<Mutex>& lock) {
  const auto now = Clock::now();
  if (need == Follower::Need::kDetach) {
    const bool silent = !follower_.broken(0);
    const uint64_t attachment = attachment_;
    lock.unlock();
    if (silent) {
      LogWarn("model {}: sender {} has been silent for {} ms: attaching anew", model_, address(),
              Follower::kSilence.count());
    }
    origin_->Detach();
    OnEnded(attachment, absl::UnavailableError(silent ? "silent" : "events were lost"));
    lock.lock();
    return;
  }
  if (need == Follower::Need::kBeat) {
    lock.unlock();
    Beat();
    lock.lock();
    return;
  }
  follower_.Attaching(0, now);
  const uint64_t attachment = ++attachment_;
  const receiver::Report latest = Latest();
  lock.unlock();
  const Status attached = origin_->Attach(
      model_, latest, [this, attachment](const UpstreamEvent& e) { OnEvent(attachment, e); },
      [this, attachment](const Status& why) { OnEnded(attachment, why); });
  if (!attached.ok()) OnEnded(attachment, attached);
  lock.lock();
}

void OriginLink::OnEvent(uint64_t attachment, const UpstreamEvent& event) {
  std::unique_lock lock(mu_);
  if (attachment != attachment_) return;
  const Status taken = follower_.Event(0, event, Clock::now());
  if (!taken.ok()) {
    cv_.notify_all();
    return;
  }
  if (heard_first_ == Clock::time_point{}) heard_first_ = Clock::now();
  last_ = event;
  last_.sync_request = 0;
  heard_ = true;
  if (event.sync_request != 0 && requests_.size() < kMostRequests) {
    requests_.push_back({event.sync_request, event.force_full, event.newest});
  }
  // A sender that does not say whom to follow is to be followed itself.
  const Assignment now = event.assignment.value_or(Assignment{});
  if (!now.undecided) {
    const bool changed = !(std::exchange(assignment_, now) == now);
    decided_ = true;
    if (changed) {
      lock.unlock();
      assigned_(now);
      lock.lock();
    }
  }
  if (Decided()) Deliver(lock);
}

void OriginLink::Deliver(std::unique_lock<Mutex>& lock) {
  cv_.wait(lock, [this] { return !delivering_; });
  greet_ = false;
  if (subscriber_ == nullptr) return;
  UpstreamEvent event = last_;
  event.number = ++subscriber_->number;
  delivering_ = true;
  const Subscriber* const to = subscriber_.get();
  lock.unlock();
  to->event(event);
  lock.lock();
  delivering_ = false;
  cv_.notify_all();
}

void OriginLink::OnEnded(uint64_t attachment, const Status& why) {
  {
    std::lock_guard lock(mu_);
    if (attachment != attachment_) return;
    ++attachment_;
    follower_.Ended(0, why, Clock::now());
    heard_ = false;
    requests_.clear();  // the sender knows that they are lost
    given_.clear();
    cv_.notify_all();
  }
  Unsubscribe(why);
}

}  // namespace deltawire::receiver
