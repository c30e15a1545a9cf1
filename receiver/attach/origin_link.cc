#include "receiver/attach/origin_link.h"

#include <algorithm>
#include <utility>

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// The longest time in which a sender names an upstream. Its own patience is shorter.
constexpr std::chrono::milliseconds kUndecided{4000};
// The limit on requests, which is the number that a sender keeps for a receiver.
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
  StatusOr<PullGrant> OpenPull(const PullRequest& request) override {
    return link_.origin_->OpenPull(request);
  }
  void NotePullEnd(const Status& status) override { link_.origin_->NotePullEnd(status); }
  Status Attach(const std::string&, const ReceiverReport&,
                std::function<void(const SenderEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    link_.Subscribe({.event = std::move(event), .ended = std::move(ended)});
    return absl::OkStatus();
  }
  void Send(const ReceiverReport&) override {}  // the link gets every report of the replica
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
      keeper_(model_, {origin_.get()}, seed, *this) {}

OriginLink::~OriginLink() { Stop(); }

void OriginLink::Stop() {
  Cancel();
  keeper_.Join();
  origin_->Detach();
}

std::unique_ptr<Upstream> OriginLink::View() { return std::make_unique<SenderView>(*this); }

void OriginLink::Cancel() {
  keeper_.Stop();
  origin_->Cancel();
}

void OriginLink::Report(const ReceiverReport& report) {
  const std::lock_guard one_at_a_time(report_mu_);
  {
    MutexLock lock(mu_);
    report_ = report;
    report_.sync_request = 0;
    std::erase_if(given_, [&](const Request& r) { return r.number == report.sync_request; });
  }
  keeper_.Start();
  keeper_.Send(0, [&](ReceiverReport& latest) {
    const uint64_t event = std::exchange(latest, report).event;
    latest.event = event;
  });
}

ReceiverReport OriginLink::MakeReport(size_t /*upstream*/) {
  MutexLock lock(mu_);
  ReceiverReport latest = report_;
  latest.event = 0;
  return latest;
}

void OriginLink::AddRequest(SenderEvent& event) {
  MutexLock lock(mu_);
  if (requests_.empty() || event.sync_request != 0) return;
  const Request& first = requests_.front();
  const Identity& now = event.newest.identity;
  const bool has = now.lineage == first.newest.lineage && !IsLater(first.newest, now);
  if (!has) return;
  event.sync_request = first.number;
  event.force_full = first.force_full;
  given_.push_back(first);
  requests_.pop_front();
}

void OriginLink::RenewRequests() {
  MutexLock lock(mu_);
  requests_.insert(requests_.begin(), given_.begin(), given_.end());
  given_.clear();
}

void OriginLink::Subscribe(Subscriber subscriber) {
  MutexLock lock(mu_);
  subscriber_ = std::make_unique<Subscriber>(std::move(subscriber));
  greet_ = true;
  lock.unlock();
  keeper_.Wake();
}

void OriginLink::Unsubscribe(const Status& why) {
  std::unique_ptr<Subscriber> subscriber;
  {
    MutexLock lock(mu_);
    while (delivering_) cv_.wait(lock);
    subscriber = std::move(subscriber_);
  }
  if (subscriber != nullptr) subscriber->ended(why);
}

StatusOr<Identity> OriginLink::Newest() {
  {
    MutexLock lock(mu_);
    // An event that came less than a beat ago has the newest state, so no call is needed.
    if (heard_) return last_.newest.identity;
  }
  return origin_->Newest(model_);
}

std::optional<Identity> OriginLink::KnownNewest() const {
  MutexLock lock(mu_);
  if (!heard_) return std::nullopt;
  return last_.newest.identity;
}

bool OriginLink::IsDecided() const { return decided_ || Clock::now() >= heard_first_ + kUndecided; }

void OriginLink::OnTurn() {
  MutexLock lock(mu_);
  if (greet_ && heard_ && !delivering_ && IsDecided()) Deliver(lock);
}

void OriginLink::OnEvent(size_t /*upstream*/, uint64_t attachment, const SenderEvent& event) {
  MutexLock lock(mu_);
  if (!keeper_.IsCurrent(0, attachment)) return;
  if (heard_first_ == Clock::time_point{}) heard_first_ = Clock::now();
  last_ = event;
  last_.sync_request = 0;
  heard_ = true;
  if (event.sync_request != 0 && requests_.size() < kMostRequests) {
    requests_.push_back({event.sync_request, event.force_full, event.newest.identity});
  }
  // A receiver follows the sender itself if the sender names no upstream.
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
  if (IsDecided()) Deliver(lock);
}

void OriginLink::Deliver(MutexLock& lock) {
  while (delivering_) cv_.wait(lock);
  greet_ = false;
  if (subscriber_ == nullptr) return;
  SenderEvent event = last_;
  event.number = ++subscriber_->number;
  delivering_ = true;
  const Subscriber* const to = subscriber_.get();
  {
    const MutexUnlock unlocked(mu_);
    to->event(event);
  }
  delivering_ = false;
  cv_.notify_all();
}

void OriginLink::OnEnded(size_t /*upstream*/, const Status& why) {
  {
    MutexLock lock(mu_);
    heard_ = false;
    requests_.clear();  // the sender knows that they are lost
    given_.clear();
  }
  Unsubscribe(why);
}

}  // namespace deltawire::receiver
