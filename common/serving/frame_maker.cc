#include "common/serving/frame_maker.h"

#include <algorithm>
#include <utility>

namespace deltawire {

using kernels::Codec;

bool FrameMaker::IsCorrupt(uint32_t chunk) const {
  return std::binary_search(terms_.request.corrupt.begin(), terms_.request.corrupt.end(), chunk);
}

StatusOr<MadeFrame> FrameMaker::Make(const FrameTask& task, LeasedState leased) {
  if (task.piece) return MakePiece(task);
  if (IsCorrupt(task.chunk)) {
    // A rebuild only writes to a half that nobody else reads.
    leased.lease.reset();
    model_.Recheck(task.chunk);
    leased.lease = model_.LeaseHalf(leased.state->half, leased.state->info.identity);
  }
  if (task.plan.kind == ChunkPlan::Kind::kFull) return MakeFull(task.chunk, leased);
  return MakeDelta(task, leased);
}

kernels::History FrameMaker::HistoryFor(const FrameTask& task) const {
  return task.history.First(std::min<size_t>(terms_.coding.history, task.history.depth()));
}

Codec FrameMaker::Choose(const ChunkEncoder::Job& job, size_t fast_bytes) const {
  // The other codecs read the old bytes from the half, which may change without a lease. For an
  // incoming version the caller checks that.
  if (job.leased.lease == nullptr && job.incoming == nullptr) return Codec::kFast;
  if (job.leased.state->damaged[job.chunk] != 0) return Codec::kFast;
  if (terms_.coding.codec) return *terms_.coding.codec;
  const CoderRates& rates = *terms_.coding.rates;
  CodecChoiceInputs in;
  in.chunk_bytes = model_.chunks()[job.chunk].bytes;
  in.fast_bytes = fast_bytes;
  in.link_bytes_per_s = terms_.coding.link->bytes_per_s();
  in.encode = rates.EncodeSpeeds(terms_.coding.encode_threads);
  in.decode = terms_.coding.decode;
  for (const Coder& coder : Coders()) {
    in.ratio[coder.codec] = rates.ratio(coder.codec);
    in.made[coder.codec] = encoder_.IsCached(coder.codec, job);
  }
  return ChooseCodec(in);
}

StatusOr<MadeFrame> FrameMaker::MakeDelta(const FrameTask& task, const LeasedState& leased) {
  kernels::History history = task.history.First(task.history.depth());
  const ChunkEncoder::Job job{task.chunk, task.plan, leased, history, task.if_busy};
  if (task.history.depth() > terms_.coding.history && !encoder_.IsCachedWithHistory(job)) {
    history = HistoryFor(task);
  }
  DW_ASSIGN_OR_RETURN(const auto fast, encoder_.Fold(job));
  if (!fast) return MadeFrame{.later = true};
  if (fast->bytes.empty()) return MadeFrame{};  // the changes cancel out
  const auto coded = encoder_.Encode(Choose(job, fast->bytes.size()), job, *fast);
  if (!coded) return MadeFrame{.later = true};
  // A codec that the options name is used if the chunk shrinks; auto takes the smaller payload.
  const bool larger = coded->bytes.size() >= fast->bytes.size();
  const ChunkPayload& payload = larger && !terms_.coding.codec ? *fast : *coded;
  if (payload.bytes.size() >= model_.chunks()[task.chunk].bytes) {
    return MakeFull(task.chunk, leased);
  }
  net::OutFrame frame;
  frame.header.type = wire::FrameType::kChunkDelta;
  frame.header.chunk = task.chunk;
  frame.header.payload_bytes = static_cast<uint32_t>(payload.bytes.size());
  frame.header.epoch = leased.state->info.id().epoch;
  frame.header.version = leased.state->info.id().version;
  frame.header.digest_before = task.plan.chain.front()->digest_before;
  frame.header.digest_after = task.plan.chain.back()->digest_after;
  frame.header.payload_xxh3 = payload.xxh3;
  frame.payload = payload.bytes;
  frame.keep = payload.keep;
  CountDecode(payload.codec, task.chunk, fast->bytes.size());
  tally_.Add(kernels::FormOf(payload.codec), payload.bytes.size());
  return MadeFrame{.frame = std::move(frame)};
}

StatusOr<MadeFrame> FrameMaker::MakeFull(uint32_t chunk, const LeasedState& leased) {
  const ChunkBytes::How how{.copy = terms_.coding.link->slow(terms_.request.streams),
                            .check = IsCorrupt(chunk)};
  DW_ASSIGN_OR_RETURN(WholeChunk whole, bytes_.Get(chunk, leased, how));
  net::OutFrame frame;
  frame.header.type = wire::FrameType::kChunkFull;
  frame.header.chunk = chunk;
  frame.header.payload_bytes = static_cast<uint32_t>(whole.bytes.size());
  frame.header.epoch = leased.state->info.id().epoch;
  frame.header.version = leased.state->info.id().version;
  frame.header.digest_after = (*leased.state->digests)[chunk];
  frame.payload = whole.bytes;
  frame.keep = std::move(whole.keep);
  tally_.Add(FormCounts::kRaw, frame.payload.size());
  return MadeFrame{.frame = std::move(frame), .half = whole.half, .whole = true};
}

void FrameMaker::CountDecode(Codec codec, uint32_t chunk, size_t fast_bytes) {
  const Coder* coder = CoderOf(codec);
  const double speed = terms_.coding.decode[codec];
  if (coder == nullptr || speed <= 0) return;
  tally_.AddDecode(coder->work(model_.chunks()[chunk].bytes, fast_bytes) / speed);
}

// The incoming version ------------------------------------------------------------------------

LeasedState FrameMaker::LeaseBase() const {
  const bool fast = terms_.coding.codec ? *terms_.coding.codec == Codec::kFast
                                        : terms_.coding.link->bytes_per_s() <= 0;
  return fast ? LeasedState() : model_.Lease();
}

ChunkEncoder::Job FrameMaker::PieceJob(const FrameTask& task,
                                       const kernels::History& history) const {
  return {task.chunk, task.plan, task.base, history, task.if_busy, &terms_.incoming->encoded()};
}

FrameMaker::Choice FrameMaker::ChooseFor(const FrameTask& task) const {
  const kernels::History history = HistoryFor(task);
  const ChunkEncoder::Job job = PieceJob(task, history);
  const Codec codec = Choose(job, task.piece->delta->payload.size());
  return {codec, encoder_.IsCached(codec, job)};
}

std::optional<ChunkPayload> FrameMaker::EncodePiece(const FrameTask& task) const {
  const kernels::History history = HistoryFor(task);
  const ChunkDelta& delta = *task.piece->delta;
  const ChunkPayload fast{Codec::kFast, delta.payload, delta.payload_xxh3, task.piece->payload};
  const auto coded = encoder_.Encode(task.codec, PieceJob(task, history), fast);
  if (!coded) return std::nullopt;
  // As in MakeDelta, a codec that the options name is used if the chunk shrinks.
  const size_t most = terms_.coding.codec ? model_.chunks()[task.chunk].bytes : fast.bytes.size();
  return coded->bytes.size() < most ? *coded : fast;
}

MadeFrame FrameMaker::MakePiece(const FrameTask& task) {
  const IncomingVersion::Piece& piece = *task.piece;
  net::OutFrame frame;
  frame.header = piece.header;
  size_t form = FormCounts::kRaw;
  if (piece.payload == nullptr) {
    auto copy = terms_.incoming->CopyOf(piece);
    if (copy == nullptr) return {.later = true};
    frame.payload = Bytes(copy.get(), piece.whole.size());
    frame.keep = std::move(copy);
  } else if (task.codec != Codec::kFast) {
    const auto coded = EncodePiece(task);
    if (!coded) return {.later = true};
    frame.payload = coded->bytes;
    frame.keep = coded->keep;
    frame.header.payload_bytes = static_cast<uint32_t>(coded->bytes.size());
    frame.header.payload_xxh3 = coded->xxh3;
    form = kernels::FormOf(coded->codec);
    CountDecode(coded->codec, task.chunk, piece.header.payload_bytes);
  } else {
    frame.payload = task.as_fast ? Bytes(piece.fast.get(), piece.fast_bytes)
                                 : Bytes(piece.payload.get(), piece.header.payload_bytes);
    frame.keep = task.as_fast ? piece.fast : piece.payload;
    const Coder* coder = CoderOf(frame.payload);
    form = kernels::FormOf(coder == nullptr ? Codec::kFast : coder->codec);
  }
  if (task.as_fast) {
    frame.header.payload_bytes = static_cast<uint32_t>(piece.fast_bytes);
    frame.header.payload_xxh3 = Xxh3(frame.payload);
  }
  tally_.Add(form, frame.payload.size());
  tally_.AddAhead(frame.payload.size());
  return {.frame = std::move(frame)};
}

}  // namespace deltawire
