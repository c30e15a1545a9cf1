#include "receiver/pull/round_part.h"

#include <algorithm>
#include <utility>

#include "common/base/sync.h"

namespace deltawire::receiver {

RoundPart::RoundPart(const RoundEnv& env, const RoundWish& wish, RoundTransfers& transfers,
                     RoundAgent agent, size_t index, Result& result)
    : env_(env),
      wish_(wish),
      transfers_(transfers),
      agent_(std::move(agent)),
      index_(index),
      result_(result) {}

Status RoundPart::Ask(const Request& request) {
  const Follower::Target& target = wish_.target;
  const uint32_t threads = CodingThreads(Thread::hardware_concurrency(), agent_.streams);
  pull_ = {.model = env_.model,
           .fingerprint = env_.buffer.layout().fingerprint(),
           .streams = agent_.streams,
           .decode = env_.rates.DecodeSpeeds(threads),
           .owned_hash = agent_.owned_hash};
  if (target.exact) pull_.at = target.parts[index_];
  if (target.incoming && request.first) {
    pull_.incoming = target.parts[index_];
    pull_.ahead_bytes = request.ahead_bytes;
  }
  for (const uint32_t c : request.mismatched) {
    if (agent_.owned.contains(c) && pull_.corrupt.size() < wire::kMaxSuspects) {
      pull_.corrupt.push_back(c);
    }
  }
  sink_ = std::make_unique<PartSink>(env_.sink, agent_.owned, name(),
                                     [this](uint64_t bytes) { env_.progress(index_, bytes); });
  transport_.reset();
  end_ = absl::UnknownError("not run");
  if (request.first && std::ranges::count(target.awaited, index_) != 0) return absl::OkStatus();
  DW_RETURN_IF_ERROR(Open());
  return CheckFloor(result_.grant.newest);
}

Status RoundPart::Open() {
  // A server gives a connection that says nothing two seconds. So one that is older when the grant
  // comes is made anew.
  constexpr std::chrono::seconds kFresh{1};
  net::PullTarget target{.host = agent_.bulk_host,
                         .port = agent_.bulk_port,
                         .fingerprint = pull_.fingerprint,
                         .streams = static_cast<uint16_t>(agent_.streams),
                         .stream_timeout = env_.stream_timeout,
                         .link = agent_.link,
                         .sockets = env_.sockets};
  const auto began = SteadyClock::now();
  RoundTransfers::Transport ahead;
  if (env_.connect_ahead && !agent_.bulk_host.empty()) {
    ahead = env_.transport(target);
    ahead->Connect();
  }
  DW_ASSIGN_OR_RETURN(result_.grant, agent_.upstream->OpenPull(pull_));
  const PullGrant& grant = result_.grant;
  const bool there = grant.host == agent_.bulk_host && grant.port == agent_.bulk_port;
  if (ahead != nullptr && there && SteadyClock::now() - began < kFresh) {
    transport_ = std::move(ahead);
    transport_->SetTicket(grant.ticket);
    return absl::OkStatus();
  }
  target.host = grant.host;
  target.port = grant.port;
  target.ticket = grant.ticket;
  transport_ = env_.transport(std::move(target));
  return absl::OkStatus();
}

void RoundPart::Transfer(const wire::Have& have) {
  if (!open()) {
    if (Status there = Await(); !there.ok()) {
      end_ = std::move(there);
      return;
    }
  }
  wire::Have own = have;
  own.held = wish_.force_full ? Identity{} : agent_.held;
  const Follower::Target& target = wish_.target;
  // The history names deltas by the whole's ids, which only an agent with the same epoch knows.
  const bool own_ids = target.parts[index_].id.epoch == target.whole.id.epoch;
  if (own.held.empty() || !own_ids) own.history.clear();
  if (own.history.empty()) {
    for (auto& entry : own.chunks) entry.depth = 0;
  }
  end_ = transport_->Run(own, *sink_);
  // A failing part does not end the others, since what they bring is not fetched again. But the
  // others of an unwritten version would wait for the trainer.
  if (!end_.ok() && target.unwritten()) transfers_.EndOthers(index_, transport_);
  transfers_.Leave();
}

Status RoundPart::Await() {
  const Status told = transfers_.Await(index_, env_.stream_timeout);
  if (absl::IsAborted(told)) {
    return Errorf(StatusCode::kAborted, "{} has not published its part of {} yet", name(),
                  ToString(wish_.target.whole));
  }
  DW_RETURN_IF_ERROR(told);
  Status opened = Open();
  if (opened.ok()) {
    opened = transfers_.Add(transport_);
  } else {
    transfers_.EndOthers(index_, transport_);
  }
  if (!opened.ok()) transfers_.Leave();
  return opened;
}

Status RoundPart::CheckFloor(const Identity& state) const {
  if (wish_.target.exact || !IsLater(wish_.floor, state)) return absl::OkStatus();
  return Errorf(StatusCode::kUnavailable,
                "{}: it has {} and is behind {}, which was held here (`deltawire sync --full` "
                "takes the older)",
                name(), ToString(state), ToString(wish_.floor));
}

Status RoundPart::CheckEnd() {
  if (transfers_.EndedByAnother(index_)) return absl::OkStatus();
  DW_RETURN_IF_ERROR(end_.status());
  const Identity& end = end_->identity;
  if (end.empty()) {
    return Errorf(StatusCode::kDataLoss, "sender {}: its pull ended at no version", name());
  }
  // Since the grant it may have gone back to a lineage that was left.
  DW_RETURN_IF_ERROR(CheckFloor(end));
  if (wish_.target.exact) {
    const Identity& at = wish_.target.parts[index_];
    const bool as_asked = end.lineage == at.lineage && end.id == at.id &&
                          end.attempt == at.attempt && (at.root == 0 || end.root == at.root);
    if (!as_asked) {
      return Errorf(StatusCode::kDataLoss, "asked for {} and its pull ended at {}",
                    DescribeFully(at), DescribeFully(end));
    }
  }
  result_.end = end;
  result_.side_files = end_->side_files_hash;
  return absl::OkStatus();
}

double RoundPart::Close(PullStats& stats) {
  const RoundTransfers::Transport transport = std::exchange(transport_, nullptr);
  sink_.reset();
  if (transport == nullptr) return 0;
  result_.link = transport->link();
  stats.streams += agent_.streams;
  stats.round_trip_seconds =
      std::max(stats.round_trip_seconds, result_.link.link.round_trip_seconds);
  return result_.link.link.bytes_per_s;
}

Status RoundPart::FetchSideFiles(SideFileCache& cache) const {
  // 0: the sender names no side files for this version; those of its description stay.
  const uint64_t hash = result_.side_files;
  if (hash == 0 || cache.Has(index_, hash)) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(std::vector<SideFile> files, agent_.upstream->SideFiles(env_.model, hash));
  DW_RETURN_IF_ERROR(Annotate(CheckCodeFiles(files, env_.allow_code_files),
                              fmt::format("sender {}: model \"{}\"", name(), env_.model)));
  cache.Put(index_, hash, std::move(files));
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
