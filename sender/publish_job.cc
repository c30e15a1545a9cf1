#include "sender/publish_job.h"

#include <cstring>

#include "sender/model.h"

namespace deltawire::sender {
namespace {

// A chunk whose delta is nearly as large as its bytes goes whole: no decode, no log memory.
bool WorthKeeping(size_t encoded, size_t raw) { return encoded * 10 < raw * 9; }

MutableBytes EncodeScratch(size_t bytes) {
  thread_local std::unique_ptr<std::byte[]> memory;
  thread_local size_t size = 0;
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
      taken_(std::make_unique<std::atomic<uint8_t>[]>(n_)),
      digests_(std::make_shared<std::vector<uint64_t>>(n_)),
      counts_(std::make_unique<Counts[]>(in_.chunks->tensors())) {
  // What others own counts as taken, so that nobody here touches it.
  for (uint32_t i = 0; in_.owned != nullptr && i < n_; ++i) taken_[i] = !in_.owned->contains(i);
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

bool PublishJob::Diff(uint32_t i) {
  if (taken_[i].exchange(1, std::memory_order_acq_rel) != 0) return false;
  const Chunk& chunk = (*in_.chunks)[i];
  const MutableBytes now = in_.inactive.subspan(chunk.offset, chunk.bytes);
  if (in_.active.empty()) {
    (*digests_)[i] = in_.backend->digest(*in_.key, now);
    Count(chunk, chunk.bytes / chunk.width, 0, true);
    return true;
  }
  const Bytes before = in_.active.subspan(chunk.offset, chunk.bytes);
  const MutableBytes out = EncodeScratch(kernels::MaxEncodedBytes(chunk.bytes, chunk.width));
  const uint64_t digest_before = (*in_.active_digests)[i];
  if (ActiveDamaged(i)) {
    DigestAnew(i, digest_before);
    return true;
  }
  const auto r = in_.backend->diff_encode(*in_.key, before, now, chunk.width, digest_before, out);
  Record(i, r, out.first(r.bytes));
  return true;
}

void PublishJob::Record(uint32_t i, const kernels::EncodeResult& found, Bytes payload) {
  const Chunk& chunk = (*in_.chunks)[i];
  (*digests_)[i] = found.digest_after;
  if (found.changed == 0) return;
  const bool keep = WorthKeeping(payload.size(), chunk.bytes);
  Count(chunk, found.changed, keep ? payload.size() : 0, !keep);
  ChunkDelta entry;
  entry.chunk = i;
  entry.changed = found.changed;
  entry.digest_before = (*in_.active_digests)[i];
  entry.digest_after = found.digest_after;
  builder_.Add(entry, keep ? payload : Bytes());
}

void PublishJob::DiffOnGpu(const std::vector<bool>& unchanged) {
  if (in_.gpu == nullptr || in_.active.empty()) return;
  std::vector<uint32_t> which;
  for (uint32_t i = 0; i < n_; ++i) {
    if (unchanged[(*in_.chunks)[i].tensor] || ActiveDamaged(i)) continue;
    if (taken_[i].exchange(1, std::memory_order_acq_rel) == 0) which.push_back(i);
  }
  std::vector<uint8_t> done(n_);
  in_.gpu->Diff(in_.active, in_.inactive, which, *in_.active_digests,
                [&](uint32_t i, const kernels::EncodeResult& found, Bytes payload) {
                  Record(i, found, payload);
                  done[i] = 1;
                });
  for (const uint32_t i : which) {
    if (done[i] == 0) taken_[i].store(0, std::memory_order_release);
  }
}

void PublishJob::DigestAnew(uint32_t i, uint64_t digest_before) {
  const Chunk& chunk = (*in_.chunks)[i];
  const Bytes now = in_.inactive.subspan(chunk.offset, chunk.bytes);
  (*digests_)[i] = in_.backend->digest(*in_.key, now);
  Count(chunk, 0, 0, true);
  ChunkDelta entry;
  entry.chunk = i;
  entry.digest_before = digest_before;
  entry.digest_after = (*digests_)[i];
  builder_.Add(entry, {});
}

void PublishJob::CarryOver(uint32_t i) {
  if (taken_[i].exchange(1, std::memory_order_acq_rel) != 0) return;
  const Chunk& chunk = (*in_.chunks)[i];
  std::memcpy(in_.inactive.data() + chunk.offset, in_.active.data() + chunk.offset, chunk.bytes);
  (*digests_)[i] = (*in_.active_digests)[i];
}

void PublishJob::MarkWritten(std::span<const uint32_t> tensors, ThreadPool& pool) {
  constexpr uint32_t kBatch = 8;
  const size_t most = std::max<size_t>(1, pool.size() / 2);
  std::lock_guard lock(mu_);
  if (cancelled_) return;
  for (const uint32_t t : tensors) {
    const uint32_t end = in_.chunks->end_of_tensor(t);
    for (uint32_t first = in_.chunks->first_of_tensor(t); first < end; first += kBatch) {
      marked_.emplace_back(first, std::min(end, first + kBatch));
    }
  }
  while (early_threads_ < std::min(most, marked_.size())) {
    ++early_threads_;
    pool.Submit([self = shared_from_this()] { self->DiffMarked(); });
  }
}

void PublishJob::DiffMarked() {
  std::unique_lock lock(mu_);
  while (!cancelled_ && !marked_.empty()) {
    const auto [first, last] = marked_.front();
    marked_.pop_front();
    lock.unlock();
    for (uint32_t i = first; i < last; ++i) Diff(i);
    lock.lock();
  }
  if (--early_threads_ == 0) cv_.notify_all();
}

PublishJob::Result PublishJob::Finish(StateId from, StateId to, const std::vector<bool>& unchanged,
                                      ThreadPool& pool) {
  DiffOnGpu(unchanged);
  pool.ParallelFor(n_, [&](size_t i) {
    const auto c = static_cast<uint32_t>(i);
    if (unchanged[(*in_.chunks)[c].tensor]) {
      CarryOver(c);
    } else {
      Diff(c);
    }
  });
  // Every chunk is taken; early threads may still be in their last.
  std::unique_lock lock(mu_);
  marked_.clear();
  cv_.wait(lock, [this] { return early_threads_ == 0; });
  Result result;
  if (!in_.active.empty()) result.delta = builder_.Finish(from, to);
  result.digests = digests_;
  auto tensors = std::make_shared<std::vector<TensorChange>>();
  for (size_t t = 0; t < in_.chunks->tensors(); ++t) {
    tensors->push_back({counts_[t].changed, counts_[t].delta_bytes, counts_[t].full_bytes});
    result.changed_elements += counts_[t].changed;
    result.full_bytes += counts_[t].full_bytes;
  }
  result.tensors = std::move(tensors);
  for (uint32_t i = 0; i < n_; ++i) {
    if (unchanged[(*in_.chunks)[i].tensor] && ActiveDamaged(i)) result.damaged.push_back(i);
  }
  return result;
}

void PublishJob::Cancel() {
  std::unique_lock lock(mu_);
  cancelled_ = true;
  cv_.wait(lock, [this] { return early_threads_ == 0; });
}

}  // namespace deltawire::sender
