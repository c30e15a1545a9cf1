#include "receiver/pull_sink.h"

#include <spdlog/spdlog.h>

#include "common/base/human.h"

namespace deltawire::receiver {

PullSink::PullSink(Buffer& buffer, uint64_t staging_limit, std::function<void(uint64_t)> progress)
    : buffer_(buffer),
      backend_(kernels::Best()),
      staging_limit_(staging_limit),
      progress_(std::move(progress)),
      digest_(buffer.chunks().size()) {
  for (uint32_t i = 0; i < digest_.size(); ++i) digest_[i] = buffer.digest(i);
}

Status PullSink::Touch() {
  if (touched_) return absl::OkStatus();
  DW_RETURN_IF_ERROR(buffer_.BeginUpdate());
  touched_ = true;
  return absl::OkStatus();
}

StatusOr<MutableBytes> PullSink::Begin(const wire::FrameHeader& header) {
  if (header.chunk >= buffer_.chunks().size()) {
    return Errorf(StatusCode::kDataLoss, "the sender sent chunk {} of {}", header.chunk,
                  buffer_.chunks().size());
  }
  const Chunk& chunk = buffer_.chunks()[header.chunk];
  if (header.type == wire::FrameType::kChunkDelta) return BeginDelta(header);
  if (header.payload_bytes != chunk.bytes) {
    return Errorf(StatusCode::kDataLoss, "chunk {} of tensor {} has {} bytes, the frame {}",
                  header.chunk, buffer_.layout().tensor(chunk.tensor).name, chunk.bytes,
                  header.payload_bytes);
  }
  DW_RETURN_IF_ERROR(Touch());
  buffer_.MarkUnknown(header.chunk);
  return buffer_.chunk(header.chunk);
}

StatusOr<MutableBytes> PullSink::BeginDelta(const wire::FrameHeader& header) {
  if (header.digest_before != digest_[header.chunk]) {
    const Chunk& chunk = buffer_.chunks()[header.chunk];
    return Errorf(
        StatusCode::kDataLoss,
        "refused a delta for chunk {} of tensor {}: it is for other bytes than those here",
        header.chunk, buffer_.layout().tensor(chunk.tensor).name);
  }
  Staged staged;
  staged.header = header;
  staged.payload = std::make_unique_for_overwrite<std::byte[]>(header.payload_bytes);
  const MutableBytes to(staged.payload.get(), header.payload_bytes);
  std::lock_guard lock(mu_);
  staged_bytes_ += header.payload_bytes;
  if (staged_bytes_ > staging_limit_ && !streaming_) {
    streaming_ = true;
    spdlog::info("a delta outgrows the staging bound of {}: applying the rest as it arrives",
                 HumanBytes(staging_limit_));
  }
  staged_[header.chunk].push_back(std::move(staged));
  return to;
}

Status PullSink::Finish(const wire::FrameHeader& header) {
  if (header.type == wire::FrameType::kChunkDelta) {
    DW_RETURN_IF_ERROR(FinishDelta(header));
    ++delta_;
  } else {
    buffer_.SetChunk(header.chunk, header.version, header.digest_after);
    ++full_;
  }
  digest_[header.chunk] = header.digest_after;
  progress_(bytes_ += header.payload_bytes);
  return absl::OkStatus();
}

Status PullSink::FinishDelta(const wire::FrameHeader& header) {
  const Chunk& chunk = buffer_.chunks()[header.chunk];
  std::vector<Staged> apply_now;
  const Staged* mine = nullptr;
  {
    std::lock_guard lock(mu_);
    // Stable while no other frame of this chunk can come: they travel on one stream, in order.
    mine = &staged_.at(header.chunk).back();
  }
  const auto valid = backend_.validate(Bytes(mine->payload.get(), header.payload_bytes),
                                       chunk.bytes, chunk.width, nullptr);
  if (valid != kernels::DecodeStatus::kOk) {
    Abandon(header);
    return Errorf(StatusCode::kDataLoss, "the delta for chunk {} of tensor {} is not one: {}",
                  header.chunk, buffer_.layout().tensor(chunk.tensor).name,
                  kernels::ToString(valid));
  }
  {
    std::lock_guard lock(mu_);
    std::vector<Staged>& list = staged_.at(header.chunk);
    list.back().complete = true;
    if (!streaming_) return absl::OkStatus();
    apply_now = std::move(list);
    staged_.erase(header.chunk);
    for (const Staged& s : apply_now) staged_bytes_ -= s.header.payload_bytes;
  }
  DW_RETURN_IF_ERROR(Touch());
  for (const Staged& s : apply_now) {
    if (ApplyOne(s)) continue;
    std::lock_guard lock(mu_);
    bad_.push_back(header.chunk);
    break;
  }
  return absl::OkStatus();
}

void PullSink::Abandon(const wire::FrameHeader& header) {
  if (header.type != wire::FrameType::kChunkDelta) return;  // the chunk stays unknown
  std::lock_guard lock(mu_);
  const auto it = staged_.find(header.chunk);
  if (it == staged_.end()) return;
  staged_bytes_ -= it->second.back().header.payload_bytes;
  it->second.pop_back();
  if (it->second.empty()) staged_.erase(it);
}

bool PullSink::ApplyOne(const Staged& staged) {
  const wire::FrameHeader& h = staged.header;
  const Chunk& chunk = buffer_.chunks()[h.chunk];
  if (!buffer_.known(h.chunk)) return false;  // an earlier delta of this pull went wrong
  buffer_.MarkUnknown(h.chunk);
  uint64_t digest = 0;
  const auto decoded =
      backend_.decode_apply(buffer_.key(), Bytes(staged.payload.get(), h.payload_bytes),
                            buffer_.chunk(h.chunk), chunk.width, h.digest_before, &digest);
  if (decoded != kernels::DecodeStatus::kOk || digest != h.digest_after) {
    spdlog::error("chunk {} of tensor {} came out wrong after a delta: fetching it whole", h.chunk,
                  buffer_.layout().tensor(chunk.tensor).name);
    return false;
  }
  buffer_.SetChunk(h.chunk, h.version, digest);
  return true;
}

StatusOr<std::vector<uint32_t>> PullSink::Apply(ThreadPool& pool) {
  std::vector<const std::vector<Staged>*> work;
  for (const auto& [chunk, list] : staged_) work.push_back(&list);
  if (!work.empty()) DW_RETURN_IF_ERROR(Touch());
  pool.ParallelFor(work.size(), [&](size_t i) {
    for (const Staged& s : *work[i]) {
      if (ApplyOne(s)) continue;
      std::lock_guard lock(mu_);
      bad_.push_back(s.header.chunk);
      return;
    }
  });
  staged_.clear();
  return bad_;
}

void PullSink::AddTo(PullStats& stats) const {
  stats.chunks_full += full_;
  stats.chunks_delta += delta_;
  stats.payload_bytes += bytes_;
}

}  // namespace deltawire::receiver
