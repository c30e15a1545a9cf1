#include "receiver/pull/pull_round.h"

#include <algorithm>
#include <utility>

#include "common/base/sync.h"
#include "common/layout/root.h"

namespace deltawire::receiver {

PullRound::PullRound(Env env, std::vector<RoundAgent> agents, Wish wish)
    : env_(std::move(env)),
      wish_([&] {
        if (agents.size() > 1) wish.target.exact = true;
        return std::move(wish);
      }()),
      transfers_(agents.size(), wish_.target.awaited),
      results_(agents.size()) {
  for (size_t i = 0; i < agents.size(); ++i) {
    parts_.emplace_back(env_, wish_, transfers_, std::move(agents[i]), i, results_[i]);
  }
  if (wish_.force_full) env_.sink.staged().Clear();
}

Identity PullRound::whole() const {
  std::vector<Identity> ends;
  for (const Result& result : results_) ends.push_back(result.end);
  return Combine(ends);
}

Status PullRound::Advance() {
  const Step step = step_;
  if (step == Step::kDone) return absl::OkStatus();
  if (step == Step::kCommit) DW_RETURN_IF_ERROR(env_.gate.BeginChange());
  clock_.BeginStep();
  const auto run = [&](Status (PullRound::*take)(), double RoundTimes::*part) {
    Status ended = (this->*take)();
    env_.gate.EndChange(env_.buffer);
    // Transfer itself measures the first one, to its last frame.
    if (step != Step::kTransfer || repairs_ > 0) clock_.EndStep(part);
    return ended;
  };
  switch (step) {
    case Step::kOpen:
      return run(&PullRound::Open, &RoundTimes::transfer);
    case Step::kTransfer:
      return run(&PullRound::Transfer, &RoundTimes::transfer);
    case Step::kPrepare:
      return run(&PullRound::Prepare, &RoundTimes::apply);
    case Step::kApply:
      return run(&PullRound::Apply, &RoundTimes::apply);
    case Step::kCommit:
    case Step::kDone:
      break;
  }
  return run(&PullRound::Commit, &RoundTimes::commit);
}

Status PullRound::Open() {
  const bool first = repairs_ == 0;
  // Before the call, so that served receivers open their pulls in the same time.
  Forwarding* const forward = first ? env_.forward : nullptr;
  if (forward != nullptr) {
    forward->Open(env_.buffer, wish_.target.whole, MakeHave(), parts_.size() > 1);
  }
  // Before the publish the only file must not change, so what may come fits into the staging.
  const bool stages = wish_.target.unwritten() && !env_.buffer.at_once();
  const uint64_t ahead_bytes =
      stages ? std::max<uint64_t>(1, env_.sink.staged().room() / parts_.size()) : 0;
  uint32_t history = 0;
  for (RoundPart& part : parts_) {
    const bool needed =
        std::ranges::any_of(corrupt_, [&](uint32_t c) { return part.agent().owned.contains(c); });
    if (!first && !needed) continue;
    DW_RETURN_IF_ERROR(
        part.Ask({.first = first, .ahead_bytes = ahead_bytes, .mismatched = mismatched_}));
    if (!part.open()) continue;
    const PullGrant& grant = part.result().grant;
    history = std::max(history, grant.history);
    if (forward != nullptr) {
      forward->NoteGrant(env_.buffer, wish_.target.exact ? Identity{} : grant.newest, history);
    }
  }
  if (first) {
    // If chunks came in an earlier, broken pull, also of a process before this one, recording this
    // one would miss their changes.
    const bool clean =
        !wish_.force_full && env_.sink.staged().empty() && !env_.sink.dirty() &&
        !env_.buffer.update().begun() &&
        std::ranges::none_of(parts_, [](const RoundPart& p) { return p.agent().held.empty(); });
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
  if (env_.forward != nullptr) env_.forward->SetHistory(have.history);
  env_.sink.BeginRound(env_.history.view(), env_.history.recording(), env_.buffer.at_once(),
                       env_.forward);
  std::vector<RoundPart*> asked;
  std::vector<RoundTransfers::Transport> opened;
  for (RoundPart& part : parts_) {
    if (part.asked()) asked.push_back(&part);
    if (part.open()) opened.push_back(part.transport());
  }
  DW_RETURN_IF_ERROR(transfers_.Begin(std::move(opened)));
  std::vector<Thread> threads;
  for (size_t n = 1; n < asked.size(); ++n) {
    threads.emplace_back([&have, part = asked[n]] { part->Transfer(have); });
  }
  if (!asked.empty()) asked.front()->Transfer(have);
  for (Thread& thread : threads) thread.join();
  return transfers_.End();
}

Status PullRound::Transfer() {
  Status ended = RunParts();
  const RoundTally& tally = env_.sink.tally();
  if (repairs_ == 0) {
    clock_.EndFirstTransfer();
    if (wish_.target.unwritten()) clock_.SetAhead(tally.bytes(), stats_);
  }
  // A history that differs from the sender's must not make the next pull's chunks unusable as well.
  if (tally.has_refusals()) env_.history.Forget();
  stats_.streams = 0;
  double rate = 0;
  for (RoundPart& part : parts_) {
    if (!part.asked()) continue;
    if (ended.ok()) {
      ended = part.CheckEnd();
      if (parts_.size() > 1) ended = Annotate(ended, fmt::format("agent {}", part.name()));
    }
    rate += part.Close(stats_);
  }
  stats_.best_bytes_per_s = std::max(stats_.best_bytes_per_s, rate);
  tally.AddTo(stats_);
  clock_.AddStage(tally.stage_seconds());
  if (!ended.ok()) {
    if (tally.touch_failed() || absl::IsCancelled(ended)) return ended;
    return fault_ = ended;
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
  if (!env_.sink.clean() || !env_.forward->IsComplete(end)) return;
  // Commit meets an error again, and reports it.
  if (FetchSideFiles().ok()) env_.forward->Complete(end, env_.side_files.Merged());
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
  clock_.MarkPrepared();
  step_ = staged ? Step::kApply : Step::kCommit;
  return absl::OkStatus();
}

Status PullRound::Apply() {
  if (env_.sink.to_apply()) {
    DW_RETURN_IF_ERROR(clock_.Wait([&] { return env_.gate.WaitWritable(env_.buffer); }));
  }
  const std::set<uint32_t> mismatched = env_.sink.tally().mismatched();
  mismatched_.assign(mismatched.begin(), mismatched.end());
  DW_ASSIGN_OR_RETURN(corrupt_, env_.sink.Apply(env_.pool));
  if (corrupt_.empty()) {
    step_ = wish_.hold && !prepared() ? Step::kPrepare : Step::kCommit;
    return absl::OkStatus();
  }
  stats_.repaired_chunks += corrupt_.size();
  if (repairs_++ == kMaxRepairs) {
    const uint32_t c = *std::min_element(corrupt_.begin(), corrupt_.end());
    fault_ = Errorf(
        StatusCode::kDataLoss,
        "{} chunks still disagree with their digest after {} attempts, the first is chunk {} of "
        "tensor {}: the sender's memory, this machine's or the path between them is bad",
        corrupt_.size(), kMaxRepairs, c,
        env_.buffer.layout().tensor(env_.buffer.chunks()[c].tensor).name);
    return fault_;
  }
  step_ = Step::kOpen;
  return absl::OkStatus();
}

Status PullRound::CheckRoots(bool staged) {
  std::vector<uint64_t> digests(env_.buffer.chunks().size());
  for (uint32_t i = 0; i < digests.size(); ++i) {
    digests[i] = staged ? env_.sink.digest(i) : env_.buffer.bases().digest(i);
  }
  for (const RoundPart& part : parts_) {
    const uint64_t root = RootOf(digests, part.agent().owned);
    const Identity& end = part.result().end;
    if (root == end.root) continue;
    root_mismatch_ = true;
    fault_ =
        Errorf(StatusCode::kDataLoss,
               "sender {}: the chunks that it sent do not make up {}: they have root {:016x} here; "
               "a chunk was left out, or is another version's; not committed",
               part.name(), DescribeFully(end), root);
    return fault_;
  }
  return absl::OkStatus();
}

Status PullRound::FetchSideFiles() {
  for (const RoundPart& part : parts_) DW_RETURN_IF_ERROR(part.FetchSideFiles(env_.side_files));
  return absl::OkStatus();
}

Status PullRound::Commit() {
  DW_RETURN_IF_ERROR(CheckRoots(false));
  DW_RETURN_IF_ERROR(FetchSideFiles());
  // After a forced full pull the state may be the committed one, with no byte changed.
  if (!(env_.buffer.committed() == whole()) || env_.buffer.update().begun()) {
    DW_RETURN_IF_ERROR(clock_.Wait([&] { return env_.gate.WaitWritable(env_.buffer); }));
    DW_RETURN_IF_ERROR(env_.buffer.update().Commit(whole(), env_.side_files.Merged()));
    env_.sink.MarkCommitted();
  }
  delta_ = env_.history.Commit(whole().id);
  clock_.AddTo(stats_);
  const uint64_t chunks = env_.buffer.chunks().size();
  stats_.chunks_unchanged =
      chunks - std::min<uint64_t>(stats_.chunks_full + stats_.chunks_delta, chunks);
  step_ = Step::kDone;
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
