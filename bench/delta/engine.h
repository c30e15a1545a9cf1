// Our side of the benchmark: every operation of the kernels over all chunks of a workload. The
// threads of a pool take whole chunks, and each run checks its own results.
// Owner: one workload's cases; the workload and the pools must outlive it. One caller at a time.
// Memory: one more buffer of the model's size, the payloads, a few MiB per thread.
// Errors: kInternal when a kernel refuses its own payload; kDataLoss for wrong bytes or digests.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bench/delta/workload.h"

namespace deltawire::bench {

/// The forms of a delta. kTightHistory: tight, given the last 8 deltas.
enum Form : size_t { kFast, kTight, kTightHistory, kDense };
inline constexpr Form kForms[] = {kFast, kTight, kTightHistory, kDense};
/// The codec's name; of kTightHistory with "_history" behind it.
std::string NameOf(Form form);

class Engine;

/// The marks of an operation on traces of AdamW: the least that is wanted; 0: none.
struct OperationTargets {
  double of_reference = 0;
  double of_pairs = 0;
  double gb_per_second = 0;
  double changes_per_second = 0;
  double of_one_thread = 0;
};

/// An operation over all chunks.
struct Operation {
  /// Works on one chunk, on one thread. Null instead: the operation is a whole publish.
  using ChunkFunction = Status (Engine::*)(struct Worker&, uint32_t chunk, size_t argument);
  const char* name;
  ChunkFunction chunk;
  size_t argument = 0;     ///< a form, a number of deltas, or whether to check the base
  size_t deltas = 0;       ///< number of deltas that it goes through; > 0: has changes per second
  bool of_form = false;    ///< the argument is a form, which the engine must have
  bool applies = false;    ///< leaves the new bytes in the work buffer, so the old are put back
  const char* pairs = "";  ///< the case of the pair list that it is compared with
  OperationTargets targets = {};
  const char* reference = "memcmp";  ///< the operation that its rate is compared with
};

/// All operations, in the order in which they run.
std::span<const Operation> AllOperations();

/// One thread's memory.
struct Worker {
  std::vector<std::byte> fast, coded, scratch;
  Status status;
};

class Engine {
 public:
  /// Encodes everything once. `threads`: the most threads of any pool that Run will get.
  static StatusOr<std::unique_ptr<Engine>> Create(const Workload& w, size_t threads,
                                                  ThreadPool& pool);

  bool CanRun(const Operation& operation) const;
  /// Seconds of one run over all chunks. REQUIRES: CanRun.
  StatusOr<double> Run(const Operation& operation, ThreadPool& pool);

  /// Whether the engine has payloads of this form. Tight needs a backend with its kernels, its
  /// history needs past deltas, and dense needs a workload of which a large part changed.
  bool has(Form form) const;
  bool has_history() const { return workload_.deltas.size() > 1; }
  /// The payloads that Create made; empty where the form is no smaller than fast (dense: than raw).
  const Delta& payloads(Form form) const {
    return form == kFast ? workload_.deltas[0] : payloads_[form];
  }
  /// Past deltas of a chunk, newest first, without deltas[0].
  const std::vector<Bytes>& PastOf(uint32_t chunk) const { return past_[chunk]; }

  /// The work buffer. Between runs it holds the old bytes, which Restore puts back.
  MutableBytes work() { return work_.data(); }
  Status Restore(ThreadPool& pool);
  /// The number of changes in the last `n` deltas together.
  uint64_t ChangesOf(size_t n) const;

  // Each of these is some Operation::chunk.
  Status CopyOld(Worker& worker, uint32_t chunk, size_t);
  Status Compare(Worker& worker, uint32_t chunk, size_t);
  Status DiffUnchanged(Worker& worker, uint32_t chunk, size_t);
  Status Digest(Worker& worker, uint32_t chunk, size_t piece_bytes);
  Status Encode(Worker& worker, uint32_t chunk, size_t form);
  Status EncodeChecked(Worker& worker, uint32_t chunk, size_t);
  Status ValidateFast(Worker& worker, uint32_t chunk, size_t);
  Status Apply(Worker& worker, uint32_t chunk, size_t form);
  Status Fold(Worker& worker, uint32_t chunk, size_t deltas);

 private:
  explicit Engine(const Workload& w) : workload_(w) {}
  Status Prepare(Worker& worker, uint32_t chunk, size_t);
  Status CheckNew(Worker& worker, uint32_t chunk, size_t);
  StatusOr<double> RunChunks(ThreadPool& pool, Operation::ChunkFunction fn, size_t argument);
  StatusOr<double> Publish(ThreadPool& pool, bool check_base);
  /// Puts the chunk's fast payload in another form into worker.coded, and returns its size.
  StatusOr<size_t> Recode(Worker& worker, uint32_t chunk, Bytes fast, Form form) const;
  /// Puts the fast payload that `payload` decodes to into worker.fast, and returns its size.
  StatusOr<size_t> Decode(Worker& worker, uint32_t chunk, Bytes payload, Form form);
  kernels::History HistoryOf(uint32_t chunk, Form form) const;
  Status Same(uint32_t chunk, std::string_view what, size_t want, size_t got) const;
  Status Ok(uint32_t chunk, std::string_view what, kernels::DecodeStatus status) const;
  MutableBytes WorkOf(const Chunk& c) { return work_.data().subspan(c.offset, c.bytes); }

  const Workload& workload_;
  HugeBuffer work_;
  std::vector<Worker> workers_;
  std::vector<uint64_t> digest_old_, digest_new_;
  std::array<Delta, std::size(kForms)> payloads_;  // of all forms but kFast
  std::vector<std::vector<Bytes>> past_;           // of each chunk, newest first
  std::vector<uint32_t> context_;                  // check of each chunk's first kMaxHistory
};

}  // namespace deltawire::bench
