#include "sender/agent/offload/written_tally.h"

#include <utility>

#include "common/base/human.h"

namespace deltawire::sender {
namespace {

constexpr uint8_t kWritten = 1;
constexpr uint8_t kUnchanged = 2;
constexpr uint8_t kEarly = 4;        // parts may have been diffed already
constexpr size_t kNamedTensors = 5;  // tensors that a message names

/// Whether the runs lie in the chunk, behind one another, and the payload in the runs.
bool Fits(const DiffedChunk& p, const Chunk& chunk) {
  const auto whole = [&](uint32_t bytes) { return bytes % chunk.width == 0; };
  if (!whole(p.offset) || !whole(p.length) || p.bytes >= p.length || p.length > chunk.bytes ||
      p.offset > chunk.bytes - p.length) {
    return false;
  }
  return p.run == 0 || (whole(p.run) && whole(p.step) && p.run <= p.step && p.length % p.run == 0 &&
                        p.end() <= chunk.bytes);
}

}  // namespace

WrittenTally::WrittenTally(Offload offload, const Layout& layout, const ChunkTable& chunks,
                           const Coverage& owned)
    : offload_(std::move(offload)),
      layout_(layout),
      chunks_(chunks),
      owned_(owned),
      marks_(layout.size()),
      sole_(layout.size()) {}

Status WrittenTally::CheckTensors(const std::vector<uint32_t>& tensors) const {
  for (const uint32_t t : tensors) {
    if (t < layout_.size()) continue;
    return Errorf(StatusCode::kInvalidArgument, "model \"{}\": tensor index {} is out of range",
                  offload_.model, t);
  }
  return absl::OkStatus();
}

Status WrittenTally::Check(const WrittenNotice& n) const {
  DW_RETURN_IF_ERROR(CheckTensors(n.tensors));
  bool fits = n.chunks.size() == n.chunk_bytes.size();
  for (const uint32_t c : n.chunks) fits &= c < chunks_.size() && owned_.contains(c);
  if (!fits) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} reports bytes of chunks that this agent does "
                  "not have, or not one number for each chunk",
                  offload_.model, offload_.version, n.rank);
  }
  for (const DiffedChunk& p : n.payloads) {
    const bool known = p.chunk < chunks_.size() && owned_.contains(p.chunk);
    if (known && Fits(p, chunks_[p.chunk])) continue;
    return Errorf(
        StatusCode::kInvalidArgument,
        "model \"{}\", version {}: rank {} gives a payload of {} bytes for {} bytes at {} "
        "of chunk {}, which this agent does not have, or which is no larger",
        offload_.model, offload_.version, n.rank, p.bytes, p.length, p.offset, p.chunk);
  }
  return absl::OkStatus();
}

Status WrittenTally::ClaimSole(uint32_t t, uint32_t rank) {
  bool others =
      (sole_[t] != 0 && sole_[t] != rank + 1) || (marks_[t] & (kWritten | kUnchanged)) != 0;
  for (uint32_t c = chunks_.first_of_tensor(t); !counted_.empty() && !others; ++c) {
    if (c == chunks_.end_of_tensor(t)) break;
    const Counted& counted = counted_[c];
    others = counted.bytes > 0 && (counted.several || counted.first_rank != rank);
  }
  if (others) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\", version {}: rank {} says that it alone writes tensor {}, "
                  "which another rank has written or declared as well",
                  offload_.model, offload_.version, rank, layout_.tensor(t).name);
  }
  sole_[t] = rank + 1;
  return absl::OkStatus();
}

StatusOr<bool> WrittenTally::Count(uint32_t c, uint32_t bytes, uint32_t rank) {
  const uint32_t tensor = chunks_[c].tensor;
  const uint32_t sole = sole_[tensor];
  if (sole != 0 && sole != rank + 1) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\", version {}: rank {} says that it alone writes tensor {}, of "
                  "which rank {} has written {} bytes as well",
                  offload_.model, offload_.version, sole - 1, layout_.tensor(tensor).name, rank,
                  bytes);
  }
  Counted& counted = counted_[c];
  const uint64_t sum = uint64_t{counted.bytes} + bytes;
  if (sum > chunks_[c].bytes) {
    const bool alone = !counted.several && (counted.bytes == 0 || counted.first_rank == rank);
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\", version {}: rank {}{} wrote {} bytes of chunk {} of tensor {}, which has "
        "{}; divide the writes among the ranks anew",
        offload_.model, offload_.version, rank,
        alone ? ""
              : fmt::format(" and rank {}{} together", counted.first_rank,
                            counted.several ? " and others" : ""),
        sum, c, layout_.tensor(tensor).name, chunks_[c].bytes);
  }
  if (counted.bytes == 0) counted.first_rank = rank;
  counted.several |= counted.first_rank != rank;
  counted.bytes = static_cast<uint32_t>(sum);
  return bytes > 0 && sum == chunks_[c].bytes;
}

StatusOr<WrittenTally::Final> WrittenTally::Add(const WrittenNotice& n) {
  Final final;
  if (counted_.empty() && !(n.chunks.empty() && n.payloads.empty())) {
    counted_.resize(chunks_.size());
  }
  for (const DiffedChunk& payload : n.payloads) {
    DW_ASSIGN_OR_RETURN(const bool whole, Count(payload.chunk, payload.length, n.rank));
    marks_[chunks_[payload.chunk].tensor] |= kEarly;
    if (whole) final.chunks.push_back(payload.chunk);
  }
  for (const uint32_t t : n.tensors) {
    if (n.sole) DW_RETURN_IF_ERROR(ClaimSole(t, n.rank));
    // With several ranks, none knows whether the others have written their shares of a tensor.
    if (offload_.world > 1 && !n.sole) continue;
    marks_[t] |= kEarly;
    final.tensors.push_back(t);
  }
  for (size_t i = 0; i < n.chunks.size(); ++i) {
    DW_ASSIGN_OR_RETURN(const bool whole, Count(n.chunks[i], n.chunk_bytes[i], n.rank));
    if (!whole) continue;
    marks_[chunks_[n.chunks[i]].tensor] |= kEarly;
    final.chunks.push_back(n.chunks[i]);
  }
  return final;
}

Status WrittenTally::Mark(const ReadyNotice& n) {
  DW_RETURN_IF_ERROR(CheckTensors(n.written));
  DW_RETURN_IF_ERROR(CheckTensors(n.unchanged));
  const auto mark = [&](uint32_t t, uint8_t bit) -> Status {
    const uint32_t sole = sole_[t];
    if (sole != 0 && sole != n.rank + 1) {
      // The tensor may have been diffed already, without this rank's bytes.
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\", version {}: rank {} says that it alone writes tensor {}, which "
                    "rank {} has written or declared as well",
                    offload_.model, n.version, sole - 1, layout_.tensor(t).name, n.rank);
    }
    marks_[t] |= bit;
    return absl::OkStatus();
  };
  for (const uint32_t t : n.written) DW_RETURN_IF_ERROR(mark(t, kWritten));
  for (const uint32_t t : n.unchanged) DW_RETURN_IF_ERROR(mark(t, kUnchanged));
  for (uint32_t t = 0; n.wrote_all && t < layout_.size(); ++t) {
    DW_RETURN_IF_ERROR(mark(t, kWritten));
  }
  return absl::OkStatus();
}

Status WrittenTally::CheckComplete(const Identity& published) const {
  std::string missing, both;
  size_t n_missing = 0, n_both = 0;
  const auto note = [&](std::string& list, size_t& count, size_t t) {
    if (count++ < kNamedTensors)
      list += fmt::format("{}{}", list.empty() ? "" : ", ", layout_.tensor(t).name);
  };
  for (size_t t = 0; t < layout_.size(); ++t) {
    if (!owned_.all() && !owned_.Meets({chunks_.first_of_tensor(t), chunks_.end_of_tensor(t)})) {
      continue;
    }
    const uint8_t m = marks_[t];
    if ((m & (kWritten | kUnchanged)) == 0) note(missing, n_missing, t);
    if ((m & kUnchanged) != 0 && (m & (kWritten | kEarly)) != 0) note(both, n_both, t);
    if (m == kUnchanged && published.empty()) note(missing, n_missing, t);
  }
  if (n_missing > 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\", version {}: {} of {} tensors were neither written nor (with a "
                  "version to carry over from) declared unchanged: {}{}; {} stays published",
                  offload_.model, offload_.version, n_missing, layout_.size(), missing,
                  n_missing > kNamedTensors ? ", ..." : "", ToString(published.id));
  }
  if (n_both > 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\", version {}: {} tensors were both written and declared unchanged, "
                  "by one rank or two: {}{}",
                  offload_.model, offload_.version, n_both, both,
                  n_both > kNamedTensors ? ", ..." : "");
  }
  return absl::OkStatus();
}

std::vector<bool> WrittenTally::unchanged() const {
  std::vector<bool> unchanged(layout_.size());
  for (size_t t = 0; t < marks_.size(); ++t) unchanged[t] = marks_[t] == kUnchanged;
  return unchanged;
}

}  // namespace deltawire::sender
