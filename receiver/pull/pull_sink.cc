#include "receiver/pull/pull_sink.h"

#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire::receiver {

PullSink::PullSink(Buffer& buffer, BufferGate& gate, uint64_t staging_limit, CoderRates& rates)
    : buffer_(buffer),
      bases_(buffer.bases()),
      gate_(gate),
      backend_(kernels::Best()),
      rates_(rates),
      staged_(staging_limit),
      applied_(staging_limit),
      digest_(buffer.chunks().size()) {
  BeginRound({}, nullptr, false);
}

void PullSink::BeginRound(LogView history, DeltaBuilder* record, bool at_once,
                          Forwarding* forward) {
  round_.emplace(buffer_, rates_, std::move(history));
  round_->record = record;
  round_->forward = forward;
  // Applied on arrival, deltas would hold up those that come after them on the same stream, and all
  // hops behind this one with them.
  const bool waited_for = forward != nullptr && forward->waited_for();
  staged_.BeginRound(bases_, at_once && !waited_for);
  for (uint32_t i = 0; i < digest_.size(); ++i) digest_[i] = bases_.digest(i);
  for (const wire::FrameHeader& end : staged_.Ends()) {
    digest_[end.chunk] = end.digest_after;
    round_->seen[end.chunk] = 1;
  }
}

void PullSink::Discard() {
  staged_.Clear();
  applied_.Clear();
  dirty_ = false;
}

Status PullSink::Touch() {
  if (round_->touched) return absl::OkStatus();
  const Status begun = gate_.Touch(buffer_);
  if (!begun.ok()) {
    round_->tally.MarkTouchFailed();
    return begun;
  }
  round_->touched = dirty_ = true;
  return absl::OkStatus();
}

StatusOr<MutableBytes> PullSink::Begin(const wire::FrameHeader& header) {
  if (header.chunk >= buffer_.chunks().size()) {
    return Errorf(StatusCode::kDataLoss, "the sender sent chunk {} of {}", header.chunk,
                  buffer_.chunks().size());
  }
  if (round_->busy[header.chunk].exchange(true)) {
    // An error ends the pull, and the next BeginRound clears the mark.
    return Errorf(StatusCode::kDataLoss,
                  "the sender sent two frames of chunk {} at once, on different streams",
                  header.chunk);
  }
  if (round_->forward != nullptr) round_->forward->NoteFrame(header);
  const Chunk& chunk = buffer_.chunks()[header.chunk];
  if (header.type == wire::FrameType::kChunkDelta) return BeginDelta(header);
  if (header.payload_bytes != chunk.bytes) {
    return Errorf(StatusCode::kDataLoss, "chunk {} of tensor {} has {} bytes, the frame {}",
                  header.chunk, buffer_.layout().tensor(chunk.tensor).name, chunk.bytes,
                  header.payload_bytes);
  }
  DW_RETURN_IF_ERROR(Touch());
  staged_.Discard(header.chunk);  // they applied to the bytes that this frame replaces
  bases_.MarkUnknown(header.chunk);
  round_->digests.Start(header.chunk);
  return bases_.chunk(header.chunk);
}

StatusOr<MutableBytes> PullSink::BeginDelta(const wire::FrameHeader& header) {
  const Chunk& chunk = buffer_.chunks()[header.chunk];
  if (header.payload_bytes >= chunk.bytes) {
    return Errorf(
        StatusCode::kDataLoss,
        "refused a delta of {} bytes for chunk {} of tensor {}, which has {} bytes itself",
        header.payload_bytes, header.chunk, buffer_.layout().tensor(chunk.tensor).name,
        chunk.bytes);
  }
  if (header.digest_before != digest_[header.chunk]) {
    return Errorf(
        StatusCode::kDataLoss,
        "refused a delta for chunk {} of tensor {}: it starts from other bytes than those here",
        header.chunk, buffer_.layout().tensor(chunk.tensor).name);
  }
  return staged_.Add(header);
}

void PullSink::Arrived(const wire::FrameHeader& header, size_t bytes) {
  if (header.type != wire::FrameType::kChunkFull) return;
  const auto start = SteadyClock::now();
  round_->digests.Extend(header.chunk, bases_.chunk(header.chunk), bytes);
  round_->tally.AddStageSeconds(SecondsSince(start));
}

Status PullSink::Finish(const wire::FrameHeader& header) {
  const auto start = SteadyClock::now();
  Status finished;
  if (header.type == wire::FrameType::kChunkDelta) {
    finished = FinishDelta(header);
  } else {
    FinishWhole(header);
  }
  if (finished.ok()) {
    digest_[header.chunk] = header.digest_after;
    round_->seen[header.chunk] = 1;
    round_->busy[header.chunk] = false;
    round_->tally.AddBytes(header.payload_bytes);
  }
  round_->tally.AddStageSeconds(SecondsSince(start));
  return finished;
}

void PullSink::Abandon(const wire::FrameHeader& header) {
  // A whole chunk stays unknown.
  if (header.type == wire::FrameType::kChunkDelta) staged_.Abandon(header.chunk);
}

void PullSink::FinishWhole(const wire::FrameHeader& header) {
  const uint32_t c = header.chunk;
  const Chunk& chunk = buffer_.chunks()[c];
  round_->digests.Extend(c, bases_.chunk(c), chunk.bytes);
  const bool right = round_->digests.digest(c) == header.digest_after;
  if (right) {
    bases_.Set(c, header.version, header.digest_after);
    if (round_->record != nullptr) {
      round_->record->Add(
          {.chunk = c, .digest_before = digest_[c], .digest_after = header.digest_after}, {});
    }
    Forward(header, nullptr);
  } else if (round_->tally.AddMismatched(c)) {
    LogError(
        "chunk {} of tensor {} came whole with other bytes than its digest: fetching it again "
        "(check the sender's memory, this machine's, and the way between them)",
        c, buffer_.layout().tensor(chunk.tensor).name);
  }
  staged_.SetWhole(c, right);
  round_->tally.CountForm(FormCounts::kRaw, header.payload_bytes);
}

Status PullSink::FinishDelta(const wire::FrameHeader& header) {
  const auto decoded = Decode(header);
  if (!decoded.ok()) {
    Abandon(header);
    return decoded.status();
  }
  StagedDelta* const staged = *decoded;
  if (staged == nullptr) return absl::OkStatus();
  // Before it is applied: a served receiver compares the chunk with its digest itself.
  Forward(header, staged);
  staged->came.reset();
  std::vector<StagedDelta> apply_now = staged_.Complete(header.chunk);
  if (apply_now.empty()) return absl::OkStatus();
  DW_RETURN_IF_ERROR(Touch());
  ApplyAll(std::move(apply_now));
  return absl::OkStatus();
}

StatusOr<StagedDelta*> PullSink::Decode(const wire::FrameHeader& header) {
  const Chunk& chunk = buffer_.chunks()[header.chunk];
  std::vector<Bytes> before;
  StagedDelta* const mine = staged_.Last(header.chunk, &before);
  // An earlier frame failed, so this one cannot be applied.
  if (mine == nullptr) return nullptr;
  DW_ASSIGN_OR_RETURN(
      PayloadDecoder::Payload payload,
      round_->decoder.ToFast(header.chunk, mine->fast(), before, round_->seen[header.chunk] == 0));
  round_->tally.CountForm(kernels::FormOf(payload.codec), header.payload_bytes, payload.depth > 0);
  if (!payload.fits) {
    staged_.Refuse(header.chunk);
    round_->tally.CountRefusal();
    return nullptr;
  }
  if (payload.decoded != nullptr) {
    staged_.SetFast(*mine, std::move(payload.decoded), payload.bytes, round_->forward != nullptr);
  }
  uint64_t changed = 0;
  const auto valid = backend_.validate(mine->fast(), chunk.bytes, chunk.width, &changed);
  if (valid != kernels::DecodeStatus::kOk) {
    return Errorf(StatusCode::kDataLoss, "the delta for chunk {} of tensor {} is malformed: {}",
                  header.chunk, buffer_.layout().tensor(chunk.tensor).name,
                  kernels::ToString(valid));
  }
  if (round_->record != nullptr) {
    round_->record->Add({.chunk = header.chunk,
                         .changed = changed,
                         .digest_before = header.digest_before,
                         .digest_after = header.digest_after},
                        mine->fast());
  }
  return mine;
}

void PullSink::Forward(const wire::FrameHeader& header, const StagedDelta* staged) {
  if (round_->forward == nullptr) return;
  IncomingVersion::Piece piece{.header = header};
  if (staged == nullptr) {
    piece.whole = bases_.chunk(header.chunk);
  } else if (staged->came == nullptr) {
    piece.payload = staged->payload;
  } else {
    piece.payload = staged->came;
    piece.fast = staged->payload;
    piece.fast_bytes = staged->bytes;
  }
  round_->forward->AddPiece(std::move(piece));
}

StatusOr<std::vector<uint32_t>> PullSink::Apply(ThreadPool& pool) {
  if (to_apply()) DW_RETURN_IF_ERROR(Touch());
  StagedDeltas::All all = staged_.TakeAll();
  for (const uint32_t c : all.refused) {
    bases_.MarkUnknown(c);
    round_->tally.AddCorrupt(c);
  }
  pool.ParallelFor(all.chunks.size(), [&](size_t i) { ApplyAll(std::move(all.chunks[i])); });
  return round_->tally.TakeCorrupt();
}

void PullSink::ApplyAll(std::vector<StagedDelta> deltas) {
  for (StagedDelta& delta : deltas) {
    if (!ApplyOne(delta)) return round_->tally.AddCorrupt(delta.header.chunk);
    applied_.Add(std::move(delta));
  }
}

bool PullSink::ApplyOne(const StagedDelta& staged) {
  const wire::FrameHeader& h = staged.header;
  const Chunk& chunk = buffer_.chunks()[h.chunk];
  // The base is wrong when an earlier delta of this pull failed.
  const bool base = bases_.known(h.chunk) && bases_.digest(h.chunk) == h.digest_before;
  const auto bytes = base ? bases_.Prepare(h.chunk, h.digest_before)
                          : StatusOr<MutableBytes>(absl::NotFoundError(""));
  if (!bytes.ok()) {
    bases_.MarkUnknown(h.chunk);
    return false;
  }
  uint64_t digest = 0;
  const auto decoded = backend_.decode_apply(buffer_.key(), staged.fast(), *bytes, chunk.width,
                                             h.digest_before, &digest);
  if (decoded != kernels::DecodeStatus::kOk || digest != h.digest_after) {
    LogError("chunk {} of tensor {} came out wrong after a delta: fetching it whole", h.chunk,
             buffer_.layout().tensor(chunk.tensor).name);
    return false;
  }
  bases_.Set(h.chunk, h.version, digest);
  return true;
}

}  // namespace deltawire::receiver
