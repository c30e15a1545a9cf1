#include "receiver/pull/pull_round.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/base/human.h"
#include "common/layout/root.h"

namespace deltawire::receiver {

void SideFileCache::Put(size_t agent, uint64_t hash, std::vector<SideFile> files) {
  parts_[agent] = {true, hash, std::move(files)};
}

std::vector<SideFile> SideFileCache::Merged() const {
  std::map<std::string, const SideFile*> first;
  for (const AgentFiles& part : parts_) {
    for (const SideFile& f : part.files) first.emplace(f.name, &f);
  }
  std::vector<SideFile> all;
  for (const auto& [name, file] : first) all.push_back(*file);
  return all;
}

PullRound::PullRound(Env env, std::vector<RoundAgent> agents, Wish wish)
    : env_(std::move(env)),
      agents_(std::move(agents)),
      wish_(std::move(wish)),
      results_(agents_.size()),
      transfers_(agents_.size(), wish_.target.awaited) {
  if (wish_.force_full) env_.sink.staged().Clear();
}

Identity PullRound::whole() const {
  std::vector<Identity> ends;
  for (const Result& result : results_) ends.push_back(result.end);
  return Combine(ends);
}

Status PullRound::Advance() {
  const Step step = step_;
  if (step == Step::kCommit) DW_RETURN_IF_ERROR(env_.gate.BeginChange());
  const auto start = SteadyClock::now();
  waited_ = 0;
  if (prepared_at_ && held_ == 0) held_ = SecondsSince(*prepared_at_);
  Status ended = Take(step);
  env_.gate.EndChange(env_.buffer);
  const double seconds = SecondsSince(start) - waited_;
  // The publish of an unwritten version divides the first transfer, and moves start_.
  if (step == Step::kTransfer && repairs_ == 0) {
    times_.transfer = std::chrono::duration<double>(last_frame_ - start_).count();
  } else if (step == Step::kOpen || step == Step::kTransfer) {
    times_.transfer += seconds;
  }
  if (step == Step::kApply || step == Step::kPrepare) times_.apply += seconds;
  if (step == Step::kCommit) times_.commit += seconds;
  return ended;
}

Status PullRound::Writable() {
  const auto start = SteadyClock::now();
  Status ended = env_.gate.WaitWritable(env_.buffer);
  waited_ += SecondsSince(start);
  return ended;
}

Status PullRound::Take(Step step) {
  switch (step) {
    case Step::kOpen:
      return Open();
    case Step::kTransfer:
      return Transfer();
    case Step::kPrepare:
      return Prepare();
    case Step::kApply:
      return Apply();
    case Step::kCommit:
      return Finish();
    case Step::kDone:
      break;
  }
  return absl::OkStatus();
}

bool PullRound::Asked(size_t agent) const {
  if (repairs_ == 0) return true;
  const Coverage& owned = agents_[agent].owned;
  return std::any_of(bad_.begin(), bad_.end(), [&](uint32_t c) { return owned.contains(c); });
}

PullWish PullRound::WishFor(size_t i) const {
  const RoundAgent& agent = agents_[i];
  const uint32_t threads = CodingThreads(Thread::hardware_concurrency(), agent.streams);
  PullWish wish{.fingerprint = env_.buffer.layout().fingerprint(),
                .streams = agent.streams,
                .decode = env_.rates.DecodeSpeeds(threads),
                .owned_hash = agent.owned_hash};
  if (Exact()) wish.at = wish_.target.parts[i];
  if (wish_.target.incoming && repairs_ == 0) {
    wish.incoming = wish_.target.parts[i];
    wish.ahead_bytes = ahead_bytes_;
  }
  for (const uint32_t c : suspects_) {
    if (agent.owned.contains(c) && wish.suspects.size() < wire::kMaxSuspects) {
      wish.suspects.push_back(c);
    }
  }
  return wish;
}

Status PullRound::OpenPart(Part& part, const PullWish& wish) {
  // Connections that are older when the grant comes are made anew: who listens gives those that say
  // nothing two seconds.
  constexpr std::chrono::seconds kFresh{1};
  const RoundAgent& a = agents_[part.agent];
  net::PullTarget target{.host = a.bulk_host,
                         .port = a.bulk_port,
                         .fingerprint = wish.fingerprint,
                         .streams = static_cast<uint16_t>(a.streams),
                         .stream_timeout = env_.stream_timeout,
                         .link = a.link,
                         .sockets = env_.sockets};
  const auto began = SteadyClock::now();
  std::shared_ptr<net::PullTransport> ahead;
  if (env_.connect_ahead && !a.bulk_host.empty()) {
    ahead = env_.transport(target);
    ahead->Connect();
  }
  DW_ASSIGN_OR_RETURN(part.grant, a.upstream->OpenPull(env_.model, wish));
  results_[part.agent].grant = part.grant;
  const bool there = part.grant.host == a.bulk_host && part.grant.port == a.bulk_port;
  if (ahead != nullptr && there && SteadyClock::now() - began < kFresh) {
    part.transport = std::move(ahead);
    part.transport->SetTicket(part.grant.ticket);
    return absl::OkStatus();
  }
  target.host = part.grant.host;
  target.port = part.grant.port;
  target.ticket = part.grant.ticket;
  part.transport = env_.transport(std::move(target));
  return absl::OkStatus();
}

Status PullRound::Open() {
  parts_.clear();
  // Before the call, so that those who are served open their pulls meanwhile.
  const bool forwards = env_.forward != nullptr && repairs_ == 0;
  if (forwards) {
    env_.forward->Open(env_.buffer, wish_.target.whole, MakeHave(), agents_.size() > 1);
  }
  // Before the publish the only file must not change, so what may come fits into the staging.
  const bool stages = wish_.target.unwritten() && !env_.buffer.at_once();
  ahead_bytes_ = stages ? std::max<uint64_t>(1, env_.sink.staged().room() / agents_.size()) : 0;
  uint32_t history = 0;
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (!Asked(i)) continue;
    Part part;
    part.agent = i;
    part.sink = std::make_unique<PartSink>(env_.sink, agents_[i].owned, Name(i),
                                           [this, i](uint64_t bytes) { env_.progress(i, bytes); });
    const bool awaited = repairs_ == 0 && std::ranges::count(wish_.target.awaited, i) != 0;
    if (!awaited) {
      DW_RETURN_IF_ERROR(OpenPart(part, WishFor(i)));
      DW_RETURN_IF_ERROR(CheckFloor(i, part.grant.newest));
      history = std::max(history, part.grant.history);
      if (forwards) {
        env_.forward->Granted(env_.buffer, Exact() ? Identity{} : part.grant.newest, history);
      }
    }
    parts_.push_back(std::move(part));
  }
  if (repairs_ == 0) {
    // If chunks came in an earlier, broken pull, also of a process before this one, recording this
    // one would miss their changes.
    const bool clean = !wish_.force_full && env_.sink.staged().empty() && !env_.sink.dirty() &&
                       !env_.buffer.update().begun() &&
                       std::none_of(agents_.begin(), agents_.end(),
                                    [](const RoundAgent& a) { return a.held.empty(); });
    delta_from_ = clean ? env_.buffer.committed() : Identity{};
    env_.history.BeginPull(delta_from_.id, history);
  }
  step_ = Step::kTransfer;
  return absl::OkStatus();
}

wire::Have PullRound::MakeHave() const {
  wire::Have have = env_.buffer.bases().have();
  if (wish_.force_full && repairs_ == 0) {
    // A receiver that holds nothing may also be given an older version, so this is the way to take
    // one on purpose.
    for (auto& entry : have.chunks) entry = {};
  } else {
    if (repairs_ == 0 && env_.history.recording() != nullptr) env_.history.Describe(have);
    env_.sink.staged().Overlay(have);
  }
  return have;
}

Status PullRound::RunParts() {
  const wire::Have have = MakeHave();
  bytes_expected_ = 0;
  for (uint32_t i = 0; i < have.chunks.size(); ++i) {
    if (have.chunks[i].version == kVersionUnknown) {
      bytes_expected_ += env_.buffer.chunks()[i].bytes;
    }
  }
  if (env_.forward != nullptr) env_.forward->Names(have.history);
  env_.sink.BeginRound(env_.history.view(), env_.history.recording(), env_.buffer.at_once(),
                       env_.forward);
  std::vector<RoundTransfers::Transport> opened;
  for (const Part& part : parts_) {
    if (part.transport != nullptr) opened.push_back(part.transport);
  }
  DW_RETURN_IF_ERROR(transfers_.Begin(std::move(opened)));
  std::vector<Thread> threads;
  for (size_t n = 1; n < parts_.size(); ++n) {
    threads.emplace_back([this, &have, &part = parts_[n]] { RunPart(part, have); });
  }
  if (!parts_.empty()) RunPart(parts_.front(), have);
  for (Thread& thread : threads) thread.join();
  return transfers_.End();
}

void PullRound::RunPart(Part& part, const wire::Have& have) {
  if (part.transport == nullptr) {
    if (Status there = AwaitPart(part); !there.ok()) {
      part.end = std::move(there);
      return;
    }
  }
  wire::Have own = have;
  own.held = wish_.force_full ? Identity{} : agents_[part.agent].held;
  const Follower::Target& target = wish_.target;
  // The history names deltas by the whole's ids, which only an agent with the same epoch knows.
  const bool own_ids = target.parts[part.agent].id.epoch == target.whole.id.epoch;
  if (own.held.empty() || !own_ids) own.history.clear();
  if (own.history.empty()) {
    for (auto& entry : own.chunks) entry.depth = 0;
  }
  part.end = part.transport->Run(own, *part.sink);
  // A failing part does not end the others, since what they bring is not fetched again. But the
  // others of an unwritten version would wait for the trainer.
  if (!part.end.ok() && target.unwritten()) transfers_.EndOthers(part.agent, part.transport);
  transfers_.Leave();
}

Status PullRound::AwaitPart(Part& part) {
  const Status told = transfers_.Await(part.agent, env_.stream_timeout);
  if (absl::IsAborted(told)) {
    return Errorf(StatusCode::kAborted, "{} has not published its part of {} yet", Name(part.agent),
                  ToString(wish_.target.whole));
  }
  DW_RETURN_IF_ERROR(told);
  Status opened = OpenPart(part, WishFor(part.agent));
  if (opened.ok()) {
    opened = transfers_.Add(part.transport);
  } else {
    transfers_.EndOthers(part.agent, part.transport);
  }
  if (!opened.ok()) transfers_.Leave();
  return opened;
}

Status PullRound::Transfer() {
  Status ended = RunParts();
  if (repairs_ == 0) last_frame_ = SteadyClock::now();
  if (repairs_ == 0 && wish_.target.unwritten()) NoteAhead();
  // A history that differs from the sender's must not make the next pull's chunks unusable as well.
  if (env_.sink.tally().has_refusals()) env_.history.Forget();
  for (const Part& part : parts_) {
    if (!ended.ok()) break;
    if (transfers_.EndedByAnother(part.agent)) continue;
    ended = part.end.ok() ? CheckEnd(part) : part.end.status();
    if (!ended.ok() && agents_.size() > 1) {
      ended = Annotate(ended, fmt::format("agent {}", Name(part.agent)));
    }
  }
  NoteLinks();
  env_.sink.tally().AddTo(stats_);
  times_.stage += env_.sink.tally().stage_seconds();
  parts_.clear();
  if (!ended.ok()) {
    return env_.sink.tally().touch_failed() || absl::IsCancelled(ended) ? ended
                                                                        : Blame(std::move(ended));
  }
  if (env_.forward != nullptr) ForwardEnd();
  // Deltas that are staged for the only file wait there for the word: to apply them would take the
  // file from its readers.
  const bool readers_see = !env_.buffer.at_once() && !env_.buffer.update().begun();
  step_ = wish_.hold && !prepared() && readers_see ? Step::kPrepare : Step::kApply;
  return absl::OkStatus();
}

void PullRound::ForwardEnd() {
  const net::PullEnd end{whole(), results_.front().side_files};
  if (!env_.sink.clean() || !env_.forward->MakesUp(end)) return;
  // An error is met again, and reported, when the version is to be committed.
  if (FetchSideFiles().ok()) env_.forward->Complete(end, env_.side_files.Merged());
}

void PullRound::NoteAhead() {
  const auto said = env_.published ? env_.published() : std::nullopt;
  // Without the word the last frame shows it, since no pull ends before.
  const auto at = said ? std::clamp(said->at, start_, last_frame_) : last_frame_;
  stats_.ahead_bytes =
      std::min(said ? said->bytes : env_.sink.tally().bytes(), env_.sink.tally().bytes());
  times_.ahead = stats_.ahead_seconds = std::chrono::duration<double>(at - start_).count();
  start_ = at;
}

void PullRound::NoteLinks() {
  stats_.streams = 0;
  double trip = 0, rate = 0;
  for (const Part& part : parts_) {
    if (part.transport == nullptr) continue;
    const net::LinkSample& link = results_[part.agent].link = part.transport->link();
    stats_.streams += static_cast<uint32_t>(agents_[part.agent].streams);
    trip = std::max(trip, link.link.round_trip_seconds);
    rate += link.link.bytes_per_s;
  }
  stats_.round_trip_seconds = std::max(stats_.round_trip_seconds, trip);
  stats_.best_bytes_per_s = std::max(stats_.best_bytes_per_s, rate);
}

Status PullRound::Prepare() {
  const bool staged = !env_.buffer.at_once() && !env_.buffer.update().begun();
  if (staged && env_.sink.staged().has_refused()) {
    env_.sink.staged().Clear();
    return Errorf(
        StatusCode::kUnavailable,
        "a delta did not fit the history of past deltas that is kept here; pulling again");
  }
  DW_RETURN_IF_ERROR(CheckRoots(staged));
  DW_RETURN_IF_ERROR(FetchSideFiles());
  if (!staged) DW_RETURN_IF_ERROR(env_.buffer.update().Prepare(whole()));
  prepared_at_ = SteadyClock::now();
  step_ = staged ? Step::kApply : Step::kCommit;
  return absl::OkStatus();
}

Status PullRound::Blame(Status error) {
  fault_ = error;
  return error;
}

Status PullRound::CheckFloor(size_t agent, const Identity& state) const {
  if (Exact() || !IsLater(wish_.floor, state)) return absl::OkStatus();
  return Errorf(StatusCode::kUnavailable,
                "{}: it has {} and is behind {}, which was held here (`deltawire sync --full` "
                "takes the older)",
                Name(agent), ToString(state), ToString(wish_.floor));
}

Status PullRound::CheckEnd(const Part& part) {
  const Identity& end = part.end->identity;
  if (end.empty()) {
    return Errorf(StatusCode::kDataLoss, "sender {}: its pull ended at nothing", Name(part.agent));
  }
  // Since the grant it may have gone back to a lineage that was left.
  DW_RETURN_IF_ERROR(CheckFloor(part.agent, end));
  if (Exact()) {
    const Identity& at = wish_.target.parts[part.agent];
    const bool as_asked = end.lineage == at.lineage && end.id == at.id &&
                          end.attempt == at.attempt && (at.root == 0 || end.root == at.root);
    if (!as_asked) {
      return Errorf(StatusCode::kDataLoss, "asked for {} and its pull ended at {}",
                    DescribeFully(at), DescribeFully(end));
    }
  }
  results_[part.agent].end = end;
  results_[part.agent].side_files = part.end->side_files_hash;
  return absl::OkStatus();
}

Status PullRound::Apply() {
  if (env_.sink.to_apply()) DW_RETURN_IF_ERROR(Writable());
  const std::set<uint32_t> mismatched = env_.sink.tally().mismatched();
  suspects_.assign(mismatched.begin(), mismatched.end());
  DW_ASSIGN_OR_RETURN(bad_, env_.sink.Apply(env_.pool));
  if (bad_.empty()) {
    step_ = wish_.hold && !prepared() ? Step::kPrepare : Step::kCommit;
    return absl::OkStatus();
  }
  stats_.repaired_chunks += bad_.size();
  if (repairs_++ == kMaxRepairs) {
    const uint32_t c = *std::min_element(bad_.begin(), bad_.end());
    return Blame(
        Errorf(StatusCode::kDataLoss,
               "{} chunks still disagree with their digest after {} attempts, the first is chunk "
               "{} of tensor {}: the sender's memory, this machine's or the path between them is "
               "bad",
               bad_.size(), kMaxRepairs, c,
               env_.buffer.layout().tensor(env_.buffer.chunks()[c].tensor).name));
  }
  step_ = Step::kOpen;
  return absl::OkStatus();
}

Status PullRound::CheckRoots(bool staged) {
  std::vector<uint64_t> digests(env_.buffer.chunks().size());
  for (uint32_t i = 0; i < digests.size(); ++i) {
    digests[i] = staged ? env_.sink.digest(i) : env_.buffer.bases().digest(i);
  }
  for (size_t i = 0; i < agents_.size(); ++i) {
    const uint64_t root = RootOf(digests, agents_[i].owned);
    const Identity& end = results_[i].end;
    if (root == end.root) continue;
    root_mismatch_ = true;
    return Blame(
        Errorf(StatusCode::kDataLoss,
               "sender {}: what it sent does not make up {}: the chunks here have root {:016x}; a "
               "chunk was left out, or is another version's; not committed",
               Name(i), DescribeFully(end), root));
  }
  return absl::OkStatus();
}

Status PullRound::FetchSideFiles() {
  for (size_t i = 0; i < agents_.size(); ++i) {
    // 0: the sender names no side files for this version; those of its description stay.
    const uint64_t hash = results_[i].side_files;
    if (hash == 0 || env_.side_files.Has(i, hash)) continue;
    DW_ASSIGN_OR_RETURN(std::vector<SideFile> files,
                        agents_[i].upstream->SideFiles(env_.model, hash));
    DW_RETURN_IF_ERROR(Annotate(CheckCodeFiles(files, env_.allow_code_files),
                                fmt::format("sender {}: model \"{}\"", Name(i), env_.model)));
    env_.side_files.Put(i, hash, std::move(files));
  }
  return absl::OkStatus();
}

Status PullRound::Finish() {
  DW_RETURN_IF_ERROR(CheckRoots(false));
  DW_RETURN_IF_ERROR(FetchSideFiles());
  // After a forced full pull the state may be the committed one, with no byte changed.
  if (!(env_.buffer.committed() == whole()) || env_.buffer.update().begun()) {
    DW_RETURN_IF_ERROR(Writable());
    DW_RETURN_IF_ERROR(env_.buffer.update().Commit(whole(), env_.side_files.Merged()));
    env_.sink.MarkCommitted();
  }
  delta_ = env_.history.Commit(whole().id);
  stats_.transfer_seconds = std::chrono::duration<double>(last_frame_ - start_).count();
  stats_.apply_seconds = SecondsSince(last_frame_) - held_;
  stats_.seconds = SecondsSince(start_) - held_;
  const uint64_t chunks = env_.buffer.chunks().size();
  stats_.chunks_unchanged =
      chunks - std::min<uint64_t>(stats_.chunks_full + stats_.chunks_delta, chunks);
  step_ = Step::kDone;
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
