#include "common/serving/pull_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire {
namespace {

using IncomingStep = IncomingVersion::Step;
using kernels::Codec;

/// The piece's bytes at a receiver until it is applied. Receivers stage deltas in fast.
uint64_t StagedBytes(const IncomingVersion::Piece& piece) {
  return std::max<uint64_t>(piece.header.payload_bytes, piece.fast_bytes);
}

}  // namespace

PullPlan::PullPlan(StateSource& model, const PullTerms& terms, const FrameMaker& maker)
    : model_(model),
      terms_(terms),
      maker_(maker),
      work_(terms.request.streams),
      end_(model, terms.pinned) {}

void PullPlan::Start(const wire::Have& have) {
  have_ = have;
  if (terms_.incoming != nullptr) sent_piece_.resize(have_.chunks.size());
  phase_ = terms_.incoming != nullptr ? Phase::kIncoming : Phase::kPublished;
}

// The end -------------------------------------------------------------------------------------

void PullPlan::PinIncoming(const std::shared_ptr<const Published>& state) {
  if (terms_.ends_at_incoming && end_.pinned() == nullptr) end_.Pin(state);
}

bool PullPlan::Accept(const std::shared_ptr<const Published>& state) {
  const EndState::Use use = end_.Judge(state);
  if (use != EndState::Use::kOver) return use == EndState::Use::kMake;
  // Each chunk is sent at most once before and once after this point. So the pull ends within twice
  // the time that the model takes on the link, however often the trainer publishes.
  LogInfo("model {}: receiver {}: {} overtakes its pull of {}, which ends there {}", model_.name(),
          terms_.request.receiver_id, ToString(state->info.id()), ToString(end_.state()->info.id()),
          ToString(TraceOf(state->info.identity)));
  end_.Pin(state);
  return true;
}

bool PullPlan::HasUnfinished() const {
  return std::ranges::any_of(work_, [](const Work& w) { return w.making || !w.postponed.empty(); });
}

bool PullPlan::HasLifts(uint16_t stream) const {
  const Work& work = work_[stream];
  return phase_ == Phase::kPublished && end_.pinned() != nullptr && work.lifted < work.sent.size();
}

void PullPlan::End(const Published& now) {
  phase_ = Phase::kEnded;
  end_.Settle();
  if (refused_bases_ == 0 || have_.held.lineage != now.info.identity.lineage) return;
  LogWarn("model {}: receiver {}: {} chunks had an unknown base and went whole", model_.name(),
          terms_.request.receiver_id, refused_bases_);
}

// Steps ---------------------------------------------------------------------------------------

StatusOr<PullPlan::Step> PullPlan::Next(uint16_t stream, const LeasedState& from) {
  Work& work = work_[stream];
  const Phase before = phase_;
  std::optional<FrameTask> task;
  if (phase_ == Phase::kIncoming) {
    DW_ASSIGN_OR_RETURN(task, NextPiece(work, from));
  } else if (phase_ == Phase::kPublished) {
    if (!Accept(from.state)) return Step{Kind::kRetry};
    task = NextChunk(work, *from.state);
  }
  if (phase_ == Phase::kEnded) return Step{Kind::kEnd};
  if (!task) return Step{phase_ == before ? Kind::kWait : Kind::kRetry};
  work.making = true;
  return Step{Kind::kFrame, *std::move(task)};
}

void PullPlan::Finish(uint16_t stream, FrameTask task, bool later) {
  Work& work = work_[stream];
  work.making = false;
  if (!later) return;
  // The chunk is planned anew. If the pull is overtaken before, it needs no lift.
  if (!task.lift && !work.sent.empty() && work.sent.back() == task.chunk) work.sent.pop_back();
  if (task.piece) {
    have_.chunks[task.chunk] = task.before;
    if (task.codec == Codec::kFast) task.piece.reset();  // its bytes are gone
  }
  work.postponed.push_back({task.chunk, task.lift, std::move(task.piece)});
  work.retried = true;
}

// Published chunks ----------------------------------------------------------------------------

std::optional<FrameTask> PullPlan::NextChunk(Work& work, const Published& now) {
  // Postponed chunks alternate with others, while the cache still has their payloads.
  if (!std::exchange(work.retried, false)) {
    if (auto again = NextPostponed(work, now)) {
      work.retried = true;
      return again;
    }
  }
  while (cursor_ < model_.chunks().size()) {
    const uint32_t c = cursor_++;
    if (!model_.owned().contains(c)) continue;
    if (!sent_piece_.empty() && sent_piece_[c] != 0) continue;
    if (auto task = PlanChunk(work, c, now)) return task;
  }
  if (auto lift = NextLift(work, now)) return lift;
  if (auto last = NextPostponed(work, now)) {
    last->if_busy = EncodedCache::IfBusy::kMake;
    return last;
  }
  bool waits = HasUnfinished();
  for (uint16_t s = 0; s < work_.size(); ++s) waits |= HasLifts(s);
  if (!waits) End(now);
  return std::nullopt;
}

std::optional<FrameTask> PullPlan::NextPostponed(Work& work, const Published& now) {
  while (!work.postponed.empty()) {
    const Postponed next = std::move(work.postponed.front());
    work.postponed.pop_front();
    auto task = next.lift ? PlanLift(next.chunk, now) : PlanChunk(work, next.chunk, now);
    if (task) return task;
  }
  return std::nullopt;
}

ChunkHistory PullPlan::HistoryOf(uint32_t chunk, const Published& now) const {
  const wire::Have::Entry& have = have_.chunks[chunk];
  // A payload from another sender may refer to more history than those that are made here.
  const size_t limit =
      now.encoded->has_foreign() ? have.depth : std::min<size_t>(terms_.coding.history, have.depth);
  // History leads only to chunks at the receiver's committed version.
  if (have_.held.lineage != now.info.identity.lineage) return {};
  if (limit == 0 || have.version != have_.held.id.version) return {};
  return {CommonHistory(now.log, have_.held.id, have_.history), chunk, limit};
}

std::optional<FrameTask> PullPlan::PlanChunk(Work& work, uint32_t c, const Published& now) {
  if (end_.pinned() == nullptr) work.sent.push_back(c);
  const wire::Have::Entry& have = have_.chunks[c];
  ChunkPlan plan = deltawire::PlanChunk(now.log, c, have.version, have.digest, (*now.digests)[c],
                                        model_.chunks()[c].bytes);
  if (plan.base_refused) ++refused_bases_;
  if (plan.kind == ChunkPlan::Kind::kNothing) return std::nullopt;
  return FrameTask{.chunk = c, .plan = std::move(plan), .history = HistoryOf(c, now)};
}

std::optional<FrameTask> PullPlan::PlanLift(uint32_t c, const Published& now) const {
  ChunkPlan plan = deltawire::PlanLift(now.log, c, end_.VersionsTo(now), model_.chunks()[c].bytes);
  if (plan.kind == ChunkPlan::Kind::kNothing) return std::nullopt;
  return FrameTask{.chunk = c, .lift = true, .plan = std::move(plan), .history = {}};
}

std::optional<FrameTask> PullPlan::NextLift(Work& work, const Published& now) {
  if (end_.pinned() == nullptr) return std::nullopt;
  while (work.lifted < work.sent.size()) {
    if (auto task = PlanLift(work.sent[work.lifted++], now)) return task;
  }
  return std::nullopt;
}

// Pieces of the incoming version --------------------------------------------------------------

StatusOr<std::optional<FrameTask>> PullPlan::NextPiece(Work& work, const LeasedState& base) {
  using Task = std::optional<FrameTask>;
  if (!std::exchange(work.retried, false)) {
    if (Task again = NextPostponedPiece(work, base)) {
      work.retried = true;
      return again;
    }
  }
  IncomingVersion::Found found = terms_.incoming->PieceAt(seen_pieces_);
  for (; found.piece; found = terms_.incoming->PieceAt(seen_pieces_)) {
    ++seen_pieces_;
    const uint32_t chunk = found.piece->header.chunk;
    FrameTask task{.chunk = chunk,
                   .plan = {},
                   .history = {},
                   .piece = *std::move(found.piece),
                   .before = have_.chunks[chunk]};
    if (!Fits(task) || !ChooseCodec(task, base, found.step)) continue;
    if (task.piece->payload != nullptr) piece_bytes_ += StagedBytes(*task.piece);
    TakePiece(work, task);
    return Task(std::move(task));
  }
  if (Task last = NextPostponedPiece(work, base)) {
    last->if_busy = EncodedCache::IfBusy::kMake;
    return last;
  }
  switch (found.step) {
    case IncomingStep::kComing:
      break;
    case IncomingStep::kComplete:
      // Unchanged chunks that are missing at the receiver are sent once the version is settled.
      if (HasUnfinished() || !terms_.incoming->Has(have_.chunks)) break;
      end_.Name(terms_.incoming->end().identity, terms_.incoming->end().side_files_hash);
      phase_ = Phase::kEnded;
      break;
    case IncomingStep::kSettled:
      PinIncoming(found.state);
      end_.SetFirst(std::move(found.state));
      phase_ = Phase::kPublished;
      break;
    case IncomingStep::kAbandoned:
      return found.why;
  }
  return Task();
}

std::optional<FrameTask> PullPlan::NextPostponedPiece(Work& work, const LeasedState& base) {
  while (true) {
    const auto next = std::ranges::find_if(work.postponed,
                                           [](const Postponed& p) { return p.piece.has_value(); });
    if (next == work.postponed.end()) return std::nullopt;
    const uint32_t chunk = next->chunk;
    FrameTask task{.chunk = chunk,
                   .plan = {},
                   .history = {},
                   .piece = std::move(next->piece),
                   .before = have_.chunks[chunk]};
    work.postponed.erase(next);
    if (ChooseCodec(task, base, terms_.incoming->step())) {
      TakePiece(work, task);
      return task;
    }
    sent_piece_[chunk] = 0;
  }
}

void PullPlan::TakePiece(Work& work, const FrameTask& task) {
  const wire::FrameHeader& header = task.piece->header;
  // If a newer version overtakes this pull, the stream that sent the chunk also lifts it.
  work.sent.push_back(task.chunk);
  sent_piece_[task.chunk] = 1;
  have_.chunks[task.chunk] = {header.version, header.digest_after, 0};
}

bool PullPlan::Fits(FrameTask& task) const {
  const IncomingVersion::Piece& piece = *task.piece;
  const wire::FrameHeader& header = piece.header;
  const bool known = task.before.version != wire::Have::kUnknown;
  if (known && task.before.digest == header.digest_after) return false;  // the receiver has it
  // A corrupt chunk waits for the settled version, whose bytes are compared with their digest.
  if (maker_.IsCorrupt(task.chunk)) return false;
  if (const uint64_t most = terms_.request.ahead_bytes; most != 0) {
    // The receiver stages deltas, since its only file must stay until the version is published.
    if (piece.payload == nullptr || piece_bytes_ + StagedBytes(piece) > most) return false;
  }
  if (header.type == wire::FrameType::kChunkFull) return true;
  if (!known || task.before.digest != header.digest_before) return false;
  const Bytes payload(piece.payload.get(), header.payload_bytes);
  const Coder* coder = CoderOf(payload);
  HistoryNeed need;
  if (coder != nullptr && coder->read_need != nullptr) (void)coder->read_need(payload, &need);
  task.as_fast = need.depth > task.before.depth ||
                 !terms_.incoming->SharesHistory(have_.held, have_.history, need.depth);
  return !task.as_fast || piece.fast != nullptr;
}

bool PullPlan::ChooseCodec(FrameTask& task, const LeasedState& base, IncomingStep step) const {
  const ChunkDelta* delta = task.piece->delta.get();
  if (delta == nullptr || base.state == nullptr || task.as_fast) return true;
  task.plan.kind = ChunkPlan::Kind::kDelta;
  task.plan.chain = {delta};
  task.history = HistoryOf(task.chunk, *base.state);
  task.base = base;
  const auto [codec, made] = maker_.ChooseFor(task);
  if (codec == Codec::kFast) return true;
  // Once the version is settled, its old bytes have moved. A pull of the published form makes them
  // anew.
  const bool live = step <= IncomingStep::kComplete;
  const bool there = base.lease != nullptr && terms_.incoming->StartsAt(base.state->info.identity);
  if (made || (live && there)) task.codec = codec;
  return made || live;
}

// The class -----------------------------------------------------------------------------------

PullClass PullPlan::Classify(const Published* end) const {
  const uint64_t unknown = wire::Have::Entry{}.version;
  // Chunks of another lineage, or from before the log, are no base for a delta. An incoming version
  // needs no log: only receivers that hold its base pull it.
  const bool incoming = terms_.incoming != nullptr;
  const Identity& to = incoming ? terms_.incoming->identity() : end->info.identity;
  const bool known = have_.held.lineage == to.lineage && (incoming || !end->log.empty());
  const uint64_t oldest = !known ? unknown : incoming ? 0 : end->log.front()->from().version;
  uint64_t whole = 0;
  for (uint32_t c = 0; c < have_.chunks.size(); ++c) {
    if (!model_.owned().contains(c)) continue;
    if (!incoming && have_.chunks[c].digest == (*end->digests)[c]) continue;
    const uint64_t version = have_.chunks[c].version;
    if (version == unknown || version < oldest) whole += model_.chunks()[c].bytes;
  }
  return ClassOf(whole, model_.owned_bytes());
}

}  // namespace deltawire
