#include "receiver/pull/pull_sink.h"

#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

// Whole chunks are digested in multiples of the digest's block.
constexpr size_t kDigestStep = kernels::DigestKey::kBlockBytes;
// Limits the log lines about chunks with a wrong digest: with a wrong key every chunk has one.
constexpr size_t kMostNamed = 8;

}  // namespace

PullSink::PullSink(Buffer& buffer, BufferGate& gate, uint64_t staging_limit, CoderRates& rates)
    : buffer_(buffer),
      bases_(buffer.bases()),
      gate_(gate),
      backend_(kernels::Best()),
      staging_limit_(staging_limit),
      rates_(rates),
      digest_(buffer.chunks().size()) {
  BeginRound({}, nullptr, false);
}

void PullSink::BeginRound(LogView history, DeltaBuilder* record, bool at_once,
                          Forwarding* forward) {
  round_.emplace(buffer_, rates_, std::move(history));
  round_->record = record;
  round_->forward = forward;
  staged_bytes_ = 0;
  for (uint32_t i = 0; i < digest_.size(); ++i) digest_[i] = bases_.digest(i);
  for (auto it = staged_.begin(); it != staged_.end();) {
    std::vector<Staged>& list = it->second;
    std::erase_if(list, [](const Staged& s) { return !s.complete; });
    const bool fits = !list.empty() && bases_.known(it->first) &&
                      bases_.digest(it->first) == list.front().header.digest_before;
    if (!fits) {
      it = staged_.erase(it);
      continue;
    }
    for (const Staged& s : list) staged_bytes_ += s.bytes;
    digest_[it->first] = list.back().header.digest_after;
    round_->seen[it->first] = 1;
    ++it;
  }
  // Applied on arrival, deltas would hold up those that come after them on the same stream, and all
  // hops behind this one with them.
  const bool waited_for = round_->forward != nullptr && round_->forward->waited_for();
  round_->streaming = (at_once && !waited_for) || staged_bytes_ > staging_limit_;
}

void PullSink::Overlay(wire::Have& have) const {
  for (const auto& [chunk, list] : staged_) {
    const wire::FrameHeader& last = list.back().header;
    have.chunks[chunk] = {last.version, last.digest_after, 0};
  }
  for (const uint32_t chunk : refused_) have.chunks[chunk] = {};
}

void PullSink::Keep(Staged&& applied) {
  if (!keep_applied_ || applied.bytes > staging_limit_) return;
  applied_bytes_ += applied.bytes;
  applied_.push_back(std::move(applied));
  // Only the newest deltas are kept. Older ones would bring up a file that has fallen behind, which
  // a copy does as well, and go to engines, which read a chunk whole if its delta is missing.
  while (applied_bytes_ > staging_limit_) {
    applied_bytes_ -= applied_.front().bytes;
    applied_.pop_front();
  }
}

std::vector<AppliedDelta> PullSink::Applied() const {
  std::vector<AppliedDelta> all;
  for (const Staged& s : applied_) {
    all.push_back({s.header.chunk, s.header.digest_before, s.header.digest_after,
                   Bytes(s.payload.get(), s.bytes)});
  }
  return all;
}

void PullSink::ForgetApplied() {
  applied_.clear();
  applied_bytes_ = 0;
}

void PullSink::Drop() {
  staged_.clear();
  refused_.clear();
  staged_bytes_ = 0;
}

void PullSink::Discard() {
  Drop();
  ForgetApplied();
  dirty_ = false;
}

Status PullSink::Touch() {
  if (round_->touched) return absl::OkStatus();
  const Status begun = gate_.Touch(buffer_);
  if (!begun.ok()) {
    round_->touch_failed = true;
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
  {
    std::lock_guard lock(mu_);
    if (std::exchange(round_->busy[header.chunk], uint8_t{1}) != 0) {
      // An error ends the pull, and the next BeginRound clears the mark.
      return Errorf(StatusCode::kDataLoss,
                    "the sender sent two frames of chunk {} at once, on different streams",
                    header.chunk);
    }
  }
  if (round_->forward != nullptr) round_->forward->Begins(header);
  const Chunk& chunk = buffer_.chunks()[header.chunk];
  if (header.type == wire::FrameType::kChunkDelta) return BeginDelta(header);
  if (header.payload_bytes != chunk.bytes) {
    return Errorf(StatusCode::kDataLoss, "chunk {} of tensor {} has {} bytes, the frame {}",
                  header.chunk, buffer_.layout().tensor(chunk.tensor).name, chunk.bytes,
                  header.payload_bytes);
  }
  DW_RETURN_IF_ERROR(Touch());
  {
    // Deltas staged for the chunk applied to the bytes that this frame replaces.
    std::lock_guard lock(mu_);
    DropStaged(header.chunk);
  }
  bases_.MarkUnknown(header.chunk);
  round_->partial[header.chunk] = 0;
  round_->digested[header.chunk] = 0;
  return bases_.chunk(header.chunk);
}

void PullSink::Arrived(const wire::FrameHeader& header, size_t bytes) {
  if (header.type != wire::FrameType::kChunkFull) return;
  const auto start = SteadyClock::now();
  DigestUpTo(header.chunk, bytes / kDigestStep * kDigestStep);
  round_->stage_seconds += SecondsSince(start);
}

void PullSink::DigestUpTo(uint32_t chunk, size_t end) {
  const size_t from = round_->digested[chunk];
  if (end <= from) return;
  const Bytes piece = Bytes(bases_.chunk(chunk)).subspan(from, end - from);
  round_->partial[chunk] += backend_.digest_range(buffer_.key(), piece, from);
  round_->digested[chunk] = static_cast<uint32_t>(end);
}

StatusOr<MutableBytes> PullSink::BeginDelta(const wire::FrameHeader& header) {
  if (const Chunk& chunk = buffer_.chunks()[header.chunk]; header.payload_bytes >= chunk.bytes) {
    return Errorf(
        StatusCode::kDataLoss,
        "refused a delta of {} bytes for chunk {} of tensor {}, which has {} bytes itself",
        header.payload_bytes, header.chunk, buffer_.layout().tensor(chunk.tensor).name,
        chunk.bytes);
  }
  if (header.digest_before != digest_[header.chunk]) {
    const Chunk& chunk = buffer_.chunks()[header.chunk];
    return Errorf(
        StatusCode::kDataLoss,
        "refused a delta for chunk {} of tensor {}: it is for other bytes than those here",
        header.chunk, buffer_.layout().tensor(chunk.tensor).name);
  }
  Staged staged;
  staged.header = header;
  staged.payload = std::make_shared_for_overwrite<std::byte[]>(header.payload_bytes);
  staged.bytes = header.payload_bytes;
  const MutableBytes to(staged.payload.get(), header.payload_bytes);
  std::lock_guard lock(mu_);
  staged_bytes_ += header.payload_bytes;
  if (staged_bytes_ > staging_limit_ && !round_->streaming) {
    round_->streaming = true;
    LogInfo("a delta outgrows the staging bound of {}: applying the rest as it arrives",
            HumanBytes(staging_limit_));
  }
  staged_[header.chunk].push_back(std::move(staged));
  return to;
}

Status PullSink::Finish(const wire::FrameHeader& header) {
  const auto start = SteadyClock::now();
  Status complete = Complete(header);
  round_->stage_seconds += SecondsSince(start);
  return complete;
}

Status PullSink::Complete(const wire::FrameHeader& header) {
  if (header.type == wire::FrameType::kChunkDelta) {
    DW_RETURN_IF_ERROR(FinishDelta(header));
  } else {
    FinishFull(header);
  }
  digest_[header.chunk] = header.digest_after;
  round_->seen[header.chunk] = 1;
  {
    std::lock_guard lock(mu_);
    round_->busy[header.chunk] = 0;
  }
  round_->bytes += header.payload_bytes;
  return absl::OkStatus();
}

void PullSink::Forward(const wire::FrameHeader& header, const Staged* staged) {
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
  round_->forward->Came(std::move(piece));
}

void PullSink::FinishFull(const wire::FrameHeader& header) {
  const uint32_t c = header.chunk;
  const Chunk& chunk = buffer_.chunks()[c];
  DigestUpTo(c, chunk.bytes);
  const bool right = round_->partial[c] == header.digest_after;
  if (right) {
    bases_.Set(c, header.version, header.digest_after);
    if (round_->record != nullptr) {
      round_->record->Add(
          {.chunk = c, .digest_before = digest_[c], .digest_after = header.digest_after}, {});
    }
    Forward(header, nullptr);
  }
  std::lock_guard lock(mu_);
  if (right) {
    refused_.erase(c);
  } else {
    refused_.insert(c);  // deltas that follow cannot be applied either
    if (round_->mismatched.insert(c).second && round_->mismatched.size() <= kMostNamed) {
      LogError(
          "chunk {} of tensor {} came whole with other bytes than its digest: fetching it again "
          "(check the sender's memory, this machine's, and the way between them)",
          c, buffer_.layout().tensor(chunk.tensor).name);
    }
  }
  ++round_->forms.chunks[FormCounts::kRaw];
  round_->forms.bytes[FormCounts::kRaw] += header.payload_bytes;
}

StatusOr<bool> PullSink::Decode(const wire::FrameHeader& header) {
  const Chunk& chunk = buffer_.chunks()[header.chunk];
  Staged* mine = nullptr;
  std::vector<Bytes> before;
  {
    std::lock_guard lock(mu_);
    // The list's elements stay where they are: round_->busy lets in only one frame per chunk at a
    // time.
    std::vector<Staged>& list = staged_.at(header.chunk);
    mine = &list.back();
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      before.emplace_back(list[i].payload.get(), list[i].bytes);
    }
    if (refused_.contains(header.chunk)) {  // an earlier frame failed, so this cannot be applied
      DropStaged(header.chunk);
      return false;
    }
  }
  DW_ASSIGN_OR_RETURN(PayloadDecoder::Payload payload,
                      round_->decoder.ToFast(header.chunk, Bytes(mine->payload.get(), mine->bytes),
                                             before, round_->seen[header.chunk] == 0));
  {
    std::lock_guard lock(mu_);
    const size_t form = kernels::FormOf(payload.codec);
    ++round_->forms.chunks[form];
    round_->forms.bytes[form] += header.payload_bytes;
    round_->history_chunks += payload.depth > 0;
  }
  if (!payload.fits) {
    round_->history_misfit = true;
    Refuse(header.chunk);
    return false;
  }
  if (payload.decoded != nullptr) {
    std::lock_guard lock(mu_);
    staged_bytes_ += payload.bytes - mine->bytes;
    if (round_->forward != nullptr) mine->came = std::move(mine->payload);
    mine->payload = std::move(payload.decoded);
    mine->bytes = payload.bytes;
  }
  const Bytes fast(mine->payload.get(), mine->bytes);
  uint64_t changed = 0;
  const auto valid = backend_.validate(fast, chunk.bytes, chunk.width, &changed);
  if (valid != kernels::DecodeStatus::kOk) {
    return Errorf(StatusCode::kDataLoss, "the delta for chunk {} of tensor {} is not one: {}",
                  header.chunk, buffer_.layout().tensor(chunk.tensor).name,
                  kernels::ToString(valid));
  }
  if (round_->record != nullptr) {
    round_->record->Add({.chunk = header.chunk,
                         .changed = changed,
                         .digest_before = header.digest_before,
                         .digest_after = header.digest_after},
                        fast);
  }
  return true;
}

void PullSink::Refuse(uint32_t chunk) {
  std::lock_guard lock(mu_);
  DropStaged(chunk);
  refused_.insert(chunk);
  ++round_->refusals;
}

void PullSink::DropStaged(uint32_t chunk) {
  const auto it = staged_.find(chunk);
  if (it == staged_.end()) return;
  for (const Staged& s : it->second) staged_bytes_ -= s.bytes;
  staged_.erase(it);
}

Status PullSink::FinishDelta(const wire::FrameHeader& header) {
  const auto fits = Decode(header);
  if (!fits.ok()) {
    Abandon(header);
    return fits.status();
  }
  if (!*fits) return absl::OkStatus();
  std::vector<Staged> apply_now;
  Staged* staged = nullptr;
  {
    std::lock_guard lock(mu_);
    staged = &staged_.at(header.chunk).back();  // round_->busy keeps other frames of the chunk away
    staged->complete = true;
  }
  // Before it is applied: whoever is served compares the chunk with its digest itself.
  Forward(header, staged);
  staged->came.reset();
  {
    std::lock_guard lock(mu_);
    if (!round_->streaming) return absl::OkStatus();
    apply_now = std::move(staged_.at(header.chunk));
    staged_.erase(header.chunk);
    for (const Staged& s : apply_now) staged_bytes_ -= s.bytes;
  }
  DW_RETURN_IF_ERROR(Touch());
  for (Staged& s : apply_now) {
    const bool right = ApplyOne(s);
    std::lock_guard lock(mu_);
    if (right) {
      Keep(std::move(s));
      continue;
    }
    round_->bad.push_back(header.chunk);
    break;
  }
  return absl::OkStatus();
}

void PullSink::Abandon(const wire::FrameHeader& header) {
  if (header.type != wire::FrameType::kChunkDelta) return;  // the chunk stays unknown
  std::lock_guard lock(mu_);
  const auto it = staged_.find(header.chunk);
  if (it == staged_.end()) return;
  staged_bytes_ -= it->second.back().bytes;
  it->second.pop_back();
  if (it->second.empty()) staged_.erase(it);
}

bool PullSink::ApplyOne(const Staged& staged) {
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
  const auto decoded =
      backend_.decode_apply(buffer_.key(), Bytes(staged.payload.get(), staged.bytes), *bytes,
                            chunk.width, h.digest_before, &digest);
  if (decoded != kernels::DecodeStatus::kOk || digest != h.digest_after) {
    LogError("chunk {} of tensor {} came out wrong after a delta: fetching it whole", h.chunk,
             buffer_.layout().tensor(chunk.tensor).name);
    return false;
  }
  bases_.Set(h.chunk, h.version, digest);
  return true;
}

StatusOr<std::vector<uint32_t>> PullSink::Apply(ThreadPool& pool) {
  std::vector<std::vector<Staged>*> work;
  for (auto& [chunk, list] : staged_) work.push_back(&list);
  if (!work.empty() || !refused_.empty()) DW_RETURN_IF_ERROR(Touch());
  for (const uint32_t c : refused_) {
    bases_.MarkUnknown(c);
    round_->bad.push_back(c);
  }
  pool.ParallelFor(work.size(), [&](size_t i) {
    for (Staged& s : *work[i]) {
      const bool right = ApplyOne(s);
      std::lock_guard lock(mu_);
      if (right) {
        Keep(std::move(s));
        continue;
      }
      round_->bad.push_back(s.header.chunk);
      return;
    }
  });
  staged_.clear();
  refused_.clear();
  staged_bytes_ = 0;
  return std::exchange(round_->bad, {});
}

void PullSink::AddTo(PullStats& stats) const {
  stats.chunks_full += round_->forms.chunks[FormCounts::kRaw];
  for (const uint64_t chunks : round_->forms.chunks) stats.chunks_delta += chunks;
  stats.chunks_delta -= round_->forms.chunks[FormCounts::kRaw];
  stats.payload_bytes += round_->bytes;
  stats.refused_chunks += round_->refusals;
  stats.history_chunks += round_->history_chunks;
  stats.forms += round_->forms;
}

StatusOr<MutableBytes> PartSink::Begin(const wire::FrameHeader& header) {
  if (!part_.contains(header.chunk)) {
    return Errorf(StatusCode::kDataLoss, "sender {} sent chunk {}, which is not of its part",
                  agent_, header.chunk);
  }
  return sink_.Begin(header);
}

Status PartSink::Finish(const wire::FrameHeader& header) {
  DW_RETURN_IF_ERROR(sink_.Finish(header));
  progress_(bytes_ += header.payload_bytes);
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
