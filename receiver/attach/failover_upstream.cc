#include "receiver/attach/failover_upstream.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// The number of left lineages that are remembered. Each restart of a trainer from scratch adds one.
constexpr size_t kMostLeft = 64;

// Whether a call's failure is the upstream's fault: it cannot be reached, lacks the requested
// state, or sent another one. kAborted is no fault: the upstream asks for another try.
bool IsFaultOfUpstream(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInternal(status) ||
         absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status);
}

// Whether an attachment ended because the upstream is a relay whose first pull still runs. Its
// leaves wait for it: if all of them went to another upstream, each would cross the uplink.
bool AsksForPatience(const Status& status) { return absl::IsAborted(status); }

/// One of the upstreams, with its record.
struct Peer {
  bool called = false;  // a call of it runs
  Hash128 told;         // the lineage that it named last; zero: none
  Status why_left;      // the reason that the replica gets when the attachment to it ends
  // The last member, so that it is destroyed first: its destructor's callbacks use the others.
  std::unique_ptr<Upstream> upstream;
  const std::string& address() const { return upstream->address(); }
};

class ChosenUpstream : public FailoverUpstream {
 public:
  ChosenUpstream(std::vector<std::unique_ptr<Upstream>> upstreams, uint64_t seed, uint64_t relay,
                 const UpstreamChoice::Times& times)
      : relay_(relay),
        choice_(upstreams.size(), seed, times),
        patient_until_(Clock::now() + times.start_patience) {
    for (auto& upstream : upstreams) peers_.push_back(NewPeer(std::move(upstream)));
    for (const auto& peer : peers_) address_ += (address_.empty() ? "" : ",") + peer->address();
    attached_ = peers_.front();
    prober_ = Thread([this] { RunProber(); });
  }

  ~ChosenUpstream() override {
    Cancel();
    prober_.join();
    Detach();
  }

  const std::string& address() const override { return address_; }
  std::string in_use() const override {
    std::lock_guard lock(mu_);
    return Chosen()->address();
  }
  double round_trip() const override {
    std::lock_guard lock(mu_);
    return Chosen()->upstream->round_trip();
  }

  StatusOr<ModelDescription> Describe(const std::string& model) override {
    const PeerPtr now = Current();
    return Judge(now, [&]() -> StatusOr<ModelDescription> {
      DW_ASSIGN_OR_RETURN(ModelDescription d, now->upstream->Describe(model));
      std::lock_guard lock(mu_);
      // The old lineage may have another layout, for which the buffer would be discarded.
      if (WasLeft(d.lineage)) return BehindError(*now, Identity{.lineage = d.lineage});
      return d;
    });
  }
  StatusOr<Identity> Newest(const std::string& model) override {
    const PeerPtr now = Current();
    return Judge(now, [&]() -> StatusOr<Identity> {
      DW_ASSIGN_OR_RETURN(const Identity newest, now->upstream->Newest(model));
      std::lock_guard lock(mu_);
      if (WasLeft(newest.lineage)) return BehindError(*now, newest);
      return newest;
    });
  }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    const PeerPtr now = Current();
    return Judge(now, [&] { return now->upstream->SideFiles(model, hash); });
  }
  StatusOr<PullGrant> OpenPull(const PullRequest& request) override {
    PeerPtr now;
    {
      std::lock_guard lock(mu_);
      now = Chosen();
      // Until an upstream has named its newest state, that may be of a lineage that was left.
      if (heard_ != now.get()) {
        return Errorf(StatusCode::kUnavailable, "sender {}: not attached to it yet",
                      now->address());
      }
      pulling_ = true;
      pulled_from_ = now;
    }
    return Judge(now, [&] { return now->upstream->OpenPull(request); });
  }

  Status Attach(const std::string& model, const ReceiverReport& first,
                std::function<void(const SenderEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    PeerPtr now, before;  // `before` may be its last reference, which must not go under the lock
    decltype(refused_) refused;
    {
      std::lock_guard lock(mu_);
      now = Chosen();
      before = std::exchange(attached_, now);
      heard_ = nullptr;
      refused = std::exchange(refused_, std::nullopt);
      now->why_left = absl::OkStatus();
      model_ = model;
      if (seen_.empty()) seen_ = first.committed;
    }
    // The callbacks may use `peer` as a plain pointer: the upstream keeps them, and the peer owns
    // the upstream.
    const Status attached = now->upstream->Attach(
        model, first,
        [this, peer = now.get(), event = std::move(event)](const SenderEvent& e) {
          if (!TakeEvent(*peer, e)) return;
          if (MayPassOn(e.incoming)) return event(e);
          SenderEvent without = e;
          without.incoming = {};
          event(without);
        },
        [this, peer = now.get(), ended = std::move(ended)](const Status& why) {
          Status left;
          {
            std::lock_guard lock(mu_);
            if (heard_ == peer) heard_ = nullptr;
            left = peer->why_left;
          }
          if (!AsksForPatience(why)) Fail(*peer, UpstreamChoice::Failure::kGone, why);
          ended(left.ok() ? why : left);
        });
    if (!attached.ok() && !AsksForPatience(attached)) {
      Fail(*now, UpstreamChoice::Failure::kGone, attached);
    } else if (Current() != now) {
      // Another thread has left this upstream, and found no attachment to end.
      now->upstream->Detach();
    }
    return attached;
  }

  void Send(const ReceiverReport& report) override { Attached()->upstream->Send(report); }

  void Detach() override { Attached()->upstream->Detach(); }

  void NotePullEnd(const Status& status) override {
    PeerPtr back, from;
    {
      std::lock_guard lock(mu_);
      if (!std::exchange(pulling_, false)) return;  // the pull was never opened
      from = std::exchange(pulled_from_, nullptr);
      back = std::exchange(returning_, nullptr);
      const auto place = PlaceOf(*from);
      if (status.ok() && place) choice_.NoteSuccess(*place);
    }
    if (!status.ok() && IsFaultOfUpstream(status)) {
      Leave(from, UpstreamChoice::Failure::kBadWork, status);
    } else if (back != nullptr) {
      Return(back);
    }
    std::lock_guard lock(mu_);
    ReorderIfDue();
    cv_.notify_all();
  }

  void Prefer(const std::vector<std::string>& addresses, const Make& make) override {
    std::vector<PeerPtr> known;
    {
      std::lock_guard lock(mu_);
      known = peers_;
      known.insert(known.end(), preferred_.begin(), preferred_.end());
    }
    std::vector<PeerPtr> preferred;
    for (const std::string& address : addresses) {
      const auto same =
          std::ranges::find(known, address, [](const auto& p) { return p->address(); });
      preferred.push_back(same == known.end() ? NewPeer(make(address)) : *same);
    }
    std::lock_guard lock(mu_);
    if (cancelled_) return;
    retired_.insert(retired_.end(), preferred_.begin(), preferred_.end());
    preferred_ = std::move(preferred);
    ReorderIfDue();
    cv_.notify_all();
  }

  void Cancel() override {
    std::vector<PeerPtr> all;
    {
      std::lock_guard lock(mu_);
      cancelled_ = true;
      cv_.notify_all();
      all = peers_;
      all.insert(all.end(), preferred_.begin(), preferred_.end());
      all.insert(all.end(), retired_.begin(), retired_.end());
      all.push_back(attached_);
    }
    for (const auto& peer : all) peer->upstream->Cancel();
  }

 private:
  using PeerPtr = std::shared_ptr<Peer>;

  /// An upstream takes one call at a time. No lock is held while it runs.
  class Turn {
   public:
    Turn(ChosenUpstream& owner, Peer& peer) : owner_(owner), peer_(peer) {
      std::unique_lock lock(owner_.mu_);
      owner_.cv_.wait(lock, [&] { return !peer_.called; });
      peer_.called = true;
    }
    ~Turn() {
      std::lock_guard lock(owner_.mu_);
      peer_.called = false;
      owner_.cv_.notify_all();
    }
    Turn(const Turn&) = delete;

   private:
    ChosenUpstream& owner_;
    Peer& peer_;
  };

  static PeerPtr NewPeer(std::unique_ptr<Upstream> upstream) {
    auto peer = std::make_shared<Peer>();
    peer->upstream = std::move(upstream);
    return peer;
  }

  PeerPtr Current() const {
    std::lock_guard lock(mu_);
    return Chosen();
  }
  PeerPtr Attached() const {
    std::lock_guard lock(mu_);
    return attached_;
  }

  template <typename Call>
  std::invoke_result_t<Call> Judge(const PeerPtr& peer, Call call) {
    auto answer = [&] {
      const Turn turn(*this, *peer);
      return call();
    }();
    if (!answer.ok() && IsFaultOfUpstream(answer.status())) {
      Leave(peer, UpstreamChoice::Failure::kBadWork, answer.status());
    }
    return answer;
  }

  // REQUIRES (here and for the next ones, until TakeEvent): mu_ held.
  const PeerPtr& Chosen() const { return peers_[choice_.current()]; }

  /// Returns nullopt if it is no longer one of the upstreams.
  std::optional<size_t> PlaceOf(const Peer& peer) const {
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i].get() == &peer) return i;
    }
    return std::nullopt;
  }

  bool WasLeft(const Hash128& lineage) const {
    return std::ranges::find(left_, lineage) != left_.end();
  }

  Status BehindError(const Peer& peer, const Identity& newest) const {
    return Errorf(StatusCode::kUnavailable,
                  "{} still has {} of lineage {}, which was left for lineage {}: it is behind (a "
                  "restart of this receiver takes it)",
                  peer.address(), ToString(newest), newest.lineage.Hex(), seen_.lineage.Hex());
  }

  /// Whether an incoming version may be passed on. REQUIRES: mu_ not held.
  bool MayPassOn(const IncomingNews& incoming) const {
    if (incoming.version.empty()) return true;
    std::lock_guard lock(mu_);
    return !WasLeft(incoming.version.lineage);
  }

  /// Notes the newest state that `from` names. Returns an error if it must not be pulled.
  Status NoteNewest(Peer& from, const SenderEvent& e) {
    if (relay_ != 0 && std::ranges::find(e.relay.path, relay_) != e.relay.path.end()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "{} gets its versions from this relay: a circle of relays; name the sender, or "
                    "a relay nearer to it, first",
                    from.address());
    }
    const Identity& newest = e.newest.identity;
    if (newest.empty()) return absl::OkStatus();
    // An upstream that changes from one lineage to another shows which of the two is later. If the
    // first was left, too, the second may still be older than the one that is followed.
    const Hash128 before = std::exchange(from.told, newest.lineage);
    const bool later = !(before == Hash128{}) && !(before == newest.lineage) && !WasLeft(before);
    if (later) std::erase(left_, newest.lineage);
    if (WasLeft(newest.lineage)) return BehindError(from, newest);
    if (!seen_.empty() && !(seen_.lineage == newest.lineage)) left_.push_back(seen_.lineage);
    if (left_.size() > kMostLeft) left_.erase(left_.begin());
    const bool news = !(seen_ == newest) || !(e.relay == relay_news_) || e.relay.applying;
    if (news) ++news_;
    seen_ = newest;
    relay_news_ = e.relay;
    return absl::OkStatus();
  }

  /// Whether an event of an attachment to `from` is passed on to the replica.
  bool TakeEvent(Peer& from, const SenderEvent& e) {
    std::lock_guard lock(mu_);
    // An upstream that was left sends events until its attachment is ended.
    if (PlaceOf(from) != choice_.current()) return false;
    const Status noted = NoteNewest(from, e);
    if (noted.ok()) {
      heard_ = &from;
      return true;
    }
    // This is called by the attachment, so another thread has to end it.
    refused_ = {peers_[choice_.current()], noted};
    cv_.notify_all();
    return false;
  }

  /// Notes the failure. Returns true if another upstream is the current one now.
  bool Fail(Peer& peer, UpstreamChoice::Failure failure, const Status& why) {
    std::lock_guard lock(mu_);
    if (cancelled_ || Chosen().get() != &peer) return false;
    const bool unreachable = absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why);
    if (unreachable && seen_.empty() && Clock::now() < patient_until_) return false;
    choice_.NoteFailure(choice_.current(), failure, Clock::now());
    peer.why_left = why;
    cv_.notify_all();
    if (Chosen().get() == &peer) return false;
    LogInfo("model {}: from {} to {}: {}", model_, peer.address(), Chosen()->address(),
            MessageOf(why));
    return true;
  }

  /// Does the same, and ends the attachment, so that the replica attaches to the current one.
  void Leave(const PeerPtr& peer, UpstreamChoice::Failure failure, const Status& why) {
    if (Fail(*peer, failure, why)) peer->upstream->Detach();
  }

  void Return(const PeerPtr& peer) {
    PeerPtr from;
    {
      std::lock_guard lock(mu_);
      from = Chosen();
      const auto place = PlaceOf(*peer);
      if (cancelled_ || !place || *place >= choice_.current()) return;
      choice_.Return(*place);
      LogInfo("model {}: back to {}, which works again", model_, peer->address());
    }
    from->upstream->Detach();
  }

  /// Applies the order given to Prefer, unless a pull from the current one runs. REQUIRES: mu_
  /// held.
  void ReorderIfDue() {
    if (preferred_.empty() || (pulling_ && pulled_from_ == Chosen())) return;
    const PeerPtr before = Chosen();
    const std::vector<PeerPtr> known = std::exchange(peers_, std::exchange(preferred_, {}));
    std::vector<std::optional<size_t>> former;
    for (const PeerPtr& peer : peers_) {
      const auto at = std::ranges::find(known, peer);
      former.push_back(at == known.end() ? std::nullopt : std::optional(at - known.begin()));
    }
    retired_.insert(retired_.end(), known.begin(), known.end());
    choice_.Reorder(former, Clock::now());
    returning_ = nullptr;
    if (Chosen() == before) return;
    LogInfo("model {}: told to follow {}, after {}", model_, Chosen()->address(),
            before->address());
    before->why_left = absl::CancelledError("told to follow " + Chosen()->address());
    if (heard_ == before.get()) heard_ = nullptr;
    left_peers_.push_back(before);
  }

  /// Ends the attachments to upstreams that were left for a new order, and destroys those that are
  /// not in it. REQUIRES: as for Ask.
  void DropLeft(std::unique_lock<Mutex>& lock) {
    if (left_peers_.empty() && retired_.empty()) return;
    const auto left = std::exchange(left_peers_, {});
    auto retired = std::exchange(retired_, {});
    lock.unlock();
    for (const PeerPtr& peer : left) peer->upstream->Detach();
    retired.clear();  // a peer is destroyed when the last call that uses it has returned
    lock.lock();
  }

  /// Asks an upstream for its newest state. REQUIRES: mu_ held by `lock`, which is released
  /// meanwhile.
  StatusOr<Identity> Ask(const PeerPtr& peer, std::unique_lock<Mutex>& lock) {
    const std::string model = model_;
    lock.unlock();
    auto newest = [&] {
      const Turn turn(*this, *peer);
      return peer->upstream->Newest(model);
    }();
    lock.lock();
    return newest;
  }

  /// Leaves an upstream that works but stays behind the last one. REQUIRES: as for Ask.
  void CompareIfDue(std::unique_lock<Mutex>& lock) {
    const auto place = choice_.NextToCompare(Clock::now());
    if (!place) return;
    const PeerPtr asked = peers_[*place];
    const uint64_t news = news_;
    const Identity seen = seen_;
    const auto newest = Ask(asked, lock);
    // Versions of two lineages cannot be compared. A lineage that was not left before means that
    // the trainer has begun again, and counts as newer.
    const bool newer =
        newest.ok() && !newest->empty() &&
        (newest->lineage == seen.lineage ? IsLater(*newest, seen) : !WasLeft(newest->lineage));
    const PeerPtr current = Chosen();
    if (!choice_.NoteComparison(newer, news, Clock::now())) return;
    lock.unlock();
    Leave(current, UpstreamChoice::Failure::kGone,
          Errorf(StatusCode::kUnavailable, "{} has {}, which this upstream lacks", asked->address(),
                 ToString(*newest)));
    lock.lock();
  }

  /// Leaves the upstream whose event was refused. REQUIRES: as for Ask.
  void LeaveRefused(std::unique_lock<Mutex>& lock) {
    const auto refused = std::exchange(refused_, std::nullopt);
    if (!refused) return;
    lock.unlock();
    Leave(refused->first, UpstreamChoice::Failure::kBadWork, refused->second);
    lock.lock();
  }

  void Wait(std::unique_lock<Mutex>& lock) {
    const auto next = model_.empty() || returning_ != nullptr
                          ? Clock::time_point::max()
                          : std::min(choice_.NextProbeTime(), choice_.NextCompareTime());
    if (next == Clock::time_point::max()) {
      cv_.wait_for(lock, std::chrono::milliseconds(500));
    } else {
      cv_.wait_for(lock, std::max<Clock::duration>(next - Clock::now(), Clock::duration(0)));
    }
  }

  void RunProber() {
    std::unique_lock lock(mu_);
    while (!cancelled_) {
      LeaveRefused(lock);
      ReorderIfDue();
      DropLeft(lock);
      if (!cancelled_ && !model_.empty()) CompareIfDue(lock);
      if (cancelled_) return;
      const auto place = model_.empty() || returning_ != nullptr
                             ? std::nullopt
                             : choice_.NextToProbe(Clock::now());
      if (!place) {
        if (!refused_ && left_peers_.empty()) Wait(lock);
        continue;
      }
      const PeerPtr asked = peers_[*place];
      const auto newest = Ask(asked, lock);
      // An upstream that is behind would have nothing to pull for a while.
      const bool well =
          newest.ok() && !newest->empty() &&
          (seen_.empty() || (newest->lineage == seen_.lineage && !IsLater(seen_, *newest)));
      const auto still = PlaceOf(*asked);
      if (!still || !choice_.NoteProbe(*still, well, Clock::now())) continue;
      if (pulling_) {
        returning_ = asked;
        continue;
      }
      lock.unlock();
      Return(asked);
      lock.lock();
    }
  }

  const uint64_t relay_;
  std::string address_;
  mutable Mutex mu_;
  CondVar cv_;
  std::vector<PeerPtr> peers_;       // in order of preference
  std::vector<PeerPtr> preferred_;   // the next order, until the running pull has ended
  std::vector<PeerPtr> left_peers_;  // their attachments are to be ended
  std::vector<PeerPtr> retired_;     // the prober destroys them, without the lock
  UpstreamChoice choice_;            // its numbers are places in peers_
  const Clock::time_point patient_until_;
  std::string model_;            // empty: nothing was attached yet
  Identity seen_;                // the newest state that the one in use has named
  std::vector<Hash128> left_;    // lineages that were left for others, the last one last
  RelayNews relay_news_;         // the last of the upstream in use
  uint64_t news_ = 0;            // counts its events that said something new
  PeerPtr attached_;             // the upstream of the last attachment
  const Peer* heard_ = nullptr;  // the same once it has named a state that may be pulled
  std::optional<std::pair<PeerPtr, Status>> refused_;  // sent an event that was refused, and why
  bool pulling_ = false;
  PeerPtr pulled_from_;  // the upstream of the last OpenPull
  PeerPtr returning_;    // a preferred upstream to return to when the pull has ended
  bool cancelled_ = false;
  Thread prober_;
};

}  // namespace

std::unique_ptr<FailoverUpstream> MakeFailoverUpstream(
    std::vector<std::unique_ptr<Upstream>> upstreams, uint64_t seed, uint64_t relay,
    const UpstreamChoice::Times& times) {
  return std::make_unique<ChosenUpstream>(std::move(upstreams), seed, relay, times);
}

}  // namespace deltawire::receiver
