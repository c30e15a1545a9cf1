// A Replica's pulls: one per agent at once, applied and committed when all parts are in.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/human.h"
#include "receiver/pull_sink.h"
#include "receiver/replica.h"

namespace deltawire::receiver {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRepairRounds = 3;

}  // namespace

Status Replica::Pull(bool force_full) {
  std::lock_guard buffer_lock(buffer_mu_);
  const auto start = Clock::now();
  PullStats stats;
  StateId id;  // of several agents the one to end at; of a single one whatever its pull ends at
  if (agents_.size() > 1) {
    DW_ASSIGN_OR_RETURN(id, ChooseTarget(force_full));
  }
  std::vector<uint32_t> bad;
  DW_RETURN_IF_ERROR(MarkSuspects());
  auto last_frame = start;
  for (int round = 0; round == 0 || !bad.empty(); ++round) {
    if (round > kMaxRepairRounds) {
      return Errorf(StatusCode::kDataLoss,
                    "{} chunks still disagree with their digest after {} attempts: check this "
                    "machine's memory",
                    bad.size(), kMaxRepairRounds);
    }
    stats.repaired_chunks += bad.size();
    SetPhase("pulling");
    DW_ASSIGN_OR_RETURN(bad, PullOnce(force_full && round == 0, bad, stats, id));
    if (round == 0)
      last_frame = start + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(stats.transfer_seconds));
  }
  if (buffer_->committed() != id) {
    DW_RETURN_IF_ERROR(buffer_->BeginUpdate());
    DW_RETURN_IF_ERROR(buffer_->Commit(id));
  }
  history_.Commit(id);
  stats.apply_seconds = SecondsSince(last_frame);
  stats.seconds = SecondsSince(start);
  const uint64_t moved = stats.chunks_full + stats.chunks_delta;
  stats.chunks_unchanged =
      buffer_->chunks().size() - std::min<uint64_t>(moved, buffer_->chunks().size());
  Committed(id, stats);
  return absl::OkStatus();
}

StatusOr<StateId> Replica::ChooseTarget(bool force_full) {
  // Asked now: whoever wants a sync after a publish must not be served by an event still on its
  // way.
  std::vector<StateId> newest;
  for (const Agent& agent : agents_) {
    DW_ASSIGN_OR_RETURN(newest.emplace_back(), agent.upstream->Newest(options_.model));
  }
  std::lock_guard lock(mu_);
  for (size_t i = 0; i < agents_.size(); ++i) agents_[i].view.newest = newest[i];
  const StateId common = status_.newest = CommonNewest();
  if (common.epoch == 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": the agents have no version in common: {}; every agent publishes "
                  "every version, and a rollback is for all of them",
                  options_.model, NewestOfEach());
  }
  if (force_full || kept_target_ > common) kept_.clear();
  return kept_.empty() ? common : kept_target_;
}

wire::Have Replica::MakeHave(bool force_full) const {
  wire::Have have = buffer_->have();
  if (force_full) {
    // Also the way to take an older version on purpose: nothing held, so nothing goes backwards.
    have.epoch = have.version = 0;
    for (auto& entry : have.chunks) entry = {};
  } else if (buffer_->committed().epoch != 0) {
    history_.Describe(have);
  }
  return have;
}

PullWish Replica::MakeWish(const Agent& agent, StateId at) const {
  // A pull's streams share the I/O threads, of which there is one per core.
  const uint32_t threads =
      std::min(std::max(1u, std::thread::hardware_concurrency()), options_.streams);
  return {buffer_->layout().fingerprint(), options_.streams, rates_.DecodeSpeeds(threads),
          agent.owned_hash, at};
}

std::vector<size_t> Replica::AgentsToAsk(const std::vector<uint32_t>& repair) const {
  std::vector<size_t> ask;
  for (size_t i = 0; i < agents_.size(); ++i) {
    const Coverage& owned = agents_[i].view.owned;
    const bool kept = std::any_of(kept_.begin(), kept_.end(),
                                  [i](const PartPull& part) { return part.agent == i; });
    const bool wanted =
        repair.empty() ||
        std::any_of(repair.begin(), repair.end(), [&](uint32_t c) { return owned.contains(c); });
    if (wanted && !kept) ask.push_back(i);
  }
  return ask;
}

StatusOr<std::vector<PullGrant>> Replica::OpenPulls(const std::vector<size_t>& ask, StateId at) {
  std::vector<PullGrant> grants;
  bool side_files_new = false;
  for (const size_t i : ask) {
    Agent& agent = agents_[i];
    DW_ASSIGN_OR_RETURN(PullGrant grant,
                        agent.upstream->OpenPull(options_.model, MakeWish(agent, at)));
    if (grant.side_files_hash != agent.side_files_hash) {
      DW_ASSIGN_OR_RETURN(ModelDescription description, agent.upstream->Describe(options_.model));
      agent.side_files = std::move(description.side_files);
      agent.side_files_hash = description.side_files_hash;
      side_files_new = true;
    }
    grants.push_back(std::move(grant));
  }
  if (side_files_new) DW_RETURN_IF_ERROR(WriteSideFiles());
  return grants;
}

std::vector<Replica::PartPull> Replica::MakeParts(const std::vector<size_t>& ask,
                                                  const std::vector<PullGrant>& grants) {
  std::vector<PartPull> parts;
  for (size_t n = 0; n < ask.size(); ++n) {
    const size_t i = ask[n];
    net::PullTarget target;
    target.host = grants[n].host;
    target.port = grants[n].port;
    target.ticket = grants[n].ticket;
    target.fingerprint = buffer_->layout().fingerprint();
    target.streams = static_cast<uint16_t>(options_.streams);
    target.stream_timeout = options_.stream_timeout;
    PartPull part;
    part.agent = i;
    part.client = std::make_unique<net::PullClient>(io_, std::move(target));
    part.sink = std::make_unique<PullSink>(
        *buffer_, options_.staging_bytes / agents_.size(), rates_, history_.view(),
        history_.recording(), [this, i](uint64_t bytes) { OnProgress(i, bytes); },
        agents_[i].view.owned);
    parts.push_back(std::move(part));
  }
  return parts;
}

Status Replica::RunParts(std::vector<PartPull>& parts, const wire::Have& have) {
  uint64_t expected = 0;
  for (uint32_t i = 0; i < have.chunks.size(); ++i) {
    if (have.chunks[i].version == kVersionUnknown) expected += buffer_->chunks()[i].bytes;
  }
  {
    std::lock_guard lock(mu_);
    if (stopping_) return absl::CancelledError("stopping");
    uint64_t delta_bytes = 0;
    for (const Agent& agent : agents_) delta_bytes += agent.delta_bytes;
    for (const PartPull& part : parts) clients_.push_back(part.client.get());
    std::fill(part_bytes_.begin(), part_bytes_.end(), 0);
    status_.bytes_done = 0;
    status_.bytes_total = expected > 0 ? expected : delta_bytes;
  }
  // One that fails does not end the others: what they bring is not fetched again.
  const auto run = [&have](PartPull& part) { part.end = part.client->Run(have, *part.sink); };
  std::vector<std::thread> threads;
  for (size_t n = 1; n < parts.size(); ++n) {
    threads.emplace_back([&run, &part = parts[n]] { run(part); });
  }
  if (!parts.empty()) run(parts.front());
  for (std::thread& thread : threads) thread.join();
  std::lock_guard lock(mu_);
  clients_.clear();
  Status failed;
  for (PartPull& part : parts) {
    part.client.reset();
    // Whatever it is that differs, it must not refuse the next pull's chunks too.
    if (part.sink->history_misfit()) history_.Forget();
    if (part.sink->touched()) status_.committed = {};
    if (part.end.ok() || !failed.ok()) continue;
    failed = part.end.status();
    if (agents_.size() > 1) {
      failed = Annotate(failed, fmt::format("agent {}", agents_[part.agent].view.address));
    }
  }
  return failed;
}

StatusOr<std::vector<uint32_t>> Replica::PullOnce(bool force_full,
                                                  const std::vector<uint32_t>& repair,
                                                  PullStats& stats, StateId& id) {
  const auto start = Clock::now();
  const std::vector<size_t> ask = AgentsToAsk(repair);
  auto grants = OpenPulls(ask, id);
  if (!grants.ok()) return KeepFinished({}, id, force_full, grants.status());
  if (repair.empty()) {
    uint32_t wanted = 0;
    for (const PullGrant& grant : *grants) wanted = std::max(wanted, grant.history);
    // Beside parts that came in an earlier attempt the recorded delta would not be the whole.
    history_.BeginPull(force_full || !kept_.empty() ? StateId{} : buffer_->committed(), wanted);
  }
  const wire::Have have = MakeHave(force_full);
  std::vector<PartPull> parts = MakeParts(ask, *grants);
  Status run = RunParts(parts, have);
  for (const PartPull& part : parts) {
    if (!run.ok() || agents_.size() == 1 || *part.end == id) continue;
    run = Errorf(StatusCode::kDataLoss, "agent {} was asked for {} and its pull ended at {}",
                 agents_[part.agent].view.address, ToString(id), ToString(*part.end));
    parts.clear();
    break;
  }
  if (!run.ok()) return KeepFinished(std::move(parts), id, force_full, run);
  if (agents_.size() == 1) id = *parts.front().end;
  stats.transfer_seconds += SecondsSince(start);
  SetPhase("applying");
  std::move(kept_.begin(), kept_.end(), std::back_inserter(parts));
  kept_.clear();
  std::vector<uint32_t> bad;
  for (PartPull& part : parts) {
    DW_ASSIGN_OR_RETURN(const std::vector<uint32_t> wrong, part.sink->Apply(pool_));
    bad.insert(bad.end(), wrong.begin(), wrong.end());
    part.sink->AddTo(stats);
  }
  return bad;
}

Status Replica::KeepFinished(std::vector<PartPull> parts, StateId target, bool force_full,
                             Status why) {
  if (agents_.size() == 1) return why;
  std::erase_if(parts, [](const PartPull& part) { return !part.end.ok(); });
  std::move(kept_.begin(), kept_.end(), std::back_inserter(parts));
  kept_.clear();
  if (buffer_->committed().epoch == 0) {
    // There is no whole version left to protect: into the buffer with it, chunk by chunk.
    for (PartPull& part : parts) DW_RETURN_IF_ERROR(part.sink->Apply(pool_).status());
    return why;
  }
  // A target that some agent no longer has will not be asked for again.
  if (force_full || absl::IsAborted(why)) return why;
  kept_ = std::move(parts);
  kept_target_ = target;
  spdlog::debug("model {}: {}: {} of {} agents' parts are staged", options_.model, ToString(target),
                kept_.size(), agents_.size());
  return why;
}

void Replica::OnProgress(size_t agent, uint64_t bytes) {
  constexpr int64_t kEvery = 200'000'000;
  const int64_t now = Clock::now().time_since_epoch().count();
  int64_t last = last_progress_report_.load(std::memory_order_relaxed);
  const bool report =
      now - last > kEvery && last_progress_report_.compare_exchange_strong(last, now);
  std::unique_lock lock(mu_);
  status_.bytes_done += bytes - std::min(bytes, part_bytes_[agent]);
  part_bytes_[agent] = std::max(part_bytes_[agent], bytes);
  if (!report) return;
  const Report r = MakeReport("pulling", 0);
  lock.unlock();
  SendAll(r);
}

}  // namespace deltawire::receiver
