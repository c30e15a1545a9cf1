#include "sender/agent/diff/publish_job.h"

#include <algorithm>

#include "common/base/checksum.h"
#include "common/base/of_this_thread.h"
#include "common/layout/root.h"

namespace deltawire::sender {
namespace {

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
      base_(in_),
      payloads_(in_, base_),
      builder_(in_.payload_limit),
      turns_(std::make_unique<std::atomic<Turn>[]>(n_)),
      digests_(std::make_shared<std::vector<uint64_t>>(n_)),
      counts_(std::make_unique<Counts[]>(in_.chunks->tensors())),
      root_(in_.active_root) {
  // Chunks that other agents own count as taken, so that no thread touches them.
  for (uint32_t i = 0; i < n_; ++i) {
    const bool other = in_.owned != nullptr && !in_.owned->contains(i);
    turns_[i] = other ? Turn::kTaken : Turn::kFree;
  }
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
  if (!base_.empty()) {
    const uint64_t before = base_.digest(i);
    if (before == digest) return;
    change -= RootTerm(i, before);
  }
  root_.fetch_add(change, std::memory_order_relaxed);
}

void PublishJob::Diff(uint32_t i) {
  const bool given = Take(i, Turn::kPayload);
  if (!given && !Take(i)) return;
  const Chunk& chunk = (*in_.chunks)[i];
  if (base_.empty()) {
    SetDigest(i, in_.backend->digest(*in_.key, base_.now(i)));
    Count(chunk, chunk.bytes / chunk.width, 0, true);
    return;
  }
  const MutableBytes out = EncodeScratch(kernels::MaxEncodedBytes(chunk.bytes, chunk.width));
  if (given) {
    const auto made = payloads_.ApplyChunk(i, out);
    if (!made.ok()) return Fail(i, MessageOf(made.status()));
    return Record(i, *made, out.first(made->bytes));
  }
  if (const Status applied = payloads_.ApplyRuns(i); !applied.ok()) {
    return Fail(i, MessageOf(applied));
  }
  if (base_.IsCorrupt(i)) return DigestAnew(i);
  const auto r =
      in_.backend->diff_encode_checked(*in_.key, base_.before(i), base_.now(i), chunk.width, out);
  if (r.digest_before == base_.digest(i)) return Record(i, r, out.first(r.bytes));
  base_.MarkCorrupt(i, true);
  DigestAnew(i);
}

void PublishJob::AddPayloads(std::span<const DiffedChunk> payloads) {
  for (const DiffedChunk& payload : payloads) {
    const uint32_t i = payload.chunk;
    if (base_.empty()) return Fail(i, "there is no version that it could change");
    if (payload.length < (*in_.chunks)[i].bytes) {
      payloads_.AddRun(payload);
      continue;
    }
    if (!Take(i, Turn::kFree, Turn::kFilling)) {
      return Fail(i, "the chunk was written or handed over before");
    }
    payloads_.SetChunk(payload);
    turns_[i].store(Turn::kPayload, std::memory_order_release);
  }
}

std::string PublishJob::Describe(uint32_t i) const {
  const size_t tensor = (*in_.chunks)[i].tensor;
  return fmt::format(
      "chunk {} of tensor {}", i,
      in_.layout == nullptr ? std::to_string(tensor) : in_.layout->tensor(tensor).name);
}

void PublishJob::Fail(uint32_t i, std::string_view why) {
  {
    MutexLock lock(mu_);
    failure_.Update(Errorf(StatusCode::kAborted,
                           "{}: the trainer's GPU has handed over a delta, and {}; offload the "
                           "weights as a newer version, which is sent whole",
                           Describe(i), why));
  }
  Abort();
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
  entry.digest_before = base_.digest(i);
  entry.digest_after = found.digest_after;
  const bool undoable = builder_.Add(entry, payload);
  if (in_.changing) in_.changing(i, base_.before(i), undoable);
  if (in_.diffed) in_.diffed(i, entry.digest_before, entry.digest_after, sent ? payload : Bytes());
}

void PublishJob::DiffOnGpu(const std::vector<bool>& unchanged, ThreadPool& pool) {
  if (in_.gpu == nullptr || !in_.gpu->trusted() || base_.empty()) return;
  std::vector<uint32_t> which;
  for (uint32_t i = 0; i < n_; ++i) {
    if (unchanged[(*in_.chunks)[i].tensor] || base_.IsCorrupt(i) || payloads_.HasRuns(i)) continue;
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
                  const bool base = found.digest_before == base_.digest(i);
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
    in_.gpu->Distrust(Describe(wrong));
    done.assign(n_, 0);
  } else {
    pool.ParallelFor(results.size(), [&](size_t i) {
      const GpuResult& result = results[i];
      if (done[result.chunk] == 0) return;
      if (result.whole) return DigestAnew(result.chunk);
      Record(result.chunk, result.found, result.payload);
    });
  }
  for (const uint32_t i : which) {
    if (done[i] == 0) turns_[i].store(Turn::kFree, std::memory_order_release);
  }
}

bool PublishJob::CpuAgrees(GpuResult& claim) {
  const Chunk& chunk = (*in_.chunks)[claim.chunk];
  const uint64_t digest_before = base_.digest(claim.chunk);
  const MutableBytes out = EncodeScratch(kernels::MaxEncodedBytes(chunk.bytes, chunk.width));
  const auto r = in_.backend->diff_encode_checked(*in_.key, base_.before(claim.chunk),
                                                  base_.now(claim.chunk), chunk.width, out);
  const kernels::EncodeResult& found = claim.found;
  if (r.digest_before != digest_before) {
    // The half is corrupt. A GPU that read this half found the same, and Diff handles the chunk. A
    // GPU with its own base may have diffed against the right bytes.
    if (found.digest_before != digest_before) return true;
    base_.MarkCorrupt(claim.chunk, true);
    claim.whole = true;
    return found.digest_after == r.digest_after;
  }
  return found.digest_before == r.digest_before && found.digest_after == r.digest_after &&
         found.changed == r.changed && claim.payload_xxh3 == Xxh3(out.first(r.bytes));
}

void PublishJob::DigestAnew(uint32_t i) {
  SetDigest(i, in_.backend->digest(*in_.key, base_.now(i)));
  Count((*in_.chunks)[i], 0, 0, true);
  ChunkDelta entry;
  entry.chunk = i;
  entry.digest_before = base_.digest(i);
  entry.digest_after = (*digests_)[i];
  builder_.Add(entry, {});
}

void PublishJob::CarryOver(uint32_t i) {
  if (!Take(i)) return;
  (*digests_)[i] = base_.digest(i);
  if (base_.CopyOver(i, true)) return;
  MutexLock lock(mu_);
  damaged_.push_back(i);
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
  result.payloads = payloads_.applied();
  if (!base_.empty()) result.delta = builder_.Finish(from, to);
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
