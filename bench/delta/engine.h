// Our side of the benchmark: every operation of the kernels over all chunks of a workload, with the
// threads of a pool taking whole chunks. Each run checks that it did what it should.
// Owner: one workload's cases; the workload and the pools must outlive it. One caller at a time.
// Memory: one more buffer of the model's size, the payloads, a few MiB a thread.
// Errors: kInternal when a kernel refuses its own payload; kDataLoss for wrong bytes or digests.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bench/delta/workload.h"
#include "common/base/thread_pool.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

class Engine {
 public:
  /// Encodes everything once. `threads`: the most that any pool given later has.
  static StatusOr<std::unique_ptr<Engine>> Create(const Workload& w,
                                                  const kernels::Backend& kernels,
                                                  const kernels::DigestKey& key, size_t threads,
                                                  ThreadPool& pool);

  const Workload& workload() const { return workload_; }
  const kernels::Backend& kernels() const { return kernels_; }
  const kernels::DigestKey& key() const { return key_; }
  bool has_tight() const { return tight_; }
  /// Dense is for chunks of which a good part changed; elsewhere it is not tried.
  bool has_dense() const { return dense_; }
  bool has_history() const { return workload_.deltas.size() > 1; }
  size_t max_fold() const { return workload_.deltas.size(); }

  /// Seconds of one run over all chunks.
  StatusOr<double> CopyOld(ThreadPool& pool);  ///< memcpy of the old bytes to the work buffer
  StatusOr<double> Compare(ThreadPool& pool);  ///< memcmp of these two; they must be equal
  StatusOr<double> DiffUnchanged(ThreadPool& pool);
  StatusOr<double> Digest(ThreadPool& pool);
  StatusOr<double> DigestPieces(ThreadPool& pool);  ///< as an arriving chunk, 64 KiB at a time
  StatusOr<double> EncodeFast(ThreadPool& pool);
  StatusOr<double> EncodeChecked(ThreadPool& pool);  ///< with the old bytes' digest
  /// REQUIRES of these, until Fold: has_tight() or has_dense() where it applies; history needs
  /// has_history().
  StatusOr<double> EncodeTight(ThreadPool& pool, bool history);
  StatusOr<double> EncodeDense(ThreadPool& pool);
  StatusOr<double> ValidateFast(ThreadPool& pool);
  /// Old to new in the work buffer, which is the old version again afterwards (not in the time).
  StatusOr<double> ApplyFast(ThreadPool& pool);
  StatusOr<double> ApplyTight(ThreadPool& pool, bool history);
  StatusOr<double> ApplyDense(ThreadPool& pool);
  /// Sum of the last `n` deltas. REQUIRES: n <= max_fold().
  StatusOr<double> Fold(ThreadPool& pool, size_t n);

  /// The work buffer: the old bytes, between runs.
  MutableBytes work() { return work_.data(); }

  /// Changes in the last `n` deltas together.
  uint64_t ChangesOf(size_t n) const;

  // What Create made, for sizes.
  const Delta& fast() const { return workload_.deltas[0]; }
  const Delta& tight(bool history) const { return tight_payloads_[history ? 1 : 0]; }
  const Delta& dense() const { return dense_payloads_; }
  /// Past deltas of a chunk, newest first, without deltas[0].
  const std::vector<Bytes>& PastOf(uint32_t chunk) const { return past_[chunk]; }

 private:
  struct Worker {
    std::vector<std::byte> fast, tight, dense, scratch;
    Status status;
  };
  using ChunkFunction = std::function<Status(Worker&, uint32_t)>;

  Engine(const Workload& w, const kernels::Backend& kernels, const kernels::DigestKey& key)
      : workload_(w), kernels_(kernels), key_(key) {}
  Status Prepare(size_t threads, ThreadPool& pool);
  Status CheckSize(uint32_t chunk, std::string_view what, size_t want, size_t got) const;
  Status Error(uint32_t chunk, std::string_view what, kernels::DecodeStatus status) const;
  kernels::History HistoryOf(uint32_t chunk, bool wanted) const;
  Status TightOf(Worker& worker, uint32_t chunk, Bytes payload, bool history, size_t* bytes) const;
  Status ApplyTo(uint32_t chunk, Bytes payload);
  StatusOr<double> Run(ThreadPool& pool, const ChunkFunction& fn);
  /// Run, then a check of the work buffer's bytes and CopyOld.
  StatusOr<double> RunApply(ThreadPool& pool, const ChunkFunction& fn);
  MutableBytes WorkOf(const Chunk& c) { return work_.data().subspan(c.offset, c.bytes); }

  const Workload& workload_;
  const kernels::Backend& kernels_;
  const kernels::DigestKey& key_;
  bool tight_ = false;
  bool dense_ = false;
  HugeBuffer work_;
  std::vector<Worker> workers_;
  std::vector<uint64_t> digest_old_, digest_new_;
  Delta tight_payloads_[2];
  Delta dense_payloads_;
  std::vector<std::vector<Bytes>> past_;  // of a chunk, newest first
  std::vector<uint32_t> context_;         // of its first kMaxHistory
};

/// The check of past deltas that a tight payload carries (docs/delta_format.md, "History").
uint32_t HistoryCheck(std::span<const Bytes> deltas);

}  // namespace deltawire::bench
