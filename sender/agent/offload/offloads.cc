#include "sender/agent/offload/offloads.h"

#include <algorithm>
#include <utility>

#include "common/base/attempt.h"
#include "common/base/call_end.h"
#include "common/base/checksum.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire::sender {
namespace {

// The interval at which a waiting call checks whether its caller has gone. Other events wake it.
constexpr std::chrono::milliseconds kGoneSlice{50};

/// Agents that roll back to the same version of the same attempt get the same result, so that a
/// receiver can put their parts together.
uint64_t RollbackAttempt(const Identity& target, uint64_t epoch) {
  std::byte text[16];
  StoreLe<uint64_t>(text, target.attempt);
  StoreLe<uint64_t>(text + 8, epoch);
  return std::max<uint64_t>(1, Xxh3(text));
}

}  // namespace

Offloads::Offloads(ModelStates& states, const SenderOptions& options, uint64_t first_lease)
    : states_(states),
      diff_(states, options),
      session_({states.name(), !states.owned().all(), options.offload_timeout}, states.layout(),
               states.chunks(), states.owned(), first_lease) {}

Identity Offloads::Newest() const {
  const auto newest = states_.published();
  return newest == nullptr ? Identity{} : newest->info.identity;
}

void Offloads::TidyAfterSession() {
  diff_.CancelUnless(session_.current().lease);
  cv_.notify_all();
}

// Ranks ---------------------------------------------------------------------------------------

StatusOr<OffloadGrant> Offloads::Begin(const OffloadRequest& request, const Gone& gone) {
  const uint64_t drawn = DrawAttempt();
  OffloadSession::Begun begun;
  {
    MutexLock lock(mu_);
    while (true) {
      if (!stopped_.ok()) return stopped_;
      auto next = session_.Begin(request, Newest(), drawn, SteadyClock::now());
      if (!next.ok()) {
        TidyAfterSession();
        lock.unlock();
        listeners_.Call();  // the refused client may have left an older offload
        return next.status();
      }
      begun = *next;
      if (begun.next != OffloadSession::Next::kWait) break;
      // No TidyAfterSession here: waiting ranks would wake each other over and over.
      if (gone()) return CallerGone();
      cv_.wait_for(lock, kGoneSlice);
    }
    TidyAfterSession();
  }
  listeners_.Call();  // an older offload may be over
  // A client that begins anew has abandoned its earlier offload.
  states_.halves().EndWritersOf(request.client, request.rank);
  if (begun.next == OffloadSession::Next::kDrain) {
    const uint32_t half = states_.InactiveHalf();
    double waited = 0;
    const Status ready = diff_.Prepare(half, &waited);
    MutexLock lock(mu_);
    session_.FinishDrain(begun.lease, ready, waited, SteadyClock::now());
    const StateId next = states_.NextState(request.version);
    if (ready.ok()) {
      Identity incoming;
      if (diff_.MaySendEarly()) {
        incoming = {states_.halves().lineage(), next, 0, session_.current().attempt};
      }
      diff_.Begin(half, begun.lease, incoming);
    }
    if (session_.writing(begun.lease)) {
      LogInfo("model {}: {}: rank {} of {} begins to write, after {} for its half {}",
              states_.name(), ToString(next), request.rank, request.world, HumanSeconds(waited),
              ToString(TraceOf(request.version, session_.current().attempt)));
    }
    TidyAfterSession();
    if (!ready.ok()) {
      lock.unlock();
      listeners_.Call();  // it has ended the offload
      return ready;
    }
  }
  auto grant = Grant(request, begun.lease, gone);
  // A rank whose caller has gone ends the offload, for which the other ranks wait.
  if (!grant.ok()) listeners_.Call();
  return grant;
}

StatusOr<OffloadGrant> Offloads::Grant(const OffloadRequest& request, uint64_t lease,
                                       const Gone& gone) {
  MutexLock lock(mu_);
  if (!session_.writing(lease)) {
    // Another rank has ended the offload since.
    const auto over = session_.IsReady(lease, request.rank);
    return over.ok() ? Stopping("sender") : over.status();
  }
  if (gone()) {
    session_.EndAttend(lease, request.rank, true, SteadyClock::now());
    TidyAfterSession();
    return CallerGone();
  }
  Halves& halves = states_.halves();
  const uint32_t half = states_.InactiveHalf();
  halves.AddWriter(half, {lease, request.rank, request.client, request.publisher});
  return OffloadGrant{.half_path = halves.path(half),
                      .data_offset = halves.data_offset(),
                      .waited_seconds = session_.waited_seconds(),
                      .lease = lease,
                      .attempt = session_.current().attempt,
                      .published = Newest(),
                      .takes_payloads = diff_.TakesPayloads()};
}

Status Offloads::Attend(uint64_t lease, uint32_t rank) {
  MutexLock lock(mu_);
  return session_.Attend(lease, rank);
}

StatusOr<bool> Offloads::IsReady(uint64_t lease, uint32_t rank) const {
  MutexLock lock(mu_);
  return IsReadyNow(lease, rank);
}

StatusOr<bool> Offloads::IsReadyNow(uint64_t lease, uint32_t rank) const {
  if (!stopped_.ok()) return stopped_;
  return session_.IsReady(lease, rank);
}

void Offloads::EndAttend(uint64_t lease, uint32_t rank) {
  {
    MutexLock lock(mu_);
    const auto ready = IsReadyNow(lease, rank);
    session_.EndAttend(lease, rank, ready.ok() && !*ready, SteadyClock::now());
    TidyAfterSession();
  }
  listeners_.Call();
}

void Offloads::AddClient(uint64_t client) {
  MutexLock lock(mu_);
  session_.AddClient(client);
}

void Offloads::RemoveClient(uint64_t client) {
  {
    MutexLock lock(mu_);
    session_.RemoveClient(client, SteadyClock::now());
    TidyAfterSession();
  }
  listeners_.Call();
}

Status Offloads::Abandon(uint64_t lease, uint32_t rank, const std::string& reason) {
  states_.halves().EndWriter(lease, rank);
  Status done;
  {
    MutexLock lock(mu_);
    done = session_.Abandon(lease, rank, reason);
    TidyAfterSession();
  }
  listeners_.Call();
  return done;
}

Status Offloads::MarkWritten(uint64_t lease, const WrittenNotice& notice) {
  StatusOr<OffloadSession::Final> final;
  {
    MutexLock lock(mu_);
    final = session_.MarkWritten(lease, notice);
    // Under the lock, so that the last rank is not ready before.
    if (final.ok()) diff_.AddPayloads(lease, notice.payloads);
    TidyAfterSession();
  }
  if (!final.ok()) {
    listeners_.Call();  // the offload may be over
    return final.status();
  }
  diff_.MarkWritten(lease, *final);
  return absl::OkStatus();
}

StatusOr<bool> Offloads::MarkReady(const ReadyNotice& notice) {
  StatusOr<bool> last;
  {
    MutexLock lock(mu_);
    const TraceId trace = TraceOf(notice.version, session_.current().attempt);
    const auto granted = session_.granted();
    last = session_.MarkReady(notice, Newest());
    if (last.ok() && *last) {
      LogInfo("model {}: {}: written by {}, in {} {}", states_.name(),
              ToString(states_.NextState(notice.version)),
              notice.world == 1 ? "its rank" : fmt::format("all {} ranks", notice.world),
              HumanSeconds(SecondsSince(granted)), ToString(trace));
    }
    if (last.ok()) diff_.NoteTrainerDiff(notice.diffed_on);
    // The rank writes no more, even if this call fails.
    states_.halves().EndWriter(notice.lease, notice.rank);
    TidyAfterSession();
  }
  listeners_.Call();
  return last;
}

void Offloads::CountWaiters(uint64_t lease, int change) {
  MutexLock lock(mu_);
  session_.CountWaiters(lease, change);
}

std::optional<StatusOr<VersionInfo>> Offloads::Outcome(uint64_t version, uint64_t lease,
                                                       uint64_t attempt) const {
  MutexLock lock(mu_);
  const auto newest = states_.published();
  auto outcome = session_.Outcome(version, lease, newest ? newest->info : VersionInfo{}, attempt);
  if (!outcome && !stopped_.ok()) outcome = stopped_;
  return outcome;
}

// The publisher -------------------------------------------------------------------------------

std::optional<WrittenHalf> Offloads::AwaitWritten(SteadyClock::time_point until) {
  constexpr auto kNever = SteadyClock::time_point::max();
  MutexLock lock(mu_);
  while (stopped_.ok()) {
    const auto now = SteadyClock::now();
    if (session_.phase() == OffloadPhase::kPublishing && session_.current().lease != 0) {
      return WrittenHalf{.half = states_.InactiveHalf(),
                         .to = states_.NextState(session_.current().version),
                         .attempt = session_.current().attempt,
                         .offload_seconds = SecondsSince(session_.granted()),
                         .waited_seconds = session_.waited_seconds(),
                         .unchanged = session_.unchanged(),
                         .side_files = states_.home().side_files().next(),
                         .job = diff_.job()};
    }
    if (session_.Expire(now)) {
      TidyAfterSession();
      lock.unlock();
      listeners_.Call();
      lock.lock();
    } else if (const auto stale = diff_.incoming().Stale(session_.current().lease)) {
      lock.unlock();
      diff_.incoming().Discard(stale);
      lock.lock();
    } else if (now >= until) {
      break;
    } else if (const auto next = std::min(until, session_.deadline().value_or(kNever));
               next == kNever) {
      cv_.wait(lock);
    } else {
      cv_.wait_until(lock, next);
    }
  }
  return std::nullopt;
}

StatusOr<WrittenHalf> Offloads::RollBack(uint64_t version) {
  const auto start = SteadyClock::now();
  Identity target;
  WrittenHalf out{.half = states_.InactiveHalf(), .rollback = true};
  {
    MutexLock lock(mu_);
    DW_ASSIGN_OR_RETURN(target, states_.store().Reach(version));
    out.to = {Newest().id.epoch + 1, version};
    out.attempt = RollbackAttempt(target, out.to.epoch);
    DW_RETURN_IF_ERROR(session_.BeginRollback(version, out.attempt, start));
    TidyAfterSession();
  }
  listeners_.Call();  // an offload may be over
  LogInfo("model {}: {}: rolling back to {} {}", states_.name(), ToString(out.to), ToString(target),
          ToString(TraceOf(version, out.attempt)));
  Status undone = diff_.Prepare(out.half, &out.waited_seconds);
  if (undone.ok()) {
    const LeasedState base = states_.Lease();
    undone = states_.UndoInto(out.half, *base.state, target);
  }
  const auto was = undone.ok() ? states_.At(target) : undone;
  if (!was.ok()) {
    FailPublish(was.status());
    return was.status();
  }
  diff_.Begin(out.half, 0, {});
  out.unchanged.resize(states_.layout().size());
  out.side_files = (*was)->side_files;
  out.job = diff_.job();
  out.offload_seconds = SecondsSince(start);
  return out;
}

void Offloads::MarkPublished(std::shared_ptr<Published> state, std::shared_ptr<const Delta> delta) {
  const VersionInfo info = state->info;
  std::shared_ptr<IncomingVersion> incoming;
  std::shared_ptr<const Published> settled;
  {
    MutexLock lock(mu_);
    states_.store().Install(std::move(state), std::move(delta));
    session_.MarkPublished(info);
    incoming = diff_.Finish();
    settled = states_.published();
    TidyAfterSession();
  }
  listeners_.Call();
  if (incoming != nullptr) diff_.incoming().Settle(*incoming, std::move(settled));
}

void Offloads::FailPublish(const Status& why) {
  {
    MutexLock lock(mu_);
    session_.FailPublish(why);
    TidyAfterSession();
  }
  listeners_.Call();
}

// State ---------------------------------------------------------------------------------------

bool Offloads::stopped() const {
  MutexLock lock(mu_);
  return !stopped_.ok();
}

bool Offloads::idle() const {
  MutexLock lock(mu_);
  return session_.phase() == OffloadPhase::kIdle;
}

std::shared_ptr<IncomingVersion> Offloads::incoming() const {
  MutexLock lock(mu_);
  return diff_.incoming().Announced(session_.current().lease);
}

uint64_t Offloads::version() const {
  MutexLock lock(mu_);
  return session_.current().version;
}

uint64_t Offloads::abandoned() const {
  MutexLock lock(mu_);
  return session_.abandoned();
}

void Offloads::Stop(const Status& why) {
  states_.halves().Stop(why);
  {
    MutexLock lock(mu_);
    if (stopped_.ok()) stopped_ = why;
    cv_.notify_all();
  }
  listeners_.Call();
}

Status Offloads::StopIfFree(const Status& why) {
  {
    MutexLock lock(mu_);
    DW_RETURN_IF_ERROR(session_.CheckUndisturbed(SteadyClock::now(),
                                                 "unregister when it is published or abandoned"));
    if (stopped_.ok()) stopped_ = why;
  }
  Stop(why);
  return absl::OkStatus();
}

}  // namespace deltawire::sender
