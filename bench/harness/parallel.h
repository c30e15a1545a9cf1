// Loops over chunks on all threads of a pool. They also diff two versions and apply the delta with
// the kernels alone, as the reference for suites that send deltas through files, sockets or a GPU.
// Errors are the first of the work.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "common/base/thread_pool.h"
#include "common/delta/delta.h"
#include "common/layout/chunks.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

/// Calls `work(i)`, which returns a Status, for every i in [0, n), until one of them fails.
template <typename Work>
Status ForAll(ThreadPool& pool, size_t n, const Work& work) {
  std::mutex mu;
  Status first;
  std::atomic<bool> failed{false};
  pool.ParallelFor(n, [&](size_t i) {
    if (failed) return;
    const Status status = work(i);
    if (status.ok()) return;
    failed = true;
    std::lock_guard lock(mu);
    first.Update(status);
  });
  return first;
}

inline void CopyInParts(Bytes from, MutableBytes to, ThreadPool& pool) {
  const size_t threads = pool.size();
  pool.ParallelFor(threads, [&](size_t i) {
    const uint64_t first = from.size() * i / threads, end = from.size() * (i + 1) / threads;
    std::memcpy(to.data() + first, from.data() + first, end - first);
  });
}

inline std::shared_ptr<const Delta> DiffAll(const kernels::DigestKey& key, const ChunkTable& chunks,
                                            Bytes old_data, Bytes new_data, ThreadPool& pool) {
  DeltaBuilder delta(~uint64_t{0});
  pool.ParallelFor(chunks.size(), [&](size_t i) {
    const Chunk& c = chunks[static_cast<uint32_t>(i)];
    std::vector<std::byte> room(kernels::MaxEncodedBytes(c.bytes, c.width));
    const auto found =
        kernels::Best().diff_encode_checked(key, old_data.subspan(c.offset, c.bytes),
                                            new_data.subspan(c.offset, c.bytes), c.width, room);
    if (found.bytes == 0) return;
    delta.Add({.chunk = static_cast<uint32_t>(i),
               .changed = found.changed,
               .digest_before = found.digest_before,
               .digest_after = found.digest_after},
              Bytes(room).first(found.bytes));
  });
  return delta.Finish({}, {});
}

/// Decodes, adds and digests the chunks of a Delta or the entries of a DeltaFile into `data`.
template <typename Entries>
Status ApplyAll(const kernels::DigestKey& key, const ChunkTable& chunks, const Entries& entries,
                MutableBytes data, ThreadPool& pool) {
  return ForAll(pool, entries.size(), [&](size_t i) {
    const auto& entry = entries[i];
    const Chunk& c = chunks[entry.chunk];
    uint64_t after = 0;
    const auto decoded = kernels::Best().decode_apply(
        key, entry.payload, data.subspan(c.offset, c.bytes), c.width, entry.digest_before, &after);
    if (decoded == kernels::DecodeStatus::kOk && after == entry.digest_after) {
      return absl::OkStatus();
    }
    return absl::DataLossError("a delta that was applied to plain memory came out wrong");
  });
}

}  // namespace deltawire::bench
