// The measured side of the benchmark: every operation of the kernels over all chunks of a workload.
// The threads of a pool take whole chunks, and each run checks its own results. The workload and
// the pools outlive it. One caller at a time. It takes one more buffer of the model's size, the
// payloads, and a few MiB per thread. kInternal means that a kernel rejected its own payload,
// kDataLoss wrong bytes or digests.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bench/delta/workload.h"
#include "common/delta/chunk_history.h"
#include "common/delta/coders.h"

namespace deltawire::bench {

/// The forms of a delta. kTightHistory is tight with the last 8 deltas.
enum Form : size_t { kFast, kTight, kTightHistory, kDense };
inline constexpr Form kForms[] = {kFast, kTight, kTightHistory, kDense};
/// Returns the codec's name, with "_history" appended for kTightHistory.
std::string NameOf(Form form);

/// One chunk's work; each operation on chunks is one of its functions.
class ChunkWork;

/// The marks of an operation on traces of AdamW: the wanted minimum; 0: none.
struct OperationTargets {
  double of_reference = 0;
  double of_pairs = 0;
  double gb_per_second = 0;
  double changes_per_second = 0;
  double of_one_thread = 0;
};

struct Operation {
  /// Works on one chunk, on one thread. Null if the operation is a whole publish.
  using ChunkFunction = Status (ChunkWork::*)(size_t argument);
  const char* name;
  ChunkFunction chunk;
  size_t argument = 0;     ///< a form, a number of deltas, or whether to check the base
  size_t deltas = 0;       ///< number of deltas that it processes; > 0: has changes per second
  bool of_form = false;    ///< the argument is a form that the engine must have
  bool applies = false;    ///< leaves the new bytes in the work buffer, so the old are restored
  const char* pairs = "";  ///< the pair list's case that it is compared with
  OperationTargets targets = {};
  const char* reference = "memcmp";  ///< the operation that its rate is compared with
};

/// Returns all operations, in the order in which they run.
std::span<const Operation> AllOperations();

class Engine {
 public:
  static StatusOr<std::unique_ptr<Engine>> Create(const Workload& w, ThreadPool& pool);

  bool CanRun(const Operation& operation) const;
  /// Returns the seconds of one run over all chunks. REQUIRES: CanRun.
  StatusOr<double> Run(const Operation& operation, ThreadPool& pool);

  /// Returns whether the engine has payloads of this form. Tight needs a backend with its kernels,
  /// its history needs past deltas, and dense needs a workload with a large changed part.
  bool has(Form form) const;
  bool has_history() const { return workload_.deltas.size() > 1; }
  /// Returns a chunk's payload from Create; empty if the chunk did not change, or if the form is no
  /// smaller than fast (dense: than raw).
  Bytes payload(Form form, uint32_t chunk) const {
    return form == kFast ? Workload::PayloadOf(*workload_.deltas.back(), chunk)
                         : Bytes(payloads_[form][chunk]);
  }
  /// Converts a chunk's fast payload to another form, given the bytes that it applies to, in this
  /// thread's memory; empty if it would be no smaller.
  Bytes Recode(uint32_t chunk, Bytes fast, Form form, Bytes old_data) const;
  /// Returns the deltas that led to the chunk's old bytes, newest first.
  std::span<const Bytes> PastOf(uint32_t chunk) const {
    return history_[chunk].First(history_[chunk].depth()).deltas;
  }
  /// Returns the bytes of all stored payloads.
  uint64_t kept() const;

  /// The work buffer. Between runs it holds the old bytes, which Restore puts back.
  MutableBytes work() { return work_.data(); }
  Status Restore(ThreadPool& pool);
  /// Returns the number of changes in the last `n` deltas together.
  uint64_t ChangesOf(size_t n) const;

 private:
  friend class ChunkWork;
  explicit Engine(const Workload& w) : workload_(w) {}
  CodedChunk Coded(uint32_t chunk, Form form, Bytes old_data) const;
  Status ForChunks(ThreadPool& pool, Operation::ChunkFunction fn, size_t argument);
  StatusOr<double> Publish(ThreadPool& pool, bool check_base);

  const Workload& workload_;
  HugeBuffer work_;
  std::vector<uint64_t> digest_old_, digest_new_;
  std::array<std::vector<std::vector<std::byte>>, std::size(kForms)> payloads_;  // not kFast
  std::vector<ChunkHistory> history_;                                            // per chunk
};

}  // namespace deltawire::bench
