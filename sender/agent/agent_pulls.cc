// Agent: grants and ends pulls, chooses their codecs, counts what they moved.
#include <sys/random.h>

#include <algorithm>
#include <thread>

#include "common/base/call_end.h"
#include "common/base/log.h"
#include "common/base/sync.h"
#include "common/base/trace.h"
#include "sender/agent/agent.h"

namespace deltawire::sender {
namespace {

StatusOr<wire::Ticket> RandomTicket() {
  wire::Ticket ticket;
  if (getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size())) {
    return ErrnoError("getrandom for a ticket");
  }
  return ticket;
}

// "ipv4:10.0.0.2" of "ipv4:10.0.0.2:40512"; of a peer without a port, all of it.
std::string_view WithoutPort(std::string_view peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

PullCoding Agent::CodingFor(const PullRequest& request) {
  PullCoding coding;
  coding.codec = options_.codec;
  coding.history = options_.history;
  coding.rates = &coder_rates_;
  // A pull's streams share the I/O threads, of which there is one per core.
  coding.encode_threads =
      std::min(std::max(1u, std::thread::hardware_concurrency()), request.streams);
  const CoderSpeeds like_ours = coder_rates_.DecodeSpeeds(coding.encode_threads);
  for (const Coder& coder : Coders()) {
    const double said = request.decode[coder.codec];
    coding.decode[coder.codec] = said > 0 ? said : like_ours[coder.codec];
  }
  std::lock_guard lock(mu_);
  constexpr size_t kMaxLinks = 4096;
  if (links_.size() >= kMaxLinks) {  // drop unused estimates; they start anew on return
    std::erase_if(links_, [](const auto& l) { return l.second.use_count() == 1; });
  }
  auto& link = links_[request.receiver_id];
  if (link == nullptr) link = std::make_shared<LinkEstimate>();
  coding.link = link;
  return coding;
}

std::shared_ptr<TokenBucket> Agent::RateFor(const PullRequest& request) {
  if (options_.rate_limit_per_receiver == 0) return nullptr;
  std::lock_guard lock(mu_);
  constexpr size_t kMostRates = 4096;
  if (rates_.size() >= kMostRates) {  // a bucket that no pull has is full again soon
    std::erase_if(rates_, [](const auto& r) { return r.second.use_count() == 1; });
  }
  auto& rate = rates_[request.model + "/" + request.receiver_id];
  if (rate == nullptr) rate = std::make_shared<TokenBucket>(options_.rate_limit_per_receiver);
  return rate;
}

// How many deltas the receiver shall keep for later pulls; none where fast is the choice anyway.
uint32_t Agent::HistoryWanted(const PullCoding& coding, const Published& now) {
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

StatusOr<PullTicket> Agent::OpenPull(const PullRequest& request) {
  auto ticket = Grant(request);
  if (!ticket.ok()) Refused(request.model);
  return ticket;
}

Status Agent::CheckRequest(const PullRequest& r, const Model& model) const {
  if (r.streams == 0 || r.streams > wire::kMaxStreams) {
    return Errorf(StatusCode::kInvalidArgument, "model \"{}\": {} streams; use 1 to {}", r.model,
                  r.streams, wire::kMaxStreams);
  }
  DW_RETURN_IF_ERROR(CheckReceiverId(r.receiver_id));
  if (r.fingerprint != model.layout().fingerprint().Hex()) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": receiver {} has layout {}, the sender {}; describe the model again", r.model,
        r.receiver_id, r.fingerprint, model.layout().fingerprint().Hex());
  }
  if (r.owned_hash != model.owned().hash() && (r.owned_hash != 0 || !model.owned().all())) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": this agent has chunks {} of {}, and receiver {} expects others; "
                  "describe the model again (a receiver needs --sender for every agent)",
                  r.model, ToString(model.owned().ranges()), model.chunks().size(), r.receiver_id);
  }
  if (r.suspects.size() > wire::kMaxSuspects) {
    return Errorf(StatusCode::kInvalidArgument, "model \"{}\": {} suspects; name at most {} a pull",
                  r.model, r.suspects.size(), wire::kMaxSuspects);
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<const Published>> Agent::Pinned(const PullRequest& r, Model& model) const {
  if (r.at.empty()) return std::shared_ptr<const Published>();
  return model.At(r.at);
}

StatusOr<PullTicket> Agent::Grant(const PullRequest& request) {
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Find(request.model));
  DW_RETURN_IF_ERROR(CheckRequest(request, *model));
  const auto newest = model->published();
  if (newest == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  request.model);
  }
  PullTerms terms{.receiver_id = request.receiver_id,
                  .peer = request.peer,
                  .streams = static_cast<uint16_t>(request.streams),
                  .coding = CodingFor(request),
                  .suspects = request.suspects,
                  .late_after = options_.grace / 4,
                  .ticket_life = limits_.ticket_life,
                  .rate = RateFor(request),
                  .stages = model_options_.stages,
                  .principal = request.principal,
                  .admits = request.admits};
  DW_ASSIGN_OR_RETURN(terms.pinned, Pinned(request, *model));
  const Identity end = (terms.pinned != nullptr ? terms.pinned : newest)->info.identity;
  terms.granted = end;
  DW_ASSIGN_OR_RETURN(const wire::Ticket ticket, RandomTicket());
  const uint32_t history = HistoryWanted(terms.coding, *newest);
  auto session = std::make_shared<ServedPull>(model, std::move(terms));
  DW_ASSIGN_OR_RETURN(const ServedPulls replaced, Enter(request, ticket, session));
  for (const auto& other : replaced) other->Cut(absl::AbortedError("replaced by a newer pull"));
  // The session was not in the table yet when versions after Pinned were published.
  if (const auto now = model->published(); now != nullptr) session->Overtaken(*now);
  LogInfo("model {}: receiver {} at {}: pull of {} granted {}", request.model, request.receiver_id,
          request.peer, ToString(end), ToString(TraceOf(end)));
  return PullTicket{ticket, history, InfoOf(*model, newest.get())};
}

StatusOr<Agent::ServedPulls> Agent::Enter(const PullRequest& request, const wire::Ticket& ticket,
                                          const std::shared_ptr<ServedPull>& session) {
  bool attached = false;
  DW_RETURN_IF_ERROR(
      attachments_.MayUse(request.model, request.receiver_id, request.peer, &attached));
  Sweep();
  // A receiver has one pull at a time; an older one is left over from a broken connection. But
  // another peer's pull under the same id is not ended while it moves bytes.
  ServedPulls same;
  for (auto& other : PullsOf(*session->model())) {
    if (other->receiver_id() == request.receiver_id) same.push_back(std::move(other));
  }
  const auto now = SteadyClock::now();
  for (const auto& other : same) {
    if (attached || other->peer() == request.peer || other->Finished(now)) continue;
    if (now - other->last_heard() > limits_.attachments.silence) continue;
    return Errorf(StatusCode::kAlreadyExists,
                  "model \"{}\": receiver \"{}\" pulls already, from {}; give each receiver a "
                  "--receiver-id of its own",
                  request.model, request.receiver_id, other->peer());
  }
  {
    std::lock_guard lock(mu_);
    if (stopping_) return Stopping("sender");
    const auto entry = models_.find(request.model);
    if (entry == models_.end() || entry->second.model != session->model()) {
      return Errorf(StatusCode::kAborted, "model \"{}\" was replaced; describe it again",
                    request.model);
    }
    DW_RETURN_IF_ERROR(CheckLimits(request));
    pulls_[ticket] = session;
  }
  std::lock_guard lock(chores_->mu);
  chores_->opened = true;
  chores_->cv.notify_all();
  return same;
}

Status Agent::CheckLimits(const PullRequest& request) const {
  size_t of_peer = 0, of_address = 0, of_principal = 0;
  const std::string_view address = WithoutPort(request.peer);
  for (const auto& [ticket, pull] : pulls_) {
    of_peer += pull->peer() == request.peer;
    of_address += WithoutPort(pull->peer()) == address;
    of_principal += !request.principal.empty() && pull->principal() == request.principal;
  }
  const auto full = [&](size_t open, const std::string& whose) {
    return Errorf(StatusCode::kResourceExhausted,
                  "model \"{}\": {} pulls{} are open, which is the most; try again when some have "
                  "ended",
                  request.model, open, whose);
  };
  if (pulls_.size() >= limits_.pulls) return full(pulls_.size(), "");
  if (of_peer >= limits_.pulls_per_peer) return full(of_peer, " of " + request.peer);
  if (of_address >= limits_.pulls_per_address) {
    return full(of_address, fmt::format(" from {}", address));
  }
  if (of_principal >= limits_.pulls_per_principal) {
    return full(of_principal, " of principal " + request.principal);
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<net::PullSession>> Agent::Join(const wire::Hello& hello,
                                                        const net::StreamPeer& peer) {
  std::shared_ptr<ServedPull> session;
  {
    std::lock_guard lock(mu_);
    if (const auto it = pulls_.find(hello.ticket); it != pulls_.end()) session = it->second;
  }
  if (session == nullptr) {
    ++streams_refused_;
    if (join_refusals_.Allow(std::string(WithoutPort(peer.address)))) {
      LogWarn("bulk stream from {}: its ticket is unknown or has expired", peer.address);
    }
    return absl::PermissionDeniedError(
        "the ticket is unknown or has expired; open a pull over gRPC first");
  }
  if (const Status admitted = session->Admits(hello, peer); !admitted.ok()) {
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

Agent::ServedPulls Agent::PullsOf(const Model& model) const {
  ServedPulls pulls;
  std::lock_guard lock(mu_);
  for (const auto& [ticket, pull] : pulls_) {
    if (pull->model().get() == &model) pulls.push_back(pull);
  }
  return pulls;
}

void Agent::Refused(const std::string& model) {
  std::lock_guard lock(mu_);
  if (models_.contains(model)) ++finished_pulls_[model].refused;
}

bool Agent::Sweep() {
  const auto now = SteadyClock::now();
  std::vector<std::pair<wire::Ticket, std::shared_ptr<ServedPull>>> pulls;
  {
    std::lock_guard lock(mu_);
    pulls.assign(pulls_.begin(), pulls_.end());
  }
  // Pulls that have ended go to the back and are destroyed at the end, without the lock.
  const auto ended = std::stable_partition(pulls.begin(), pulls.end(), [&](const auto& p) {
    if (p.second->CutIfLate(now)) {
      LogWarn("model {}: receiver {} at {}: a pull was granted, and not all of its streams came",
              p.second->model()->name(), p.second->receiver_id(), p.second->peer());
    }
    return !p.second->Finished(now);
  });
  std::lock_guard lock(mu_);
  for (auto it = ended; it != pulls.end(); ++it) {
    if (pulls_.erase(it->first) != 0) CountFinished(*it->second);
  }
  return !pulls_.empty();
}

void Agent::CountFinished(const ServedPull& pull) {
  PullCounts& counts = finished_pulls_[pull.model()->name()];
  counts.bytes_sent += pull.bytes_sent();
  counts.sent += pull.sent();
}

void Agent::CutReaders(const Model* model, uint32_t half) {
  for (const auto& pull : PullsOf(*model)) {
    if (!pull->CutIfReading(half)) continue;
    LogWarn("model {}: receiver {}: pull cut for the trainer's sake; it resumes by itself",
            model->name(), pull->receiver_id());
    std::lock_guard lock(mu_);
    ++finished_pulls_[model->name()].cut;
  }
}

Agent::PullCounts Agent::Pulls(const std::string& model) const {
  PullCounts counts;
  ServedPulls pulls;
  {
    std::lock_guard lock(mu_);
    if (const auto it = finished_pulls_.find(model); it != finished_pulls_.end()) {
      counts = it->second;
    }
    for (const auto& [ticket, pull] : pulls_) {
      if (pull->model()->name() == model) pulls.push_back(pull);
    }
  }
  const auto now = SteadyClock::now();
  for (const auto& pull : pulls) {
    counts.bytes_sent += pull->bytes_sent();
    counts.sent += pull->sent();
    if (!pull->Finished(now)) ++counts.active;
  }
  return counts;
}

}  // namespace deltawire::sender
