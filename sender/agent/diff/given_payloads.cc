#include "sender/agent/diff/given_payloads.h"

#include <cstring>
#include <utility>

namespace deltawire::sender {
namespace {

Status BaseIsCorrupt() {
  return absl::AbortedError("the bytes that it changes are corrupt in this machine's memory");
}

}  // namespace

void GivenPayloads::AddRun(const DiffedChunk& payload) {
  MutexLock lock(mu_);
  runs_[payload.chunk].push_back(payload);
}

bool GivenPayloads::HasRuns(uint32_t chunk) const {
  MutexLock lock(mu_);
  return runs_.contains(chunk);
}

Status GivenPayloads::Wrong() {
  was_wrong_ = true;
  return absl::AbortedError("it does not lead to the bytes that the GPU has");
}

bool GivenPayloads::Apply(Bytes payload, MutableBytes now, unsigned width, uint64_t digest_before,
                          uint64_t digest_after, uint64_t* changed) const {
  using kernels::DecodeStatus;
  uint64_t digest = digest_before;
  const bool valid =
      payload.empty() ||
      (in_.backend->validate(payload, now.size(), width, changed) == DecodeStatus::kOk &&
       in_.backend->decode_apply(*in_.key, payload, now, width, digest_before, &digest) ==
           DecodeStatus::kOk);
  return valid && digest == digest_after;
}

StatusOr<kernels::EncodeResult> GivenPayloads::ApplyChunk(uint32_t i, MutableBytes payload) {
  const DiffedChunk& given = chunks_[i];
  const MutableBytes now = base_.now(i);
  payload = payload.first(given.bytes);
  std::memcpy(payload.data(), now.data(), payload.size());
  if (base_.IsCorrupt(i) || !base_.CopyOver(i, given.bytes == 0)) {
    return BaseIsCorrupt();
  }
  kernels::EncodeResult made;
  made.bytes = given.bytes;
  made.digest_before = base_.digest(i);
  made.digest_after = given.digest_after;
  if (!Apply(payload, now, (*in_.chunks)[i].width, made.digest_before, given.digest_after,
             &made.changed)) {
    return Wrong();
  }
  ++applied_;
  return made;
}

Status GivenPayloads::ApplyRuns(uint32_t i) {
  std::vector<DiffedChunk> runs;
  {
    MutexLock lock(mu_);
    const auto found = runs_.find(i);
    if (found == runs_.end()) return absl::OkStatus();
    runs = std::move(found->second);
    runs_.erase(found);
  }
  for (const DiffedChunk& run : runs) DW_RETURN_IF_ERROR(ApplyRun(i, run));
  return absl::OkStatus();
}

Status GivenPayloads::ApplyRun(uint32_t i, const DiffedChunk& run) {
  std::vector<std::byte> payload(run.bytes), bytes(run.length);
  GatherRuns(run, base_.now(i), payload);
  GatherRuns(run, base_.before(i), bytes);
  if (Apply(payload, bytes, (*in_.chunks)[i].width, in_.backend->digest(*in_.key, bytes),
            run.digest_after, nullptr)) {
    ScatterRuns(run, bytes, base_.now(i));
    ++applied_;
    return absl::OkStatus();
  }
  // The digest of the old bytes is that of the whole chunk.
  if (base_.IsCorrupt(i) || in_.backend->digest(*in_.key, base_.before(i)) != base_.digest(i)) {
    base_.MarkCorrupt(i, false);
    return BaseIsCorrupt();
  }
  return Wrong();
}

}  // namespace deltawire::sender
