#include "common/serving/pull_desk.h"

#include <sys/random.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/base/sync.h"
#include "common/base/trace.h"

namespace deltawire {
namespace {

StatusOr<wire::Ticket> RandomTicket() {
  wire::Ticket ticket;
  if (getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size())) {
    return ErrnoError("getrandom for a ticket");
  }
  return ticket;
}

// Returns "ipv4:10.0.0.2" for "ipv4:10.0.0.2:40512", and a peer without a port unchanged.
std::string_view WithoutPort(std::string_view peer) { return peer.substr(0, peer.rfind(':')); }

// The incoming version that `request` names. Null: it is published by now, or the request names
// none. kAborted: it was abandoned.
StatusOr<std::shared_ptr<IncomingVersion>> IncomingFor(const PullRequest& request,
                                                       std::shared_ptr<IncomingVersion> incoming,
                                                       const StateSource& source) {
  const Identity& wanted = request.incoming;
  if (wanted.empty()) return nullptr;
  if (incoming != nullptr && IsOf(incoming->identity(), wanted)) return incoming;
  const auto published = source.published();
  const bool there = published != nullptr && (IsOf(wanted, published->info.identity) ||
                                              IsLater(published->info.identity, wanted));
  if (there) return nullptr;
  return Errorf(StatusCode::kAborted, "model \"{}\": {} is not incoming any more; ask again",
                request.model, DescribeFully(wanted));
}

}  // namespace

PullCoding PullDesk::CodingFor(const PullRequest& request) {
  PullCoding coding;
  coding.codec = traits_.codec;
  coding.history = traits_.history;
  coding.rates = &coder_rates_;
  coding.encode_threads = CodingThreads(Thread::hardware_concurrency(), request.streams);
  const CoderSpeeds like_ours = coder_rates_.DecodeSpeeds(coding.encode_threads);
  for (const Coder& coder : Coders()) {
    const double said = request.decode[coder.codec];
    coding.decode[coder.codec] = said > 0 ? said : like_ours[coder.codec];
  }
  MutexLock lock(mu_);
  constexpr size_t kMaxLinks = 4096;
  if (links_.size() >= kMaxLinks) {  // discard unused estimates
    std::erase_if(links_, [](const auto& l) { return l.second.use_count() == 1; });
  }
  auto& link = links_[request.receiver_id];
  if (link == nullptr) link = std::make_shared<LinkEstimate>();
  coding.link = link;
  return coding;
}

LinkView PullDesk::LinkTo(const std::string& receiver_id) const {
  MutexLock lock(mu_);
  const auto link = links_.find(receiver_id);
  return link == links_.end() ? LinkView{} : link->second->view();
}

std::shared_ptr<TokenBucket> PullDesk::RateFor(const std::string& name, uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return nullptr;
  MutexLock lock(mu_);
  constexpr size_t kMostRates = 4096;
  if (rates_.size() >= kMostRates) {  // discard unused buckets
    std::erase_if(rates_, [](const auto& r) { return r.second.use_count() == 1; });
  }
  auto& rate = rates_[name];
  if (rate == nullptr) rate = std::make_shared<TokenBucket>(bytes_per_s);
  return rate;
}

// The number of deltas that the receiver should keep for later pulls; none if fast will be chosen.
uint32_t PullDesk::HistoryWanted(const PullCoding& coding, const Published& now) {
  const auto wanted = [&](kernels::Codec codec) {
    const Coder* coder = CoderOf(codec);
    return coder != nullptr && coder->read_need != nullptr ? coding.history : 0;
  };
  if (coding.codec) return wanted(*coding.codec);
  if (now.log.empty()) return 0;
  const Delta& newest = *now.log.back();
  if (newest.chunks().empty()) return coding.history;  // no payload sizes to judge by
  CodecChoiceInputs in;
  in.chunk_bytes = kChunkBytes;
  in.fast_bytes = newest.payload_bytes() / newest.chunks().size();
  in.link_bytes_per_s = coding.link->bytes_per_s();
  in.encode = coding.rates->EncodeSpeeds(coding.encode_threads);
  in.decode = coding.decode;
  for (const Coder& coder : Coders()) {
    if (coder.read_need != nullptr) in.ratio[coder.codec] = coding.rates->ratio(coder.codec);
  }
  return wanted(ChooseCodec(in));
}

PullDesk::PullDesk(const PullTraits& traits, const PullLimits& limits, CoderRates& rates)
    : traits_(traits), limits_(limits), coder_rates_(rates), attachments_(limits.attachments) {
  thread_ = Thread([this] { Run(); });
}

PullDesk::~PullDesk() { Close(); }

void PullDesk::Stop(const Status& why) {
  Pulls pulls;
  {
    MutexLock lock(mu_);
    stopped_.Update(why);
    for (auto& [ticket, pull] : pulls_) pulls.push_back(pull);
  }
  attachments_.Stop(why);
  for (auto& pull : pulls) pull->Cut(why);
}

void PullDesk::Close() {
  Tickets pulls;
  {
    MutexLock lock(mu_);
    closing_ = true;
    cv_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mu_);
  pulls.swap(pulls_);
}

void PullDesk::Run() {
  // Bounds how long an expired ticket or a broken stream stays in the table.
  constexpr std::chrono::milliseconds kSweep{500};
  MutexLock lock(mu_);
  while (!closing_) {
    lock.unlock();
    const bool pulls = Sweep();
    lock.lock();
    if (pulls) {
      cv_.wait_for(lock, kSweep, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closing_; });
    } else {
      while (!closing_ && pulls_.empty()) cv_.wait(lock);
    }
  }
}

Status PullDesk::CheckRequest(const PullRequest& r, const StateSource& model) const {
  if (r.streams == 0 || r.streams > wire::kMaxStreams) {
    return Errorf(StatusCode::kInvalidArgument, "model \"{}\": {} streams; use 1 to {}", r.model,
                  r.streams, wire::kMaxStreams);
  }
  DW_RETURN_IF_ERROR(CheckReceiverId(r.receiver_id));
  if (r.fingerprint != model.layout().fingerprint()) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": receiver {} has layout {}, the sender {}; describe the model again", r.model,
        r.receiver_id, r.fingerprint.Hex(), model.layout().fingerprint().Hex());
  }
  if (r.owned_hash != model.owned().hash() && (r.owned_hash != 0 || !model.owned().all())) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": this agent has chunks {} of {}, and receiver {} expects others; "
                  "describe the model again (a receiver needs --sender for every agent)",
                  r.model, ToString(model.owned().ranges()), model.chunks().size(), r.receiver_id);
  }
  if (r.corrupt.size() > wire::kMaxSuspects) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\": {} corrupt chunks; name at most {} per pull", r.model,
                  r.corrupt.size(), wire::kMaxSuspects);
  }
  return absl::OkStatus();
}

StatusOr<PullTicket> PullDesk::Open(const PullRequest& request, const PullCaller& caller,
                                    const std::shared_ptr<StateSource>& source,
                                    std::shared_ptr<IncomingVersion> incoming,
                                    const std::function<bool()>& still) {
  auto ticket = Grant(request, caller, source, std::move(incoming), still);
  if (!ticket.ok()) {
    MutexLock lock(mu_);
    ++finished_pulls_[request.model].refused;
  }
  return ticket;
}

StatusOr<PullTicket> PullDesk::Grant(const PullRequest& request, const PullCaller& caller,
                                     const std::shared_ptr<StateSource>& source,
                                     std::shared_ptr<IncomingVersion> incoming,
                                     const std::function<bool()>& still) {
  DW_ASSIGN_OR_RETURN(incoming, IncomingFor(request, std::move(incoming), *source));
  DW_RETURN_IF_ERROR(CheckRequest(request, *source));
  const auto newest = source->published();
  if (newest == nullptr && incoming == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  request.model);
  }
  PullTerms terms{.request = request,
                  .caller = caller,
                  .coding = CodingFor(request),
                  .incoming = incoming,
                  .ends_at_incoming = incoming != nullptr && !request.at.empty(),
                  .late_after = traits_.grace / 4,
                  .ticket_life = limits_.ticket_life,
                  .rate = RateFor("receiver " + request.model + "/" + request.receiver_id,
                                  traits_.rate_limit_per_receiver),
                  .site_rate = request.site.empty()
                                   ? nullptr
                                   : RateFor("site " + request.site, traits_.rate_limit_per_site),
                  .admission = admission_,
                  .stages = traits_.stages};
  if (!request.at.empty() && incoming == nullptr) {
    DW_ASSIGN_OR_RETURN(terms.pinned, source->At(request.at));
  }
  const Identity end = incoming != nullptr
                           ? incoming->identity()
                           : (terms.pinned != nullptr ? terms.pinned : newest)->info.identity;
  terms.granted = end;
  DW_ASSIGN_OR_RETURN(const wire::Ticket ticket, RandomTicket());
  uint32_t history = newest == nullptr ? 0 : HistoryWanted(terms.coding, *newest);
  // Forwarded payloads refer to as much history as the origin has chosen.
  if (incoming != nullptr) history = std::max(history, incoming->history_wanted());
  auto session = std::make_shared<ServedPull>(source, std::move(terms));
  DW_ASSIGN_OR_RETURN(const Pulls replaced, Enter(ticket, session, still));
  for (const auto& other : replaced) other->Cut(absl::AbortedError("replaced by a newer pull"));
  // Versions that were published before Enter have not overtaken the session yet.
  if (const auto now = source->published(); now != nullptr) session->Overtake(*now);
  if (incoming != nullptr) incoming->Watch(session);
  LogInfo("model {}: receiver {} at {}: pull of {} granted {}", request.model, request.receiver_id,
          caller.peer, ToString(end), ToString(TraceOf(end)));
  VersionInfo info = InfoOf(*source, newest.get());
  if (incoming != nullptr) info = {.identity = end};
  return PullTicket{ticket, history, info};
}

StatusOr<PullDesk::Pulls> PullDesk::Enter(const wire::Ticket& ticket,
                                          const std::shared_ptr<ServedPull>& session,
                                          const std::function<bool()>& still) {
  const PullRequest& request = session->terms().request;
  const std::string& peer = session->terms().caller.peer;
  bool attached = false;
  DW_RETURN_IF_ERROR(attachments_.MayUse(request.model, request.receiver_id, peer, &attached));
  // A receiver has one pull at a time; an older one belongs to a broken connection. But another
  // peer's pull under the same id is not cut while it moves bytes.
  Pulls same;
  {
    MutexLock lock(mu_);
    for (const auto& [other_ticket, other] : pulls_) {
      const bool of_it = other->terms().request.receiver_id == request.receiver_id;
      if (of_it && other->model() == session->model()) same.push_back(other);
    }
  }
  const auto now = SteadyClock::now();
  std::erase_if(same, [&](const auto& other) { return other->IsFinished(now); });
  for (const auto& other : same) {
    if (attached || other->terms().caller.peer == peer) continue;
    if (now - other->last_heard() > limits_.attachments.silence) continue;
    return Errorf(StatusCode::kAlreadyExists,
                  "model \"{}\": receiver \"{}\" is pulling already, from {}; give each receiver a "
                  "--receiver-id of its own",
                  request.model, request.receiver_id, other->terms().caller.peer);
  }
  // Ended pulls count until the next sweep, which is too slow for every new one of thousands.
  Status room = Add(ticket, session);
  if (absl::IsResourceExhausted(room)) {
    Sweep();
    room = Add(ticket, session);
  }
  DW_RETURN_IF_ERROR(room);
  if (still()) return same;
  MutexLock lock(mu_);
  pulls_.erase(ticket);
  return Errorf(StatusCode::kAborted, "model \"{}\" was replaced; describe it again",
                request.model);
}

Status PullDesk::Add(const wire::Ticket& ticket, const std::shared_ptr<ServedPull>& session) {
  MutexLock lock(mu_);
  DW_RETURN_IF_ERROR(stopped_);
  DW_RETURN_IF_ERROR(CheckLimits(session->terms()));
  pulls_[ticket] = session;
  cv_.notify_all();
  return absl::OkStatus();
}

Status PullDesk::CheckLimits(const PullTerms& terms) const {
  const auto& [peer, principal, admits] = terms.caller;
  size_t of_peer = 0, of_address = 0, of_principal = 0;
  const std::string_view address = WithoutPort(peer);
  for (const auto& [ticket, pull] : pulls_) {
    const PullCaller& other = pull->terms().caller;
    of_peer += other.peer == peer;
    of_address += WithoutPort(other.peer) == address;
    of_principal += !principal.empty() && other.principal == principal;
  }
  const auto full = [&](size_t open, const std::string& whose) {
    return Errorf(StatusCode::kResourceExhausted,
                  "model \"{}\": {} pulls{} are open, which is the most; try again when some have "
                  "ended",
                  terms.request.model, open, whose);
  };
  if (pulls_.size() >= limits_.pulls) return full(pulls_.size(), "");
  if (of_peer >= limits_.pulls_per_peer) return full(of_peer, " of " + peer);
  if (of_address >= limits_.pulls_per_address) {
    return full(of_address, fmt::format(" from {}", address));
  }
  if (of_principal >= limits_.pulls_per_principal) {
    return full(of_principal, " of principal " + principal);
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<net::PullSession>> PullDesk::Join(const wire::Hello& hello,
                                                           const net::StreamPeer& peer) {
  std::shared_ptr<ServedPull> session;
  {
    MutexLock lock(mu_);
    if (const auto it = pulls_.find(hello.ticket); it != pulls_.end()) session = it->second;
  }
  Status admitted;
  if (session == nullptr) {
    admitted = absl::PermissionDeniedError(
        "the ticket is unknown or has expired; open a pull over gRPC first");
  } else if (const auto& admits = session->terms().caller.admits) {
    admitted = admits(hello, peer);
  }
  if (!admitted.ok()) {
    ++streams_refused_;
    if (join_refusals_.Allow(std::string(WithoutPort(peer.address)))) {
      LogWarn("bulk stream from {}: {}", peer.address, MessageOf(admitted));
    }
    return admitted;
  }
  const Hash128& fingerprint = session->model()->layout().fingerprint();
  if (!(hello.fingerprint == fingerprint)) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": the stream is for layout {}, the sender has {}; describe the model "
        "again",
        session->model()->name(), hello.fingerprint.Hex(), fingerprint.Hex());
  }
  DW_RETURN_IF_ERROR(session->Reserve(hello.stream, hello.streams));
  return std::static_pointer_cast<net::PullSession>(session);
}

PullDesk::Pulls PullDesk::PullsOf(const StateSource& model) const {
  Pulls pulls;
  MutexLock lock(mu_);
  for (const auto& [ticket, pull] : pulls_) {
    if (pull->model().get() == &model) pulls.push_back(pull);
  }
  return pulls;
}

bool PullDesk::Sweep() {
  const auto now = SteadyClock::now();
  std::vector<std::pair<wire::Ticket, std::shared_ptr<ServedPull>>> pulls;
  {
    MutexLock lock(mu_);
    pulls.assign(pulls_.begin(), pulls_.end());
  }
  // Ended pulls go to the back and are destroyed at the end, without the lock.
  const auto ended = std::stable_partition(pulls.begin(), pulls.end(), [&](const auto& p) {
    if (p.second->CutIfLate(now)) {
      LogWarn(
          "model {}: receiver {} at {}: cut a pull, since not all of its streams arrived in time",
          p.second->model()->name(), p.second->terms().request.receiver_id,
          p.second->terms().caller.peer);
    }
    return !p.second->IsFinished(now);
  });
  MutexLock lock(mu_);
  for (auto it = ended; it != pulls.end(); ++it) {
    if (pulls_.erase(it->first) != 0)
      AddTo(finished_pulls_[it->second->model()->name()], *it->second);
  }
  return !pulls_.empty();
}

void PullDesk::AddTo(Counts& counts, const ServedPull& pull) {
  counts.bytes_sent += pull.tally().bytes();
  counts.bytes_ahead += pull.tally().bytes_ahead();
  counts.sent += pull.tally().forms();
}

void PullDesk::Announce(const StateSource& source) {
  const auto newest = source.published();
  attachments_.feed().Publish(source.name(), InfoOf(source, newest.get()), traits_.in_order);
  if (newest == nullptr) return;
  if (const size_t followers = attachments_.CountsOf(source.name()).followers; followers > 0) {
    admission_->Expect(source.name(), followers, SteadyClock::now());
  }
  for (const auto& pull : PullsOf(source)) {
    pull->Overtake(*newest);
    if (pull->CutIfDiscarded()) CountCut(source, *pull, "since it holds too many old deltas");
  }
}

void PullDesk::CountCut(const StateSource& source, const ServedPull& pull, std::string_view why) {
  LogInfo("model {}: receiver {}: pull was cut {}; it will resume", source.name(),
          pull.terms().request.receiver_id, why);
  MutexLock lock(mu_);
  ++finished_pulls_[source.name()].cut;
}

void PullDesk::CutReaders(const StateSource& source, uint32_t half, std::string_view why) {
  for (const auto& pull : PullsOf(source)) {
    if (pull->CutIfReading(half, why)) CountCut(source, *pull, why);
  }
}

void PullDesk::CutAll(const StateSource& source, const Status& why) {
  Pulls pulls;
  {
    MutexLock lock(mu_);
    for (auto it = pulls_.begin(); it != pulls_.end();) {
      const bool of_it = it->second->model().get() == &source;
      if (of_it) {
        AddTo(finished_pulls_[source.name()], *it->second);
        pulls.push_back(std::move(it->second));
      }
      it = of_it ? pulls_.erase(it) : std::next(it);
    }
  }
  for (auto& pull : pulls) pull->Cut(why);
}

PullDesk::Counts PullDesk::CountsOf(const std::string& model) const {
  Counts counts;
  Pulls pulls;
  {
    MutexLock lock(mu_);
    if (const auto it = finished_pulls_.find(model); it != finished_pulls_.end()) {
      counts = it->second;
    }
    for (const auto& [ticket, pull] : pulls_) {
      if (pull->model()->name() == model) pulls.push_back(pull);
    }
  }
  const auto now = SteadyClock::now();
  for (const auto& pull : pulls) {
    AddTo(counts, *pull);
    if (!pull->IsFinished(now)) ++counts.active;
  }
  counts.admission = admission_->CountsOf(model);
  return counts;
}

}  // namespace deltawire
