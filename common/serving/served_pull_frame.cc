// The part of ServedPull that makes the frame of one chunk of a published version: whole or as a
// delta, in which codec and with which history, and what it counts of that.
#include <algorithm>

#include "common/serving/served_pull.h"

namespace deltawire {

using kernels::Codec;

ChunkHistory ServedPull::HistoryOf(uint32_t chunk, const Published& now) const {
  // What came from elsewhere may look back further than what is made here.
  const size_t limit = now.encoded->has_foreign()
                           ? have_[chunk].depth
                           : std::min<size_t>(terms_.coding.history, have_[chunk].depth);
  // A chunk at another version than the receiver's committed state did not get there by its
  // history.
  if (held_.lineage != now.info.identity.lineage) return {};
  if (limit == 0 || have_[chunk].version != held_.id.version) return {};
  return {CommonHistory(now.log, held_.id, held_before_), chunk, limit};
}

bool ServedPull::Suspect(uint32_t chunk) const {
  return std::binary_search(terms_.suspects.begin(), terms_.suspects.end(), chunk);
}

StatusOr<std::optional<net::OutFrame>> ServedPull::MakeFrame(Task& task, LeasedState leased) {
  if (Suspect(task.chunk)) {
    // A rebuild only writes to a half that nobody else reads.
    leased.lease.reset();
    model_->Recheck(task.chunk);
    leased.lease = model_->LeaseHalf(leased.state->half, leased.state->info.identity);
  }
  if (task.plan.kind == ChunkPlan::Kind::kFull) return MakeFull(task, leased);
  return MakeDelta(task, leased);
}

Codec ServedPull::Choose(const ChunkEncoder::Job& job, size_t fast_bytes) const {
  // The other codecs read the old bytes from the half, which may change without a lease. Of a
  // version that is coming, whoever asks looks at that.
  if (job.leased.lease == nullptr && job.coming == nullptr) return Codec::kFast;
  if (job.leased.state->damaged[job.chunk] != 0) return Codec::kFast;
  if (terms_.coding.codec) return *terms_.coding.codec;
  const CoderRates& rates = *terms_.coding.rates;
  CodecChoiceInputs in;
  in.chunk_bytes = model_->chunks()[job.chunk].bytes;
  in.fast_bytes = fast_bytes;
  in.link_bytes_per_s = terms_.coding.link->bytes_per_s();
  in.encode = rates.EncodeSpeeds(terms_.coding.encode_threads);
  in.decode = terms_.coding.decode;
  for (const Coder& coder : Coders()) {
    in.ratio[coder.codec] = rates.ratio(coder.codec);
    in.made[coder.codec] = encoder_.Made(coder.codec, job);
  }
  return ChooseCodec(in);
}

StatusOr<std::optional<net::OutFrame>> ServedPull::MakeDelta(Task& task,
                                                             const LeasedState& leased) {
  const uint32_t chunk_bytes = model_->chunks()[task.chunk].bytes;
  kernels::History history = task.history.First(task.history.depth());
  auto elsewhere = std::make_shared<PayloadElsewhere>();
  const ChunkEncoder::Job job{task.chunk, task.plan, leased, history,
                              [elsewhere] { elsewhere->Made(); }};
  if (task.history.depth() > terms_.coding.history && !encoder_.MadeWithHistory(job)) {
    history = task.history.First(std::min<size_t>(task.history.depth(), terms_.coding.history));
  }
  const auto later = [&] {
    task.elsewhere = std::move(elsewhere);
    return std::optional<net::OutFrame>();
  };
  DW_ASSIGN_OR_RETURN(const auto folded, encoder_.Fast(job));
  if (!folded) return later();
  const ChunkPayload& fast = *folded;
  if (fast.bytes.empty()) return std::optional<net::OutFrame>();  // the changes cancel out
  const auto coded = encoder_.In(Choose(job, fast.bytes.size()), job, fast);
  if (!coded) return later();
  ChunkPayload payload = *coded;
  // A codec that the options name is used if the chunk shrinks; auto takes the smaller payload.
  const bool larger = payload.bytes.size() >= fast.bytes.size();
  if (larger && !terms_.coding.codec) payload = fast;
  if (payload.bytes.size() >= chunk_bytes) return MakeFull(task, leased);
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
  CountDecode(payload.codec, task.chunk, fast.bytes.size());
  Count(kernels::FormOf(payload.codec), payload.bytes.size());
  return frame;
}

StatusOr<net::OutFrame> ServedPull::MakeFull(Task& task, const LeasedState& leased) {
  const ChunkBytes::How how{.copy = terms_.coding.link->slow(terms_.streams),
                            .check = Suspect(task.chunk)};
  DW_ASSIGN_OR_RETURN(WholeChunk whole, bytes_.Get(task.chunk, leased, how));
  net::OutFrame frame;
  frame.header.type = wire::FrameType::kChunkFull;
  frame.header.chunk = task.chunk;
  frame.header.payload_bytes = static_cast<uint32_t>(whole.bytes.size());
  frame.header.epoch = leased.state->info.id().epoch;
  frame.header.version = leased.state->info.id().version;
  frame.header.digest_after = (*leased.state->digests)[task.chunk];
  frame.payload = whole.bytes;
  frame.keep = std::move(whole.keep);
  task.half = whole.half;
  task.whole = true;
  Count(FormCounts::kRaw, frame.payload.size());
  return frame;
}

net::OutFrame ServedPull::MakeEnd() const {
  return net::EndFrame({end_->info.identity, end_->info.side_files_hash});
}

void ServedPull::Count(size_t form, size_t bytes) {
  bytes_sent_ += bytes;
  ++form_chunks_[form];
  form_bytes_[form] += bytes;
}

void ServedPull::CountDecode(Codec codec, uint32_t chunk, size_t fast_bytes) {
  const Coder* coder = CoderOf(codec);
  const double speed = terms_.coding.decode[codec];
  if (coder == nullptr || speed <= 0) return;
  decode_seconds_ += coder->work(model_->chunks()[chunk].bytes, fast_bytes) / speed;
}

}  // namespace deltawire
