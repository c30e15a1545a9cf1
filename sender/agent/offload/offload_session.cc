#include "sender/agent/offload/offload_session.h"

#include <algorithm>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/shm/state_file.h"

namespace deltawire::sender {
namespace {

constexpr uint32_t kMaxWorld = 1 << 16;
constexpr size_t kMaxReason = 1024;
constexpr size_t kMaxJob = 256;

}  // namespace

OffloadSession::OffloadSession(Options options, const Layout& layout, const ChunkTable& chunks,
                               const Coverage& owned, uint64_t first_lease)
    : options_(std::move(options)),
      layout_(layout),
      chunks_(chunks),
      owned_(owned),
      next_lease_(std::max<uint64_t>(1, first_lease)) {}

// Beginning -----------------------------------------------------------------------------------

Status OffloadSession::CheckRequest(const OffloadRequest& r, const Identity& published) const {
  if (r.version == 0 || r.version == kVersionUnknown || r.world > kMaxWorld || r.world == 0 ||
      r.rank >= r.world) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\": version {}, rank {} of {}: versions start at 1, ranks at 0",
                  options_.model, r.version, r.rank, r.world);
  }
  if (options_.part && r.attempt == 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: this agent owns a part of the model, and an offload "
                  "without an attempt cannot be told from another one of the same version at the "
                  "other agents; let one rank draw a random number and give it to all",
                  options_.model, r.version);
  }
  if (r.job.size() > kMaxJob) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: the job's name has {} bytes; use {} at most",
                  options_.model, r.version, r.job.size(), kMaxJob);
  }
  if (r.world > 1 && r.attempt == 0 && r.job.empty()) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "model \"{}\", version {}: rank {} of {} names neither its job nor an attempt, so "
        "it could join what a dead run of the job has left; give all ranks one job name, "
        "new at each start of the job (WeightManager(job=...), dw_client_set_job)",
        options_.model, r.version, r.rank, r.world);
  }
  if (r.version > published.id.version) return absl::OkStatus();
  if (r.again && r.version == published.id.version && !options_.part) return absl::OkStatus();
  if (r.version == published.id.version && options_.part) {
    // Another agent abandoned the version, so it is offloaded again, and this agent's part is
    // useless.
    if (r.attempt != published.attempt) return absl::OkStatus();
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": version {} is published already, from this very attempt; offload "
                  "it under another attempt, or a higher version",
                  options_.model, r.version);
  }
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\": version {} is not newer than the published {}; offload a higher "
                "version, or roll back first",
                options_.model, r.version, ToString(published.id));
}

bool OffloadSession::OutlivedReadyRank(const OffloadRequest& r) const {
  const uint64_t died = now_.ranks.died();
  return died != 0 && clients_.CameAfter(r.client, died);
}

Status OffloadSession::MayTakeOver(const OffloadRequest& r, Time now) const {
  const OffloadName& name = now_.name;
  const OffloadRanks::Rank* mine = now_.ranks.Find(r.rank);
  const bool begun = mine != nullptr;
  if (begun && r.client != 0 && mine->client == r.client) {
    return absl::OkStatus();  // the client itself has abandoned its earlier offload
  }
  const bool same_job = r.world == name.world && r.job == name.job;
  if (!begun && same_job && r.version != name.version) {
    if (r.version > name.version) return absl::OkStatus();
    // A late rank must not end the newer offload that the other ranks have begun.
    return Errorf(StatusCode::kAborted,
                  "model \"{}\": version {} was abandoned, and other ranks have begun version {}; "
                  "go on with that one",
                  options_.model, r.version, name.version);
  }
  const auto* holder = now_.ranks.Holder(now);
  if (holder == nullptr) return absl::OkStatus();
  std::string_view apart;
  if (r.version == name.version && r.world == name.world && !begun) {
    apart = OutlivedReadyRank(r) ? ", and of which a ready rank has died"
            : r.attempt != 0     ? ", under another attempt"
                                 : ", for another job";
  }
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\": version {} is being offloaded by {}, which began {} ago{}; rank {} "
                "of {}{} cannot begin version {} before that is published or abandoned",
                options_.model, name.version, now_.ranks.Describe(holder->first),
                HumanSeconds(std::chrono::duration<double>(now - holder->second.begun).count()),
                apart, r.rank, r.world,
                r.publisher.empty() ? "" : fmt::format(" ({})", r.publisher), r.version);
}

StatusOr<OffloadSession::Begun> OffloadSession::Begin(const OffloadRequest& request,
                                                      const Identity& published, uint64_t drawn,
                                                      Time now) {
  if (Status refused = CheckRequest(request, published); !refused.ok()) {
    // The client has left its earlier offload all the same. Else ranks that train that version anew
    // would complete it, and half of each training would be published.
    const OffloadRanks::Rank* mine = now_.ranks.Find(request.rank);
    if (phase_ == OffloadPhase::kWriting && mine != nullptr && request.client != 0 &&
        mine->client == request.client) {
      (void)End(
          Errorf(StatusCode::kAborted,
                 "model \"{}\": the offload of version {} was abandoned, because rank {} went "
                 "back to version {}",
                 options_.model, now_.name.version, request.rank, request.version));
    }
    return refused;
  }
  if (phase_ == OffloadPhase::kDraining || phase_ == OffloadPhase::kPublishing) return Begun{};
  if (phase_ == OffloadPhase::kWriting && now_.name.Matches(request) &&
      now_.ranks.Find(request.rank) == nullptr && !OutlivedReadyRank(request)) {
    now_.ranks.Add(request, now);
    return Begun{Next::kJoined, now_.name.lease};
  }
  DW_RETURN_IF_ERROR(ended_.MissedEnd(request));
  if (phase_ == OffloadPhase::kWriting) {
    DW_RETURN_IF_ERROR(MayTakeOver(request, now));
    (void)End(Errorf(StatusCode::kAborted,
                     "model \"{}\": the offload of version {} was abandoned with {} of {} ranks "
                     "ready, because rank {} began version {}",
                     options_.model, now_.name.version, now_.ranks.ready(), now_.name.world,
                     request.rank, request.version));
  }
  now_ = {.name = {.version = request.version,
                   .lease = next_lease_++,
                   .attempt = request.attempt == 0 ? drawn : request.attempt,
                   .job = request.job,
                   .world = request.world},
          .ranks = OffloadRanks(request.world)};
  now_.ranks.Add(request, now);
  phase_ = OffloadPhase::kDraining;
  return Begun{Next::kDrain, now_.name.lease};
}

void OffloadSession::FinishDrain(uint64_t lease, const Status& drained, double waited_seconds,
                                 Time now) {
  if (phase_ != OffloadPhase::kDraining || now_.name.lease != lease) return;
  if (!drained.ok()) {
    (void)End(drained);
    return;
  }
  now_.tally = std::make_unique<WrittenTally>(
      WrittenTally::Offload{options_.model, now_.name.version, now_.name.world}, layout_, chunks_,
      owned_);
  now_.waited = waited_seconds;
  now_.granted = now;
  phase_ = OffloadPhase::kWriting;
  if (const auto* gone = now_.ranks.Grant(now)) (void)EndAsGone(*gone, now);
}

// Attending -----------------------------------------------------------------------------------

Status OffloadSession::WhyOver(uint64_t lease) const {
  if (const auto* ended = ended_.Find(lease); ended != nullptr && !ended->why.ok()) {
    return ended->why;
  }
  return Errorf(StatusCode::kAborted,
                "model \"{}\": that offload is not under way (it was abandoned, or published); "
                "begin a new one",
                options_.model);
}

Status OffloadSession::Attend(uint64_t lease, uint32_t rank) {
  if (!writing(lease)) return WhyOver(lease);
  OffloadRanks::Rank* state = now_.ranks.Find(rank);
  if (state == nullptr) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} has not begun it", options_.model,
                  now_.name.version, rank);
  }
  state->attended = true;
  ++state->attending;
  return absl::OkStatus();
}

StatusOr<bool> OffloadSession::IsReady(uint64_t lease, uint32_t rank) const {
  if (lease == 0 || now_.name.lease != lease) {
    if (const auto* ended = ended_.Find(lease); ended != nullptr && ended->why.ok()) return true;
    return WhyOver(lease);
  }
  const OffloadRanks::Rank* state = now_.ranks.Find(rank);
  return state != nullptr && state->ready;
}

void OffloadSession::EndAttend(uint64_t lease, uint32_t rank, bool gone, Time now) {
  if (!writing(lease)) return;
  OffloadRanks::Rank* state = now_.ranks.Find(rank);
  if (state == nullptr) return;
  if (state->attending > 0) --state->attending;
  if (!gone || state->ready || state->attending > 0) return;
  (void)EndAsGone({rank, *state}, now);
}

Status OffloadSession::EndAsGone(const OffloadRanks::Entry& gone, Time now) {
  const auto& [rank, state] = gone;
  return End(Errorf(
      StatusCode::kAborted,
      "model \"{}\": the offload of version {} was abandoned: rank {} of {} has gone before it was "
      "ready, {} after it began{} (its process died, or dropped the offload); offload again, as "
      "this version or a newer one",
      options_.model, now_.name.version, rank, now_.name.world,
      HumanSeconds(std::chrono::duration<double>(now - state.begun).count()),
      state.publisher.empty() ? "" : " as " + state.publisher));
}

void OffloadSession::RemoveClient(uint64_t client, Time now) {
  if (!clients_.Remove(client)) return;
  const auto* never_ready = now_.ranks.MarkDead(client, clients_.arrivals());
  if (phase_ == OffloadPhase::kWriting && never_ready != nullptr) {
    (void)EndAsGone(*never_ready, now);
  }
}

void OffloadSession::CountWaiters(uint64_t lease, int change) {
  if (lease != 0 && now_.name.lease == lease) now_.ranks.AddWaiters(change);
}

// Writing -------------------------------------------------------------------------------------

Status OffloadSession::End(Status why) {
  LogWarn("{} {}", MessageOf(why), ToString(TraceOf(now_.name.version, now_.name.attempt)));
  ++abandoned_;
  Leave(why, {});
  return why;
}

void OffloadSession::Leave(Status why, const VersionInfo& info) {
  if (now_.name.lease != 0) ended_.Add({now_.name, now_.ranks.begun(), std::move(why), info});
  now_ = {};
  phase_ = OffloadPhase::kIdle;
}

Status OffloadSession::Abandon(uint64_t lease, uint32_t rank, const std::string& reason) {
  if (!writing(lease)) return WhyOver(lease);
  (void)End(Errorf(
      StatusCode::kAborted,
      "model \"{}\": the offload of version {} was abandoned by rank {} of {}: {}", options_.model,
      now_.name.version, rank, now_.name.world,
      reason.empty() ? "it gave no reason" : std::string_view(reason).substr(0, kMaxReason)));
  return absl::OkStatus();
}

StatusOr<OffloadSession::Final> OffloadSession::MarkWritten(uint64_t lease,
                                                            const WrittenNotice& n) {
  if (!writing(lease)) return WhyOver(lease);
  if (now_.ranks.Find(n.rank) == nullptr) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} reports writes but has not begun",
                  options_.model, now_.name.version, n.rank);
  }
  DW_RETURN_IF_ERROR(now_.tally->Check(n));
  auto final = now_.tally->Add(n);
  if (!final.ok()) return End(final.status());
  return final;
}

StatusOr<bool> OffloadSession::MarkReady(const ReadyNotice& n, const Identity& published) {
  if (!writing(n.lease) || now_.name.version != n.version) return WhyOver(n.lease);
  OffloadRanks::Rank* rank = now_.ranks.Find(n.rank);
  if (n.world != now_.name.world || rank == nullptr || rank->ready) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} of {} has not begun, or was ready before, or "
                  "the world is not {}",
                  options_.model, n.version, n.rank, n.world, now_.name.world);
  }
  const Status marked = now_.tally->Mark(n);
  if (!marked.ok()) return End(marked);
  if (!now_.ranks.MarkReady(*rank)) return false;
  const Status complete = now_.tally->CheckComplete(published);
  if (!complete.ok()) return End(complete);
  phase_ = OffloadPhase::kPublishing;
  return true;
}

std::vector<bool> OffloadSession::unchanged() const {
  return now_.tally != nullptr ? now_.tally->unchanged() : std::vector<bool>(layout_.size());
}

// The end -------------------------------------------------------------------------------------

void OffloadSession::MarkPublished(const VersionInfo& info) {
  if (phase_ == OffloadPhase::kPublishing) Leave(absl::OkStatus(), info);
}

void OffloadSession::FailPublish(Status why) {
  if (phase_ == OffloadPhase::kPublishing) (void)End(std::move(why));
}

Status OffloadSession::CheckUndisturbed(Time now, std::string_view advice) const {
  if (phase_ == OffloadPhase::kIdle) return absl::OkStatus();
  const auto* holder = phase_ == OffloadPhase::kWriting ? now_.ranks.Holder(now) : nullptr;
  if (phase_ == OffloadPhase::kWriting && holder == nullptr) return absl::OkStatus();
  return Errorf(
      StatusCode::kFailedPrecondition, "model \"{}\": an offload of version {} is under way{}; {}",
      options_.model, now_.name.version,
      holder == nullptr ? "" : fmt::format(" by {}", now_.ranks.Describe(holder->first)), advice);
}

Status OffloadSession::BeginRollback(uint64_t version, uint64_t attempt, Time now) {
  DW_RETURN_IF_ERROR(CheckUndisturbed(now, "roll back when it is done"));
  if (phase_ == OffloadPhase::kWriting) {
    (void)End(Errorf(StatusCode::kAborted,
                     "model \"{}\": the offload of version {} was abandoned with {} of {} ranks "
                     "ready, because of a rollback to version {}",
                     options_.model, now_.name.version, now_.ranks.ready(), now_.name.world,
                     version));
  }
  now_ = {.name = {.version = version, .attempt = attempt}};
  phase_ = OffloadPhase::kPublishing;
  return absl::OkStatus();
}

std::optional<OffloadSession::Time> OffloadSession::deadline() const {
  if (phase_ != OffloadPhase::kWriting || options_.timeout.count() == 0) return std::nullopt;
  return now_.granted + options_.timeout;
}

bool OffloadSession::Expire(Time now) {
  const auto until = deadline();
  if (!until || now < *until) return false;
  (void)End(Errorf(StatusCode::kAborted,
                   "model \"{}\": the offload of version {} was abandoned after {} ms "
                   "(offload-timeout-ms): {}; see what these ranks wait for, or raise the option",
                   options_.model, now_.name.version, options_.timeout.count(),
                   now_.ranks.DescribeLate()));
  return true;
}

std::optional<StatusOr<VersionInfo>> OffloadSession::Outcome(uint64_t version, uint64_t lease,
                                                             const VersionInfo& published,
                                                             uint64_t attempt) const {
  if (lease != 0) {
    if (now_.name.lease == lease) return std::nullopt;
    if (const auto* ended = ended_.Find(lease)) {
      return ended->why.ok() ? StatusOr<VersionInfo>(ended->info) : ended->why;
    }
    // A sender that was killed between its publish and its answer has the version.
    if (attempt != 0 && published.identity.attempt == attempt &&
        published.id().version == version) {
      return published;
    }
    return Errorf(StatusCode::kAborted,
                  "model \"{}\", version {}: that offload is not known (it ended long ago, or the "
                  "sender was started anew since); published is {}",
                  options_.model, version, ToString(published.id()));
  }
  if (published.id().version >= version) return published;
  if (now_.name.version == version) return std::nullopt;
  const auto* failed = ended_.FindFailed(version);
  return failed == nullptr ? std::nullopt : std::optional<StatusOr<VersionInfo>>(failed->why);
}

}  // namespace deltawire::sender
