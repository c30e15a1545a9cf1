#include "sender/agent/diff/publish_job.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "common/base/checksum.h"
#include "common/base/of_this_thread.h"
#include "common/layout/root.h"

namespace deltawire::sender {
namespace {

// The size of a copied block, which stays in the first-level cache until it is digested.
constexpr size_t kCopyStep = 16 << 10;

struct Scratch {
  std::unique_ptr<std::byte[]> memory;
  size_t size = 0;
};

MutableBytes EncodeScratch(size_t bytes) {
  auto& [memory, size] = OfThisThread<Scratch>();
  if (size < bytes) {
    memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    size = bytes;
  }
  return {memory.get(), size};
}

}  // namespace

PublishJob::PublishJob(Inputs inputs)
    : in_(std::move(inputs)),
      n_(in_.chunks->size()),
      builder_(in_.payload_limit),
      turns_(std::make_unique<std::atomic<Turn>[]>(n_)),
      given_(in_.active.empty() ? 0 : n_),
      digests_(std::make_shared<std::vector<uint64_t>>(n_)),
      counts_(std::make_unique<Counts[]>(in_.chunks->tensors())),
      root_(in_.active_root) {
  // Chunks that other agents own count as taken, so that no thread touches them.
  for (uint32_t i = 0; i < n_; ++i) {
    const bool other = in_.owned != nullptr && !in_.owned->contains(i);
    turns_[i] = other ? Turn::kTaken : Turn::kFree;
  }
}

bool PublishJob::ActiveDamaged(uint32_t i) const {
  return in_.published != nullptr && in_.published->damaged[i] != 0;
}

void PublishJob::Count(const Chunk& chunk, uint64_t changed, uint64_t delta_bytes, bool full) {
  Counts& c = counts_[chunk.tensor];
  c.changed.fetch_add(changed, std::memory_order_relaxed);
  c.delta_bytes.fetch_add(delta_bytes, std::memory_order_relaxed);
  if (full) c.full_bytes.fetch_add(chunk.bytes, std::memory_order_relaxed);
}

void PublishJob::SetDigest(uint32_t i, uint64_t digest) {
  (*digests_)[i] = digest;
  uint64_t change = RootTerm(i, digest);
  if (!in_.active.empty()) {
    const uint64_t before = (*in_.active_digests)[i];
    if (before == digest) return;
    change -= RootTerm(i, before);
  }
  root_.fetch_add(change, std::memory_order_relaxed);
}

void PublishJob::Diff(uint32_t i) {
  if (Take(i, Turn::kPayload)) return Apply(i);
  if (!Take(i)) return;
  const Chunk& chunk = (*in_.chunks)[i];
  const MutableBytes now = in_.inactive.subspan(chunk.offset, chunk.bytes);
  if (in_.active.empty()) {
    SetDigest(i, in_.backend->digest(*in_.key, now));
    Count(chunk, chunk.bytes / chunk.width, 0, true);
    return;
  }
  const Bytes before = in_.active.subspan(chunk.offset, chunk.bytes);
  const MutableBytes out = EncodeScratch(kernels::MaxEncodedBytes(chunk.bytes, chunk.width));
  const uint64_t digest_before = (*in_.active_digests)[i];
  if (!ApplyRuns(i)) return;
  if (ActiveDamaged(i)) return DigestAnew(i, digest_before);
  const auto r = in_.backend->diff_encode_checked(*in_.key, before, now, chunk.width, out);
  if (r.digest_before == digest_before) {
    Record(i, r, out.first(r.bytes));
    CallDiffed(i, r, out.first(r.bytes));
  } else {
    MarkCorrupt(i, true);
    DigestAnew(i, digest_before);
  }
}

void PublishJob::CallDiffed(uint32_t i, const kernels::EncodeResult& found, Bytes payload) const {
  if (!in_.diffed || found.changed == 0) return;
  const bool sent = WorthSending(found.bytes, (*in_.chunks)[i].bytes);
  in_.diffed(i, found.digest_before, found.digest_after, sent ? payload : Bytes());
}

void PublishJob::AddPayloads(std::span<const DiffedChunk> payloads) {
  for (const DiffedChunk& payload : payloads) {
    const uint32_t i = payload.chunk;
    if (in_.active.empty()) return Fail(i, "there is no version that it could change");
    if (payload.length < (*in_.chunks)[i].bytes) {
      MutexLock lock(mu_);
      runs_[i].push_back(payload);
      continue;
    }
    if (!Take(i, Turn::kFree, Turn::kFilling)) {
      return Fail(i, "the chunk was written or handed over before");
    }
    given_[i] = payload;
    turns_[i].store(Turn::kPayload, std::memory_order_release);
  }
}

void PublishJob::Apply(uint32_t i) {
  const Chunk& chunk = (*in_.chunks)[i];
  const DiffedChunk& given = given_[i];
  const MutableBytes now = in_.inactive.subspan(chunk.offset, chunk.bytes);
  const MutableBytes payload =
      EncodeScratch(kernels::MaxEncodedBytes(chunk.bytes, chunk.width)).first(given.bytes);
  std::memcpy(payload.data(), now.data(), payload.size());
  kernels::EncodeResult made;
  made.bytes = given.bytes;
  made.digest_before = made.digest_after = (*in_.active_digests)[i];
  if (ActiveDamaged(i) || !BringBase(i, given.bytes == 0)) {
    if (!ActiveDamaged(i)) MarkCorrupt(i, false);
    return Fail(i, "the bytes that it changes are corrupt in this machine's memory");
  }
  using kernels::DecodeStatus;
  const bool valid =
      given.bytes == 0 ||
      (in_.backend->validate(payload, chunk.bytes, chunk.width, &made.changed) ==
           DecodeStatus::kOk &&
       in_.backend->decode_apply(*in_.key, payload, now, chunk.width, made.digest_before,
                                 &made.digest_after) == DecodeStatus::kOk);
  if (!valid || made.digest_after != given.digest_after) {
    payload_was_wrong_ = true;
    return Fail(i, "it does not lead to the bytes that the GPU has");
  }
  ++applied_;
  Record(i, made, payload);
  CallDiffed(i, made, payload);
}

bool PublishJob::HasRuns(uint32_t i) {
  MutexLock lock(mu_);
  return runs_.contains(i);
}

bool PublishJob::ApplyRuns(uint32_t i) {
  std::vector<DiffedChunk> runs;
  {
    MutexLock lock(mu_);
    const auto found = runs_.find(i);
    if (found == runs_.end()) return true;
    runs = std::move(found->second);
    runs_.erase(found);
  }
  return std::ranges::all_of(runs, [&](const DiffedChunk& run) { return ApplyRun(i, run); });
}

bool PublishJob::ApplyRun(uint32_t i, const DiffedChunk& run) {
  const Chunk& chunk = (*in_.chunks)[i];
  const MutableBytes now = in_.inactive.subspan(chunk.offset + run.offset, run.length);
  std::vector<std::byte> payload(now.begin(), now.begin() + run.bytes);
  std::memcpy(now.data(), in_.active.data() + chunk.offset + run.offset, run.length);
  uint64_t digest = in_.backend->digest(*in_.key, now);
  using kernels::DecodeStatus;
  const bool valid =
      payload.empty() ||
      (in_.backend->validate(payload, run.length, chunk.width, nullptr) == DecodeStatus::kOk &&
       in_.backend->decode_apply(*in_.key, payload, now, chunk.width, digest, &digest) ==
           DecodeStatus::kOk);
  if (valid && digest == run.digest_after) {
    ++applied_;
    return true;
  }
  // The digest of the old bytes is that of the whole chunk.
  const Bytes before = in_.active.subspan(chunk.offset, chunk.bytes);
  if (ActiveDamaged(i) || in_.backend->digest(*in_.key, before) != (*in_.active_digests)[i]) {
    if (!ActiveDamaged(i)) MarkCorrupt(i, false);
    Fail(i, "the bytes that it changes have lost their digest in this machine's memory");
  } else {
    payload_was_wrong_ = true;
    Fail(i, "it does not lead to the bytes that the GPU has");
  }
  return false;
}

void PublishJob::Fail(uint32_t i, std::string_view why) {
  const size_t tensor = (*in_.chunks)[i].tensor;
  {
    MutexLock lock(mu_);
    if (failure_.ok()) {
      failure_ = Errorf(
          StatusCode::kAborted,
          "chunk {} of tensor {}: the trainer's GPU has handed over a delta, and {}; offload "
          "the weights as a newer version, which is sent whole",
          i, in_.layout == nullptr ? std::to_string(tensor) : in_.layout->tensor(tensor).name, why);
    }
  }
  Abort();
}

void PublishJob::MarkCorrupt(uint32_t i, bool whole) {
  // The chunk must not be sent or serve as a base.
  if (in_.published != nullptr) in_.published->damaged[i] = 1;
  if (in_.corrupt) in_.corrupt(i, whole);
}

void PublishJob::Record(uint32_t i, const kernels::EncodeResult& found, Bytes payload) {
  const Chunk& chunk = (*in_.chunks)[i];
  SetDigest(i, found.digest_after);
  if (found.changed == 0) return;
  const bool sent = WorthSending(found.bytes, chunk.bytes);
  Count(chunk, found.changed, sent ? found.bytes : 0, !sent);
  ChunkDelta entry;
  entry.chunk = i;
  entry.changed = found.changed;
  entry.digest_before = (*in_.active_digests)[i];
  entry.digest_after = found.digest_after;
  const bool undoable = builder_.Add(entry, payload);
  if (in_.changing) {
    in_.changing(i, in_.active.subspan(chunk.offset, chunk.bytes), undoable);
  }
}

void PublishJob::DiffOnGpu(const std::vector<bool>& unchanged, ThreadPool& pool) {
  if (in_.gpu == nullptr || !in_.gpu->trusted() || in_.active.empty()) return;
  std::vector<uint32_t> which;
  for (uint32_t i = 0; i < n_; ++i) {
    if (unchanged[(*in_.chunks)[i].tensor] || ActiveDamaged(i) || HasRuns(i)) continue;
    if (Take(i)) which.push_back(i);
  }
  // No result counts before the CPU has agreed to a sample of them.
  std::vector<GpuResult> results;
  std::vector<size_t> claims;
  std::vector<uint8_t> done(n_);
  uint64_t kept = 0;
  const uint32_t rounds = std::min(GpuDiff::kCheckRounds, n_), round = in_.gpu->NextRound();
  in_.gpu->Diff(in_.active, in_.inactive, which, *in_.active_digests,
                [&](uint32_t i, const kernels::EncodeResult& found, Bytes payload) {
                  // If the digests differ, either the base is corrupt or the GPU is wrong. The CPU
                  // decides which.
                  const bool base = found.digest_before == (*in_.active_digests)[i];
                  GpuResult result{.chunk = i, .found = found};
                  if (!base || (i + round) % rounds == 0) {
                    result.payload_xxh3 = Xxh3(payload);
                    claims.push_back(results.size());
                  }
                  if (base && kept + payload.size() <= in_.payload_limit) {
                    result.payload.assign(payload.begin(), payload.end());
                    kept += payload.size();
                  }
                  results.push_back(std::move(result));
                  done[i] = base;
                });
  std::atomic<uint32_t> wrong{n_};
  pool.ParallelFor(claims.size(), [&](size_t i) {
    if (!CpuAgrees(results[claims[i]])) wrong = results[claims[i]].chunk;
  });
  if (wrong < n_) {
    const size_t tensor = (*in_.chunks)[wrong].tensor;
    in_.gpu->Distrust(fmt::format(
        "chunk {} of tensor {}", wrong.load(),
        in_.layout == nullptr ? std::to_string(tensor) : in_.layout->tensor(tensor).name));
    done.assign(n_, 0);
  } else {
    pool.ParallelFor(results.size(), [&](size_t i) {
      if (done[results[i].chunk] != 0) Accept(results[i]);
    });
  }
  for (const uint32_t i : which) {
    if (done[i] == 0) turns_[i].store(Turn::kFree, std::memory_order_release);
  }
}

void PublishJob::Accept(const GpuResult& result) {
  const uint32_t i = result.chunk;
  if (result.whole) return DigestAnew(i, result.found.digest_before);
  Record(i, result.found, result.payload);
  CallDiffed(i, result.found, result.payload);
}

bool PublishJob::CpuAgrees(GpuResult& claim) {
  const Chunk& chunk = (*in_.chunks)[claim.chunk];
  const uint64_t digest_before = (*in_.active_digests)[claim.chunk];
  const MutableBytes out = EncodeScratch(kernels::MaxEncodedBytes(chunk.bytes, chunk.width));
  const auto r = in_.backend->diff_encode_checked(
      *in_.key, in_.active.subspan(chunk.offset, chunk.bytes),
      Bytes(in_.inactive).subspan(chunk.offset, chunk.bytes), chunk.width, out);
  const kernels::EncodeResult& found = claim.found;
  if (r.digest_before != digest_before) {
    // The half is corrupt. A GPU that read this half found the same, and Diff handles the chunk. A
    // GPU with its own base may have diffed against the right bytes.
    if (found.digest_before != digest_before) return true;
    MarkCorrupt(claim.chunk, true);
    claim.whole = true;
    return found.digest_after == r.digest_after;
  }
  return found.digest_before == r.digest_before && found.digest_after == r.digest_after &&
         found.changed == r.changed && claim.payload_xxh3 == Xxh3(out.first(r.bytes));
}

void PublishJob::DigestAnew(uint32_t i, uint64_t digest_before) {
  const Chunk& chunk = (*in_.chunks)[i];
  const Bytes now = in_.inactive.subspan(chunk.offset, chunk.bytes);
  SetDigest(i, in_.backend->digest(*in_.key, now));
  Count(chunk, 0, 0, true);
  ChunkDelta entry;
  entry.chunk = i;
  entry.digest_before = digest_before;
  entry.digest_after = (*digests_)[i];
  builder_.Add(entry, {});
}

void PublishJob::CarryOver(uint32_t i) {
  if (!Take(i)) return;
  (*digests_)[i] = (*in_.active_digests)[i];
  if (BringBase(i, true)) return;
  if (!ActiveDamaged(i)) MarkCorrupt(i, false);
  MutexLock lock(mu_);
  damaged_.push_back(i);
}

bool PublishJob::BringBase(uint32_t i, bool may_have_bytes) {
  const Chunk& chunk = (*in_.chunks)[i];
  const uint64_t digest = (*in_.active_digests)[i];
  const Bytes there = Bytes(in_.inactive).subspan(chunk.offset, chunk.bytes);
  // Saves the copy, and keeps right bytes if those of the active half are corrupt.
  if (may_have_bytes && MayHaveBytes(i) && in_.backend->digest(*in_.key, there) == digest) {
    return true;
  }
  return CopyOver(chunk) == digest;
}

bool PublishJob::MayHaveBytes(uint32_t i) const {
  if (in_.published == nullptr) return false;
  const LogView& log = in_.published->log;
  return !log.empty() && log.back()->Find(i) == nullptr;
}

uint64_t PublishJob::CopyOver(const Chunk& chunk) {
  uint64_t digest = 0;
  for (size_t at = 0; at < chunk.bytes; at += kCopyStep) {
    const size_t bytes = std::min<size_t>(kCopyStep, chunk.bytes - at);
    std::byte* const to = in_.inactive.data() + chunk.offset + at;
    std::memcpy(to, in_.active.data() + chunk.offset + at, bytes);
    digest += in_.backend->digest_range(*in_.key, {to, bytes}, at);
  }
  return digest;
}

void PublishJob::MarkWritten(std::span<const uint32_t> tensors, std::span<const uint32_t> chunks,
                             ThreadPool& pool) {
  constexpr uint32_t kBatch = 8;
  const size_t most = std::max<size_t>(1, pool.size() / 2);
  MutexLock lock(mu_);
  if (cancelled_) return;
  for (const uint32_t t : tensors) {
    const uint32_t end = in_.chunks->end_of_tensor(t);
    for (uint32_t first = in_.chunks->first_of_tensor(t); first < end; first += kBatch) {
      marked_.emplace_back(first, std::min(end, first + kBatch));
    }
  }
  for (const uint32_t c : chunks) marked_.emplace_back(c, c + 1);
  while (early_threads_ < std::min(most, marked_.size())) {
    ++early_threads_;
    pool.Submit([self = shared_from_this()] { self->DiffMarked(); });
  }
}

void PublishJob::DiffMarked() {
  MutexLock lock(mu_);
  while (!cancelled_ && !marked_.empty()) {
    const auto [first, last] = marked_.front();
    marked_.pop_front();
    ++running_;
    lock.unlock();
    for (uint32_t i = first; i < last; ++i) Diff(i);
    lock.lock();
    if (--running_ == 0) cv_.notify_all();
  }
  --early_threads_;
}

StatusOr<PublishJob::Result> PublishJob::Finish(StateId from, StateId to,
                                                const std::vector<bool>& unchanged,
                                                ThreadPool& pool) {
  if (!aborted_) DiffOnGpu(unchanged, pool);
  pool.ParallelFor(n_, [&](size_t i) {
    if (aborted_) return;
    const auto c = static_cast<uint32_t>(i);
    if (unchanged[(*in_.chunks)[c].tensor]) {
      CarryOver(c);
    } else {
      Diff(c);
    }
  });
  // All chunks are taken, but early threads may still be diffing their last ones.
  Cancel();
  Join();
  if (aborted_) {
    MutexLock lock(mu_);
    return failure_.ok() ? absl::AbortedError("the publish was abandoned") : failure_;
  }
  Result result;
  result.payloads = applied_;
  if (!in_.active.empty()) result.delta = builder_.Finish(from, to);
  result.digests = digests_;
  result.root = root_;
  auto tensors = std::make_shared<std::vector<TensorChange>>();
  for (size_t t = 0; t < in_.chunks->tensors(); ++t) {
    tensors->push_back({counts_[t].changed, counts_[t].delta_bytes, counts_[t].full_bytes});
    result.changed_elements += counts_[t].changed;
    result.delta_bytes += counts_[t].delta_bytes;
    result.full_bytes += counts_[t].full_bytes;
  }
  result.tensors = std::move(tensors);
  MutexLock lock(mu_);
  result.damaged = std::move(damaged_);
  return result;
}

void PublishJob::Abort() {
  aborted_ = true;
  Cancel();
}

void PublishJob::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  marked_.clear();
}

void PublishJob::Join() {
  MutexLock lock(mu_);
  while (running_ > 0) cv_.wait(lock);
}

}  // namespace deltawire::sender
