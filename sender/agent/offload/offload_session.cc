#include "sender/agent/offload/offload_session.h"

#include <algorithm>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/shm/state_file.h"

namespace deltawire::sender {
namespace {

constexpr uint32_t kMaxWorld = 1 << 16;
// A rank opens its attendance right after its grant. After this time it is not expected any more.
constexpr std::chrono::seconds kAttendGrace{5};
constexpr size_t kEndedKept = 64;
constexpr size_t kMaxReason = 1024;
constexpr size_t kMaxPublisher = 256;
constexpr size_t kMaxJob = 256;
constexpr size_t kNamedRanks = 5;  // ranks that a message names

}  // namespace

OffloadSession::OffloadSession(Options options, const Layout& layout, const ChunkTable& chunks,
                               const Coverage& owned, uint64_t first_lease)
    : options_(std::move(options)),
      layout_(layout),
      chunks_(chunks),
      owned_(owned),
      next_lease_(std::max<uint64_t>(1, first_lease)) {}

std::string OffloadSession::Describe(uint32_t rank) const {
  const auto it = now_.ranks.find(rank);
  const bool named = it != now_.ranks.end() && !it->second.publisher.empty();
  return fmt::format("rank {} of {}{}", rank, now_.world,
                     named ? fmt::format(" ({})", it->second.publisher) : "");
}

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

bool OffloadSession::CanJoin(const OffloadRequest& r) const {
  const bool same =
      r.attempt == 0 ? r.job == now_.job && !r.job.empty() : r.attempt == now_.attempt;
  return phase_ == OffloadPhase::kWriting && now_.version == r.version && now_.world == r.world &&
         same && !now_.ranks.contains(r.rank) && !OutlivedReadyRank(r);
}

Status OffloadSession::MissedEnd(const OffloadRequest& r) {
  for (auto e = ended_.rbegin(); e != ended_.rend(); ++e) {
    const bool same = r.attempt == 0 ? r.job == e->job && !r.job.empty() : r.attempt == e->attempt;
    if (e->why.ok() || e->version != r.version || e->world != r.world || !same) continue;
    return e->ranks.insert(r.rank).second ? e->why : absl::OkStatus();
  }
  return absl::OkStatus();
}

bool OffloadSession::OutlivedReadyRank(const OffloadRequest& r) const {
  if (now_.died == 0) return false;
  const auto client = clients_.find(r.client);
  return client == clients_.end() || client->second.came > now_.died;
}

const std::map<uint32_t, OffloadSession::Rank>::value_type* OffloadSession::Holder(Time now) const {
  for (const auto& entry : now_.ranks) {
    const Rank& rank = entry.second;
    const bool coming = !rank.attended && !rank.ready && now - rank.begun < kAttendGrace;
    if (rank.attending > 0 || coming || (rank.ready && now_.waiting > 0)) return &entry;
  }
  return nullptr;
}

Status OffloadSession::MayTakeOver(const OffloadRequest& r, Time now) const {
  const auto mine = now_.ranks.find(r.rank);
  const bool begun = mine != now_.ranks.end();
  if (begun && r.client != 0 && mine->second.client == r.client) {
    return absl::OkStatus();  // the client itself has abandoned its earlier offload
  }
  const bool same_job = r.world == now_.world && r.job == now_.job;
  if (!begun && same_job && r.version != now_.version) {
    if (r.version > now_.version) return absl::OkStatus();
    // A late rank must not end the newer offload that the other ranks have begun.
    return Errorf(StatusCode::kAborted,
                  "model \"{}\": version {} was abandoned, and other ranks have begun version {}; "
                  "go on with that one",
                  options_.model, r.version, now_.version);
  }
  const auto* holder = Holder(now);
  if (holder == nullptr) return absl::OkStatus();
  std::string_view apart;
  if (r.version == now_.version && r.world == now_.world && !begun) {
    apart = OutlivedReadyRank(r) ? ", and of which a ready rank has died"
            : r.attempt != 0     ? ", under another attempt"
                                 : ", for another job";
  }
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\": version {} is being offloaded by {}, which began {} ago{}; rank {} "
                "of {}{} cannot begin version {} before that is published or abandoned",
                options_.model, now_.version, Describe(holder->first),
                HumanSeconds(std::chrono::duration<double>(now - holder->second.begun).count()),
                apart, r.rank, r.world,
                r.publisher.empty() ? "" : fmt::format(" ({})", r.publisher), r.version);
}

StatusOr<OffloadSession::Begun> OffloadSession::Begin(const OffloadRequest& request,
                                                      const Identity& published, uint64_t drawn,
                                                      Time now) {
  DW_RETURN_IF_ERROR(CheckRequest(request, published));
  if (phase_ == OffloadPhase::kDraining || phase_ == OffloadPhase::kPublishing) return Begun{};
  Rank rank{.publisher = request.publisher.substr(0, kMaxPublisher),
            .client = request.client,
            .begun = now};
  if (CanJoin(request)) {
    now_.ranks.emplace(request.rank, std::move(rank));
    return Begun{Next::kJoined, now_.lease};
  }
  DW_RETURN_IF_ERROR(MissedEnd(request));
  if (phase_ == OffloadPhase::kWriting) {
    DW_RETURN_IF_ERROR(MayTakeOver(request, now));
    (void)End(Errorf(StatusCode::kAborted,
                     "model \"{}\": the offload of version {} was abandoned with {} of {} ranks "
                     "ready, because rank {} began version {}",
                     options_.model, now_.version, now_.ready, now_.world, request.rank,
                     request.version));
  }
  now_ = {};
  now_.version = request.version;
  now_.lease = next_lease_++;
  now_.attempt = request.attempt == 0 ? drawn : request.attempt;
  now_.job = request.job;
  now_.world = request.world;
  now_.ranks.emplace(request.rank, std::move(rank));
  phase_ = OffloadPhase::kDraining;
  return Begun{Next::kDrain, now_.lease};
}

void OffloadSession::FinishDrain(uint64_t lease, const Status& drained, double waited_seconds,
                                 Time now) {
  if (phase_ != OffloadPhase::kDraining || now_.lease != lease) return;
  if (!drained.ok()) {
    (void)End(drained);
    return;
  }
  now_.tally = std::make_unique<WrittenTally>(
      WrittenTally::Offload{options_.model, now_.version, now_.world}, layout_, chunks_, owned_);
  now_.waited = waited_seconds;
  now_.granted = now;
  for (auto& [rank, state] : now_.ranks) state.begun = now;
  phase_ = OffloadPhase::kWriting;
  const auto gone = std::ranges::find_if(now_.ranks, [](const auto& r) { return r.second.gone; });
  if (gone != now_.ranks.end()) (void)EndAsGone(*gone, now);
}

// Attending -----------------------------------------------------------------------------------

Status OffloadSession::WhyOver(uint64_t lease) const {
  for (const Ended& e : ended_) {
    if (e.lease == lease && !e.why.ok()) return e.why;
  }
  return Errorf(StatusCode::kAborted,
                "model \"{}\": that offload is not under way (it was abandoned, or published); "
                "begin a new one",
                options_.model);
}

Status OffloadSession::Attend(uint64_t lease, uint32_t rank) {
  if (!writing(lease)) return WhyOver(lease);
  const auto it = now_.ranks.find(rank);
  if (it == now_.ranks.end()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} has not begun it", options_.model,
                  now_.version, rank);
  }
  it->second.attended = true;
  ++it->second.attending;
  return absl::OkStatus();
}

StatusOr<bool> OffloadSession::IsReady(uint64_t lease, uint32_t rank) const {
  if (lease == 0 || now_.lease != lease) {
    for (const Ended& e : ended_) {
      if (e.lease != lease) continue;
      if (!e.why.ok()) return e.why;
      return true;
    }
    return WhyOver(lease);
  }
  const auto it = now_.ranks.find(rank);
  return it != now_.ranks.end() && it->second.ready;
}

void OffloadSession::EndAttend(uint64_t lease, uint32_t rank, bool gone, Time now) {
  if (!writing(lease)) return;
  const auto it = now_.ranks.find(rank);
  if (it == now_.ranks.end()) return;
  if (it->second.attending > 0) --it->second.attending;
  if (!gone || it->second.ready || it->second.attending > 0) return;
  (void)EndAsGone(*it, now);
}

Status OffloadSession::EndAsGone(const std::map<uint32_t, Rank>::value_type& gone, Time now) {
  const auto& [rank, state] = gone;
  return End(Errorf(
      StatusCode::kAborted,
      "model \"{}\": the offload of version {} was abandoned: rank {} of {} has gone before it was "
      "ready, {} after it began{} (its process died, or dropped the offload); offload again, as "
      "this version or a newer one",
      options_.model, now_.version, rank, now_.world,
      HumanSeconds(std::chrono::duration<double>(now - state.begun).count()),
      state.publisher.empty() ? "" : " as " + state.publisher));
}

void OffloadSession::AddClient(uint64_t client) {
  if (client == 0) return;
  Client& known = clients_.try_emplace(client).first->second;
  if (known.streams++ == 0) known.came = ++arrivals_;
}

void OffloadSession::RemoveClient(uint64_t client, Time now) {
  const auto known = clients_.find(client);
  if (known == clients_.end() || --known->second.streams > 0) return;
  clients_.erase(known);
  for (auto& entry : now_.ranks) {
    Rank& rank = entry.second;
    if (rank.client != client) continue;
    rank.gone = true;
    if (rank.ready && now_.died == 0) now_.died = arrivals_;
    if (phase_ != OffloadPhase::kWriting || rank.ready || rank.attending > 0) continue;
    (void)EndAsGone(entry, now);
    return;  // the offload's ranks are gone
  }
}

void OffloadSession::CountWaiters(uint64_t lease, int change) {
  if (lease != 0 && now_.lease == lease) now_.waiting += static_cast<uint32_t>(change);
}

// Writing -------------------------------------------------------------------------------------

Status OffloadSession::End(Status why) {
  LogWarn("{} {}", MessageOf(why), ToString(TraceOf(now_.version, now_.attempt)));
  ++abandoned_;
  if (now_.lease != 0) RecordEnd(why, {});
  now_ = {};
  phase_ = OffloadPhase::kIdle;
  return why;
}

void OffloadSession::RecordEnd(Status why, const VersionInfo& info) {
  Ended ended{now_.version, now_.lease, std::move(why), info,
              now_.attempt, now_.job,   now_.world,     {}};
  for (const auto& entry : now_.ranks) ended.ranks.insert(entry.first);
  ended_.push_back(std::move(ended));
  if (ended_.size() > kEndedKept) ended_.pop_front();
}

Status OffloadSession::Abandon(uint64_t lease, uint32_t rank, const std::string& reason) {
  if (!writing(lease)) return WhyOver(lease);
  (void)End(Errorf(
      StatusCode::kAborted,
      "model \"{}\": the offload of version {} was abandoned by rank {} of {}: {}", options_.model,
      now_.version, rank, now_.world,
      reason.empty() ? "it gave no reason" : std::string_view(reason).substr(0, kMaxReason)));
  return absl::OkStatus();
}

StatusOr<OffloadSession::Final> OffloadSession::MarkWritten(uint64_t lease,
                                                            const WrittenNotice& n) {
  if (!writing(lease)) return WhyOver(lease);
  if (!now_.ranks.contains(n.rank)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} reports writes but has not begun",
                  options_.model, now_.version, n.rank);
  }
  DW_RETURN_IF_ERROR(now_.tally->Check(n));
  auto final = now_.tally->Add(n);
  if (!final.ok()) return End(final.status());
  return final;
}

StatusOr<bool> OffloadSession::MarkReady(const ReadyNotice& n, const Identity& published) {
  if (!writing(n.lease) || now_.version != n.version) return WhyOver(n.lease);
  const auto it = now_.ranks.find(n.rank);
  if (n.world != now_.world || it == now_.ranks.end() || it->second.ready) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} of {} has not begun, or was ready before, or "
                  "the world is not {}",
                  options_.model, n.version, n.rank, n.world, now_.world);
  }
  const Status marked = now_.tally->Mark(n);
  if (!marked.ok()) return End(marked);
  it->second.ready = true;
  if (++now_.ready < now_.world) return false;
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
  if (phase_ != OffloadPhase::kPublishing) return;
  if (now_.lease != 0) RecordEnd(absl::OkStatus(), info);
  now_ = {};
  phase_ = OffloadPhase::kIdle;
}

void OffloadSession::FailPublish(Status why) {
  if (phase_ == OffloadPhase::kPublishing) (void)End(std::move(why));
}

Status OffloadSession::MayRollBack(Time now) const {
  return CheckUndisturbed(now, "roll back when it is done");
}

Status OffloadSession::MayUnregister(Time now) const {
  return CheckUndisturbed(now, "unregister when it is published or abandoned");
}

Status OffloadSession::CheckUndisturbed(Time now, std::string_view advice) const {
  if (phase_ == OffloadPhase::kIdle) return absl::OkStatus();
  const auto* holder = phase_ == OffloadPhase::kWriting ? Holder(now) : nullptr;
  if (phase_ == OffloadPhase::kWriting && holder == nullptr) return absl::OkStatus();
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\": an offload of version {} is under way{}; {}", options_.model,
                now_.version,
                holder == nullptr ? "" : fmt::format(" by {}", Describe(holder->first)), advice);
}

Status OffloadSession::BeginRollback(uint64_t version, uint64_t attempt, Time now) {
  DW_RETURN_IF_ERROR(MayRollBack(now));
  if (phase_ == OffloadPhase::kWriting) {
    (void)End(Errorf(StatusCode::kAborted,
                     "model \"{}\": the offload of version {} was abandoned with {} of {} ranks "
                     "ready, because of a rollback to version {}",
                     options_.model, now_.version, now_.ready, now_.world, version));
  }
  now_ = {};
  now_.version = version;
  now_.attempt = attempt;
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
                   options_.model, now_.version, options_.timeout.count(), LateRanks()));
  return true;
}

std::string OffloadSession::LateRanks() const {
  std::string text;
  size_t late = 0;
  for (uint32_t rank = 0; rank < now_.world; ++rank) {
    const auto it = now_.ranks.find(rank);
    if (it != now_.ranks.end() && it->second.ready) continue;
    if (late++ >= kNamedRanks) continue;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : ", ", rank,
                        it != now_.ranks.end() ? "is not ready" : "has not begun");
  }
  return late > kNamedRanks ? fmt::format("{}, and {} more", text, late - kNamedRanks) : text;
}

std::optional<StatusOr<VersionInfo>> OffloadSession::Outcome(uint64_t version, uint64_t lease,
                                                             const VersionInfo& published,
                                                             uint64_t attempt) const {
  if (lease != 0) {
    if (now_.lease == lease) return std::nullopt;
    for (const Ended& e : ended_) {
      if (e.lease != lease) continue;
      return e.why.ok() ? StatusOr<VersionInfo>(e.info) : StatusOr<VersionInfo>(e.why);
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
  if (now_.version == version) return std::nullopt;
  for (auto e = ended_.rbegin(); e != ended_.rend(); ++e) {
    if (e->version == version && !e->why.ok()) return e->why;
  }
  return std::nullopt;
}

}  // namespace deltawire::sender
