// The Agent's pulls: who may pull, how their chunks are coded, what they have moved.
#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <algorithm>
#include <thread>

#include "sender/agent.h"

namespace deltawire::sender {
namespace {

StatusOr<wire::Ticket> RandomTicket() {
  wire::Ticket ticket;
  if (getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size())) {
    return ErrnoError("getrandom for a ticket");
  }
  return ticket;
}

}  // namespace

PullCoding Agent::CodingFor(const PullRequest& request) {
  PullCoding coding;
  coding.policy = options_.codec;
  coding.history = options_.history;
  coding.rates = &coder_rates_;
  // A pull's streams share the I/O threads, of which there is one per core.
  coding.encode_threads =
      std::min(std::max(1u, std::thread::hardware_concurrency()), request.streams);
  const CoderSpeeds like_ours = coder_rates_.DecodeSpeeds(coding.encode_threads);
  coding.decode.tight = request.decode.tight > 0 ? request.decode.tight : like_ours.tight;
  coding.decode.dense = request.decode.dense > 0 ? request.decode.dense : like_ours.dense;
  std::lock_guard lock(mu_);
  constexpr size_t kMaxLinks = 4096;
  if (links_.size() >= kMaxLinks) {  // those that no pull uses; they start anew when they come back
    std::erase_if(links_, [](const auto& l) { return l.second.use_count() == 1; });
  }
  auto& link = links_[request.receiver_id];
  if (link == nullptr) link = std::make_shared<LinkEstimate>();
  coding.link = link;
  return coding;
}

// What the receiver shall keep for later pulls: nothing where fast is the choice anyway.
uint32_t Agent::HistoryWanted(const PullCoding& coding, const Published& now) {
  if (coding.policy == CodecPolicy::kTight) return coding.history;
  if (coding.policy != CodecPolicy::kAuto || now.log.empty()) return 0;
  const Delta& newest = *now.log.back();
  if (newest.chunks().empty()) return coding.history;  // nothing to judge by
  CodecChoiceInputs in;
  in.chunk_bytes = kChunkBytes;
  in.fast_bytes = newest.payload_bytes() / newest.chunks().size();
  in.link_bytes_per_s = coding.link->bytes_per_s();
  in.encode = coding.rates->EncodeSpeeds(coding.encode_threads);
  in.decode = coding.decode;
  in.tight_ratio = coding.rates->tight_ratio();
  return ChooseCodec(in) == kernels::Codec::kTight ? coding.history : 0;
}

StatusOr<PullTicket> Agent::OpenPull(const PullRequest& request) {
  const auto& [name, receiver_id, fingerprint, streams, decode, owned_hash, at] = request;
  DW_ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Find(name));
  if (streams == 0 || streams > wire::kMaxStreams) {
    return Errorf(StatusCode::kInvalidArgument, "model \"{}\": {} streams; use 1 to {}", name,
                  streams, wire::kMaxStreams);
  }
  // Links are remembered by this name.
  if (constexpr size_t kMaxReceiverId = 128; receiver_id.size() > kMaxReceiverId) {
    return Errorf(StatusCode::kInvalidArgument, "a receiver id of {} bytes; use at most {}",
                  receiver_id.size(), kMaxReceiverId);
  }
  if (fingerprint != model->layout().fingerprint().Hex()) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": receiver {} has layout {}, the sender {}; describe the model again", name,
        receiver_id, fingerprint, model->layout().fingerprint().Hex());
  }
  const auto published = model->published();
  if (published == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet", name);
  }
  if (owned_hash != model->owned().hash() && (owned_hash != 0 || !model->owned().all())) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": this agent has chunks {} of {}, and receiver {} expects others; "
                  "describe the model again (a receiver needs --sender for every agent)",
                  name, ToString(model->owned().ranges()), model->chunks().size(), receiver_id);
  }
  std::shared_ptr<const Published> pinned;
  if (at.epoch != 0) {
    DW_ASSIGN_OR_RETURN(pinned, model->At(at));
  }
  DW_ASSIGN_OR_RETURN(wire::Ticket ticket, RandomTicket());
  const PullCoding coding = CodingFor(request);
  auto session = std::make_shared<PullSession>(model, receiver_id, static_cast<uint16_t>(streams),
                                               coding, std::move(pinned));
  std::vector<std::shared_ptr<PullSession>> replaced;
  {
    std::lock_guard lock(mu_);
    Sweep();
    // A receiver has one pull at a time; an older one is left over from a broken connection.
    for (auto& [other_ticket, other] : pulls_) {
      if (other->model() == model && other->receiver_id() == receiver_id) replaced.push_back(other);
    }
    pulls_[ticket] = session;
  }
  for (auto& other : replaced) other->Cut(absl::AbortedError("replaced by a newer pull"));
  return PullTicket{ticket, HistoryWanted(coding, *published)};
}

StatusOr<std::shared_ptr<net::PullSession>> Agent::Join(const wire::Hello& hello,
                                                        const std::string& peer) {
  std::shared_ptr<PullSession> session;
  {
    std::lock_guard lock(mu_);
    Sweep();
    if (const auto it = pulls_.find(hello.ticket); it != pulls_.end()) session = it->second;
  }
  if (session == nullptr) {
    spdlog::warn("bulk stream from {}: its ticket is unknown or has expired", peer);
    return absl::PermissionDeniedError(
        "the ticket is unknown or has expired; open a pull over gRPC first");
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

void Agent::Sweep() {
  const auto now = std::chrono::steady_clock::now();
  for (auto it = pulls_.begin(); it != pulls_.end();) {
    if (it->second->Finished(now)) {
      PullCounts& counts = finished_pulls_[it->second->model()->name()];
      counts.bytes_sent += it->second->bytes_sent();
      counts.sent += it->second->sent();
      it = pulls_.erase(it);
    } else {
      ++it;
    }
  }
}

void Agent::CutReaders(const Model* model, uint32_t half) {
  std::vector<std::shared_ptr<PullSession>> candidates;
  {
    std::lock_guard lock(mu_);
    for (auto& [ticket, pull] : pulls_) {
      if (pull->model().get() == model) candidates.push_back(pull);
    }
  }
  for (auto& pull : candidates) {
    if (!pull->CutIfReading(half)) continue;
    spdlog::warn("model {}: receiver {}: pull cut for the trainer's sake; it resumes by itself",
                 model->name(), pull->receiver_id());
    std::lock_guard lock(mu_);
    ++finished_pulls_[model->name()].cut;
  }
}

Agent::PullCounts Agent::Pulls(const std::string& model) const {
  std::lock_guard lock(mu_);
  PullCounts counts;
  if (const auto it = finished_pulls_.find(model); it != finished_pulls_.end()) counts = it->second;
  const auto now = std::chrono::steady_clock::now();
  for (const auto& [ticket, pull] : pulls_) {
    if (pull->model()->name() != model) continue;
    counts.bytes_sent += pull->bytes_sent();
    counts.sent += pull->sent();
    if (!pull->Finished(now)) ++counts.active;
  }
  return counts;
}

}  // namespace deltawire::sender
