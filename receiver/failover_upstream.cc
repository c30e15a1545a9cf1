#include "receiver/failover_upstream.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "common/base/log.h"
#include "receiver/upstream_choice.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// Whether a call's failure is the upstream's: it cannot be reached, does not have what was asked
// for, or sent something else. A refusal is the receiver's own affair.
bool OfUpstream(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInternal(status) ||
         absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status);
}

class FailoverUpstream : public Upstream {
 public:
  FailoverUpstream(std::vector<std::unique_ptr<Upstream>> upstreams, uint64_t seed)
      : upstreams_(std::move(upstreams)),
        calls_(upstreams_.size()),
        choice_(upstreams_.size(), seed) {
    for (const auto& u : upstreams_) address_ += (address_.empty() ? "" : ",") + u->address();
    prober_ = Thread([this] { Probe(); });
  }

  ~FailoverUpstream() override {
    Cancel();
    prober_.join();
    Detach();
  }

  const std::string& address() const override { return address_; }

  StatusOr<ModelDescription> Describe(const std::string& model) override {
    const size_t now = Current();
    return Judged(now, [&] { return upstreams_[now]->Describe(model); });
  }
  StatusOr<Identity> Newest(const std::string& model) override {
    const size_t now = Current();
    return Judged(now, [&] { return upstreams_[now]->Newest(model); });
  }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    const size_t now = Current();
    return Judged(now, [&] { return upstreams_[now]->SideFiles(model, hash); });
  }
  StatusOr<PullGrant> OpenPull(const std::string& model, const PullWish& wish) override {
    const size_t now = Current();
    {
      std::lock_guard lock(mu_);
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
      model_ = model;
      if (seen_.empty()) seen_ = first.committed;
    }
    const Status attached = upstreams_[now]->Attach(
        model, first,
        [this, event = std::move(event)](const UpstreamEvent& e) {
          {
            std::lock_guard lock(mu_);
            if (attached_ == choice_.current()) choice_.Worked();
            if (!e.newest.empty()) seen_ = e.newest;
          }
          event(e);
        },
        [this, now, ended = std::move(ended)](const Status& why) {
          Fail(now, why);
          ended(why);
        });
    if (!attached.ok()) Fail(now, attached);
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
      pulling_ = false;
      from = pulled_from_;
      back = std::exchange(returning_, std::nullopt);
    }
    if (!status.ok() && OfUpstream(status)) return Leave(from, status);
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
  size_t Current() {
    std::lock_guard lock(mu_);
    return choice_.current();
  }

  template <typename Call>
  std::invoke_result_t<Call> Judged(size_t upstream, Call call) {
    std::unique_lock turn(calls_[upstream]);
    auto answer = call();
    turn.unlock();
    if (!answer.ok() && OfUpstream(answer.status())) Leave(upstream, answer.status());
    return answer;
  }

  /// Notes the failure; true when another upstream is the current one now.
  bool Fail(size_t upstream, const Status& why) {
    std::lock_guard lock(mu_);
    if (cancelled_ || upstream != choice_.current()) return false;
    choice_.Failed(upstream, Clock::now());
    cv_.notify_all();
    const size_t next = choice_.current();
    if (next == upstream) return false;
    LogInfo("model {}: from {} to {}: {}", model_, upstreams_[upstream]->address(),
            upstreams_[next]->address(), MessageOf(why));
    return true;
  }

  /// The same, and ends the attachment, so that the replica attaches to the current one.
  void Leave(size_t upstream, const Status& why) {
    if (Fail(upstream, why)) upstreams_[upstream]->Detach();
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

  /// Leaves an upstream that works but is behind the last one for long. REQUIRES: mu_ held by
  /// `lock`, which is released meanwhile.
  void CompareIfDue(std::unique_lock<Mutex>& lock) {
    const auto asked = choice_.Compare(Clock::now());
    if (!asked) return;
    const Identity seen = seen_;
    const std::string model = model_;
    lock.unlock();
    std::unique_lock turn(calls_[*asked]);
    const auto newest = upstreams_[*asked]->Newest(model);
    turn.unlock();
    lock.lock();
    // Between two lineages numbers cannot be compared; another one is the trainer's new beginning.
    const bool newer = newest.ok() && !newest->empty() && !seen.empty() &&
                       (!(newest->lineage == seen.lineage) || IsLater(*newest, seen));
    const size_t current = choice_.current();
    if (!choice_.Compared(newer, seen, Clock::now())) return;
    lock.unlock();
    Leave(current, Errorf(StatusCode::kUnavailable, "{} has {}, which is not to be had here",
                          upstreams_[*asked]->address(), ToString(*newest)));
    lock.lock();
  }

  void Probe() {
    std::unique_lock lock(mu_);
    while (!cancelled_) {
      if (!model_.empty()) CompareIfDue(lock);
      if (cancelled_) return;
      const auto asked = model_.empty() || returning_ ? std::nullopt : choice_.Probe(Clock::now());
      if (!asked) {
        const auto next = model_.empty() || returning_
                              ? Clock::time_point::max()
                              : std::min(choice_.NextProbe(), choice_.NextCompare());
        if (next == Clock::time_point::max()) {
          cv_.wait_for(lock, std::chrono::milliseconds(500));
        } else {
          cv_.wait_for(lock, std::max<Clock::duration>(next - Clock::now(), Clock::duration(0)));
        }
        continue;
      }
      const std::string model = model_;
      lock.unlock();
      std::unique_lock turn(calls_[*asked]);
      const auto newest = upstreams_[*asked]->Newest(model);
      turn.unlock();
      lock.lock();
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
  std::string address_;
  std::vector<Mutex> calls_;  // of each upstream, which takes one call at a time
  Mutex mu_;
  CondVar cv_;
  UpstreamChoice choice_;
  std::string model_;    // empty: nothing was attached yet
  Identity seen_;        // the newest state that the upstream in use has told of
  size_t attached_ = 0;  // the upstream of the last attachment
  bool pulling_ = false;
  size_t pulled_from_ = 0;           // the upstream of the last OpenPull
  std::optional<size_t> returning_;  // to which, as soon as the pull has ended
  bool cancelled_ = false;
  Thread prober_;
};

}  // namespace

std::unique_ptr<Upstream> MakeFailoverUpstream(std::vector<std::unique_ptr<Upstream>> upstreams,
                                               uint64_t seed) {
  return std::make_unique<FailoverUpstream>(std::move(upstreams), seed);
}

}  // namespace deltawire::receiver
