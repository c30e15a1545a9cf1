#include "receiver/failover_upstream.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// How many lineages that were left are remembered. Each stands for a trainer that began anew.
constexpr size_t kMostLeft = 64;

// Whether a call's failure is the upstream's: it cannot be reached, does not have what was asked
// for, or sent something else. kAborted is not: the upstream asks for another try.
bool OfUpstream(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInternal(status) ||
         absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status);
}

// Whether an attachment ended because the upstream has nothing to tell of yet: a relay whose first
// pull runs. If all of its leaves went elsewhere meanwhile, each would cross the uplink.
bool AsksForPatience(const Status& status) { return absl::IsAborted(status); }

class FailoverUpstream : public Upstream {
 public:
  FailoverUpstream(std::vector<std::unique_ptr<Upstream>> upstreams, uint64_t seed, uint64_t relay,
                   const UpstreamChoice::Times& times)
      : upstreams_(std::move(upstreams)),
        relay_(relay),
        called_(upstreams_.size()),
        choice_(upstreams_.size(), seed, times),
        patient_until_(Clock::now() + times.start_patience),
        told_(upstreams_.size()),
        why_left_(upstreams_.size()) {
    for (const auto& u : upstreams_) address_ += (address_.empty() ? "" : ",") + u->address();
    prober_ = Thread([this] { Probe(); });
  }

  ~FailoverUpstream() override {
    Cancel();
    prober_.join();
    Detach();
  }

  const std::string& address() const override { return address_; }
  std::string in_use() const override {
    std::lock_guard lock(mu_);
    return upstreams_[choice_.current()]->address();
  }
  double round_trip() const override {
    std::lock_guard lock(mu_);
    return upstreams_[choice_.current()]->round_trip();
  }

  StatusOr<ModelDescription> Describe(const std::string& model) override {
    const size_t now = Current();
    return Judged(now, [&]() -> StatusOr<ModelDescription> {
      DW_ASSIGN_OR_RETURN(ModelDescription d, upstreams_[now]->Describe(model));
      std::lock_guard lock(mu_);
      // Its layout may be another one, for which the buffer would be thrown away.
      if (WasLeft(d.lineage)) return Behind(now, Identity{.lineage = d.lineage});
      return d;
    });
  }
  StatusOr<Identity> Newest(const std::string& model) override {
    const size_t now = Current();
    return Judged(now, [&]() -> StatusOr<Identity> {
      DW_ASSIGN_OR_RETURN(const Identity newest, upstreams_[now]->Newest(model));
      std::lock_guard lock(mu_);
      if (WasLeft(newest.lineage)) return Behind(now, newest);
      return newest;
    });
  }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    const size_t now = Current();
    return Judged(now, [&] { return upstreams_[now]->SideFiles(model, hash); });
  }
  StatusOr<PullGrant> OpenPull(const std::string& model, const PullWish& wish) override {
    size_t now = 0;
    {
      std::lock_guard lock(mu_);
      now = choice_.current();
      // What one has that was not heard of yet may be of a lineage that was left.
      if (heard_ != now) {
        return Errorf(StatusCode::kUnavailable, "sender {}: not attached to it yet",
                      upstreams_[now]->address());
      }
      pulling_ = true;
      pulled_from_ = now;
    }
    return Judged(now, [&] { return upstreams_[now]->OpenPull(model, wish); });
  }

  Status Attach(const std::string& model, const Report& first,
                std::function<void(const UpstreamEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    size_t now = 0;
    {
      std::lock_guard lock(mu_);
      now = attached_ = choice_.current();
      heard_.reset();
      refused_.reset();
      why_left_[now] = absl::OkStatus();
      model_ = model;
      if (seen_.empty()) seen_ = first.committed;
    }
    const Status attached = upstreams_[now]->Attach(
        model, first,
        [this, now, event = std::move(event)](const UpstreamEvent& e) {
          if (Take(now, e)) event(e);
        },
        [this, now, ended = std::move(ended)](const Status& why) {
          Status left;
          {
            std::lock_guard lock(mu_);
            if (heard_ == now) heard_.reset();
            left = why_left_[now];
          }
          if (!AsksForPatience(why)) Fail(now, UpstreamChoice::Failure::kGone, why);
          ended(left.ok() ? why : left);
        });
    if (!attached.ok() && !AsksForPatience(attached)) {
      Fail(now, UpstreamChoice::Failure::kGone, attached);
    } else if (Current() != now) {
      // It was left meanwhile, by somebody who found no attachment to end.
      upstreams_[now]->Detach();
    }
    return attached;
  }

  void Send(const Report& report) override {
    size_t to = 0;
    {
      std::lock_guard lock(mu_);
      to = attached_;
    }
    upstreams_[to]->Send(report);
  }

  void Detach() override {
    size_t from = 0;
    {
      std::lock_guard lock(mu_);
      from = attached_;
    }
    upstreams_[from]->Detach();
  }

  void PullEnded(const Status& status) override {
    std::optional<size_t> back;
    size_t from = 0;
    {
      std::lock_guard lock(mu_);
      if (!std::exchange(pulling_, false)) return;  // it ended before it was opened
      from = pulled_from_;
      back = std::exchange(returning_, std::nullopt);
      if (status.ok()) choice_.Worked(from);
    }
    if (!status.ok() && OfUpstream(status)) {
      return Leave(from, UpstreamChoice::Failure::kBadWork, status);
    }
    if (back) Return(*back);
  }

  void Cancel() override {
    {
      std::lock_guard lock(mu_);
      cancelled_ = true;
      cv_.notify_all();
    }
    for (const auto& u : upstreams_) u->Cancel();
  }

 private:
  /// An upstream takes one call at a time. No lock is held while it runs.
  class Turn {
   public:
    Turn(FailoverUpstream& owner, size_t upstream) : owner_(owner), upstream_(upstream) {
      std::unique_lock lock(owner_.mu_);
      owner_.cv_.wait(lock, [&] { return !owner_.called_[upstream_]; });
      owner_.called_[upstream_] = true;
    }
    ~Turn() {
      std::lock_guard lock(owner_.mu_);
      owner_.called_[upstream_] = false;
      owner_.cv_.notify_all();
    }
    Turn(const Turn&) = delete;

   private:
    FailoverUpstream& owner_;
    const size_t upstream_;
  };

  size_t Current() const {
    std::lock_guard lock(mu_);
    return choice_.current();
  }

  template <typename Call>
  std::invoke_result_t<Call> Judged(size_t upstream, Call call) {
    auto answer = [&] {
      const Turn turn(*this, upstream);
      return call();
    }();
    if (!answer.ok() && OfUpstream(answer.status())) {
      Leave(upstream, UpstreamChoice::Failure::kBadWork, answer.status());
    }
    return answer;
  }

  // REQUIRES (here and for the next two): mu_ held.
  bool WasLeft(const Hash128& lineage) const {
    return std::ranges::find(left_, lineage) != left_.end();
  }

  Status Behind(size_t upstream, const Identity& newest) const {
    return Errorf(StatusCode::kUnavailable,
                  "{} still has {} of lineage {}, which was left for lineage {}: it is behind (a "
                  "restart of this receiver takes it)",
                  upstreams_[upstream]->address(), ToString(newest), newest.lineage.Hex(),
                  seen_.lineage.Hex());
  }

  /// Takes note of the newest state that `from` tells of; not OK when it must not be taken.
  Status Note(size_t from, const UpstreamEvent& e) {
    if (relay_ != 0 && std::ranges::find(e.relay.path, relay_) != e.relay.path.end()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "{} gets its versions from this relay: a circle of relays; name the sender, or "
                    "a relay nearer to it, first",
                    upstreams_[from]->address());
    }
    const Identity& newest = e.newest;
    if (newest.empty()) return absl::OkStatus();
    // Whoever goes from one lineage to another shows which of the two is the later one.
    const Hash128 before = std::exchange(told_[from], newest.lineage);
    if (!(before == Hash128{}) && !(before == newest.lineage)) std::erase(left_, newest.lineage);
    if (WasLeft(newest.lineage)) return Behind(from, newest);
    if (!seen_.empty() && !(seen_.lineage == newest.lineage)) left_.push_back(seen_.lineage);
    if (left_.size() > kMostLeft) left_.erase(left_.begin());
    const bool news = !(seen_ == newest) || !(e.relay == relay_news_) || e.relay.applying;
    if (news) ++news_;
    seen_ = newest;
    relay_news_ = e.relay;
    return absl::OkStatus();
  }

  /// Whether an event of an attachment to `from` goes on to the replica.
  bool Take(size_t from, const UpstreamEvent& e) {
    std::lock_guard lock(mu_);
    const Status noted = Note(from, e);
    if (noted.ok()) {
      heard_ = from;
      return true;
    }
    // The attachment cannot be ended from its own event.
    refused_ = {from, noted};
    cv_.notify_all();
    return false;
  }

  /// Notes the failure; true when another upstream is the current one now.
  bool Fail(size_t upstream, UpstreamChoice::Failure failure, const Status& why) {
    std::lock_guard lock(mu_);
    if (cancelled_ || upstream != choice_.current()) return false;
    const bool unreachable = absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why);
    if (unreachable && seen_.empty() && Clock::now() < patient_until_) return false;
    choice_.Failed(upstream, failure, Clock::now());
    why_left_[upstream] = why;
    cv_.notify_all();
    const size_t next = choice_.current();
    if (next == upstream) return false;
    LogInfo("model {}: from {} to {}: {}", model_, upstreams_[upstream]->address(),
            upstreams_[next]->address(), MessageOf(why));
    return true;
  }

  /// The same, and ends the attachment, so that the replica attaches to the current one.
  void Leave(size_t upstream, UpstreamChoice::Failure failure, const Status& why) {
    if (Fail(upstream, failure, why)) upstreams_[upstream]->Detach();
  }

  void Return(size_t upstream) {
    size_t from = 0;
    {
      std::lock_guard lock(mu_);
      from = choice_.current();
      if (cancelled_ || upstream >= from) return;
      choice_.Return(upstream);
      LogInfo("model {}: back to {}, which is well again", model_, upstreams_[upstream]->address());
    }
    upstreams_[from]->Detach();
  }

  /// Asks an upstream for its newest state. REQUIRES: mu_ held by `lock`, which is released
  /// meanwhile.
  StatusOr<Identity> Ask(size_t upstream, std::unique_lock<Mutex>& lock) {
    const std::string model = model_;
    lock.unlock();
    auto newest = [&] {
      const Turn turn(*this, upstream);
      return upstreams_[upstream]->Newest(model);
    }();
    lock.lock();
    return newest;
  }

  /// Leaves an upstream that works but is behind the last one for long. REQUIRES: as for Ask.
  void CompareIfDue(std::unique_lock<Mutex>& lock) {
    const auto asked = choice_.Compare(Clock::now());
    if (!asked) return;
    const uint64_t news = news_;
    const Identity seen = seen_;
    const auto newest = Ask(*asked, lock);
    // Between two lineages numbers cannot be compared; one that was not left before is the
    // trainer's new beginning.
    const bool newer =
        newest.ok() && !newest->empty() && !seen.empty() &&
        (newest->lineage == seen.lineage ? IsLater(*newest, seen) : !WasLeft(newest->lineage));
    const size_t current = choice_.current();
    if (!choice_.Compared(newer, news, Clock::now())) return;
    lock.unlock();
    Leave(current, UpstreamChoice::Failure::kGone,
          Errorf(StatusCode::kUnavailable, "{} has {}, which is not to be had here",
                 upstreams_[*asked]->address(), ToString(*newest)));
    lock.lock();
  }

  /// Leaves the upstream whose event was not taken. REQUIRES: as for Ask.
  void LeaveRefused(std::unique_lock<Mutex>& lock) {
    const auto refused = std::exchange(refused_, std::nullopt);
    if (!refused) return;
    lock.unlock();
    Leave(refused->first, UpstreamChoice::Failure::kBadWork, refused->second);
    lock.lock();
  }

  void Wait(std::unique_lock<Mutex>& lock) {
    const auto next = model_.empty() || returning_
                          ? Clock::time_point::max()
                          : std::min(choice_.NextProbe(), choice_.NextCompare());
    if (next == Clock::time_point::max()) {
      cv_.wait_for(lock, std::chrono::milliseconds(500));
    } else {
      cv_.wait_for(lock, std::max<Clock::duration>(next - Clock::now(), Clock::duration(0)));
    }
  }

  void Probe() {
    std::unique_lock lock(mu_);
    while (!cancelled_) {
      LeaveRefused(lock);
      if (!model_.empty()) CompareIfDue(lock);
      if (cancelled_) return;
      const auto asked = model_.empty() || returning_ ? std::nullopt : choice_.Probe(Clock::now());
      if (!asked) {
        if (!refused_) Wait(lock);
        continue;
      }
      const auto newest = Ask(*asked, lock);
      // One that is behind would bring nothing for a while.
      const bool well =
          newest.ok() && !newest->empty() &&
          (seen_.empty() || (newest->lineage == seen_.lineage && !IsLater(seen_, *newest)));
      if (!choice_.Probed(*asked, well, Clock::now())) continue;
      if (pulling_) {
        returning_ = asked;
        continue;
      }
      lock.unlock();
      Return(*asked);
      lock.lock();
    }
  }

  const std::vector<std::unique_ptr<Upstream>> upstreams_;
  const uint64_t relay_;
  std::string address_;
  std::vector<bool> called_;  // by upstream: a call of it runs
  mutable Mutex mu_;
  CondVar cv_;
  UpstreamChoice choice_;
  const Clock::time_point patient_until_;
  std::string model_;            // empty: nothing was attached yet
  Identity seen_;                // the newest state that the upstream in use has told of
  std::vector<Hash128> told_;    // the lineage that each upstream last told of; zero: none
  std::vector<Hash128> left_;    // lineages that were left for others, the last one last
  RelayNews relay_news_;         // what the upstream in use last said as a relay
  uint64_t news_ = 0;            // counts what was told that was not told before
  size_t attached_ = 0;          // the upstream of the last attachment
  std::optional<size_t> heard_;  // the same once it has told of what may be pulled there
  std::optional<std::pair<size_t, Status>> refused_;  // whose event was not taken, and why
  std::vector<Status> why_left_;  // by upstream, for whoever is told that its attachment ended
  bool pulling_ = false;
  size_t pulled_from_ = 0;           // the upstream of the last OpenPull
  std::optional<size_t> returning_;  // to which, as soon as the pull has ended
  bool cancelled_ = false;
  Thread prober_;
};

}  // namespace

std::unique_ptr<Upstream> MakeFailoverUpstream(std::vector<std::unique_ptr<Upstream>> upstreams,
                                               uint64_t seed, uint64_t relay,
                                               const UpstreamChoice::Times& times) {
  return std::make_unique<FailoverUpstream>(std::move(upstreams), seed, relay, times);
}

}  // namespace deltawire::receiver
