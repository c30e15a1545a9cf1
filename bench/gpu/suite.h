// The state of one run of the suite: a pair of versions on the host and on the device, a half on
// tmpfs that is pinned like a sender's, their digests by the scalar oracle, and the failures so
// far. All but the pair is made on first use. One thread; checks use the pool's. After a wrong
// result or a failed call the suite continues with the next case.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/delta/workload.h"
#include "bench/harness/bench.h"
#include "bench/harness/buffers.h"
#include "common/base/thread_pool.h"
#include "kernels/gpu.h"

namespace deltawire::bench {

/// The goal for diffs of bytes on the device: half of a copy's speed there.
inline constexpr double kDiffOfCopy = 0.5;
/// Goals in seconds are for a share of changed elements up to this.
inline constexpr double kWantedUpToDensity = 0.011;
/// The oracle makes one payload in this many, too.
inline constexpr size_t kByOracle = 16;

/// Returns OK, or kInternal with CUDA's message.
Status FromGpu(const kernels::GpuStatus& status);
StatusOr<double> TimedOnGpu(const std::function<kernels::GpuStatus()>& call);

/// The results that were not the oracle's, the calls that failed, and the deadline for the start of
/// a case.
class Findings {
 public:
  explicit Findings(double seconds) : seconds_(seconds) {}
  bool Late() const { return SecondsSince(start_) > seconds_; }
  void Expect(const std::string& what, bool right);
  void Failed(const std::string& what, const Status& status);
  /// Returns kDataLoss with all names, if there are any.
  Status Result() const;

 private:
  const SteadyClock::time_point start_ = SteadyClock::now();
  const double seconds_;
  std::vector<std::string> wrong_, failed_;
};

/// A plain move that a case is compared with, made in the same rounds.
enum class Beside { kNothing, kDeviceCopy, kCopyToDevice, kCopyToHost };

class GpuSuite {
 public:
  enum Version { kOld, kNew };
  struct Half {
    MutableBytes bytes;
    MutableBytes mapped;  ///< the kernels' address of it
  };

  /// Creates its files in `dir`. All arguments outlive the suite.
  GpuSuite(const Workload& pair, const std::filesystem::path& dir, ThreadPool& pool, Bench& bench,
           Findings& findings);

  const Workload& pair() const { return pair_; }
  ThreadPool& pool() const { return pool_; }
  const std::vector<kernels::GpuChunk>& chunks() const { return chunks_; }
  const std::vector<uint32_t>& all() const { return all_; }
  const std::vector<uint64_t>& digests(Version v) const { return digests_[v]; }
  Bytes host(Version v) const { return (v == kOld ? pair_.old_data : pair_.new_data).data(); }
  /// Returns the name of an operation, followed by the pair's.
  std::string NameOf(std::string_view operation) const;
  bool AnyAsked(const std::vector<std::string>& operations) const;

  StatusOr<MutableBytes> OnDevice(Version v);
  /// Returns device memory of a half's size, whose content copies may change.
  StatusOr<MutableBytes> Spare();
  StatusOr<Half> half();
  StatusOr<kernels::GpuQueue*> queue();
  Status Copy(MutableBytes to, Bytes from);

  /// Returns whether each chunk of `half` has the version's digest, by the oracle.
  bool Holds(Bytes half, Version v) const;
  /// Does kernels::Scalar().place on all threads.
  void PlaceOnCpu(const kernels::StridedCopy& copy, Bytes from, MutableBytes to) const;
  void Expect(std::string_view operation, bool right) {
    findings_.Expect(NameOf(operation), right);
  }
  void Failed(std::string_view operation, const Status& status) {
    findings_.Failed(NameOf(operation), status);
  }

  struct Measured {
    std::string operation;
    std::function<StatusOr<double>()> work;  ///< returns the seconds that count
    Beside beside = Beside::kNothing;
    uint64_t bytes = 0;          ///< 0: a half's
    double ratio_at_least = 0;   ///< wanted, against the throughput of the move beside it
    double seconds_at_most = 0;  ///< wanted
  };
  /// Measures one case, if it was requested and there is time left.
  void Measure(const Measured& measured);

 private:
  StatusOr<double> RunBeside(Beside beside, uint64_t bytes);
  std::vector<uint64_t> DigestsOf(Bytes half) const;

  const Workload& pair_;
  const std::filesystem::path dir_;
  ThreadPool& pool_;
  Bench& bench_;
  Findings& findings_;
  std::vector<kernels::GpuChunk> chunks_;
  std::vector<uint32_t> all_;
  std::vector<uint64_t> digests_[2];
  Mapping file_;
  std::unique_ptr<kernels::GpuPin> pins_[3];  // destroyed before the memory
  std::unique_ptr<kernels::GpuBuffer> device_[3];
  std::unique_ptr<kernels::GpuQueue> queue_;
};

/// Run pinning, the link, and a trainer's tensors into the pinned half.
void LinkCases(GpuSuite& suite, const std::filesystem::path& dir);
void PlaceCases(GpuSuite& suite);
void CodecCases(GpuSuite& suite);
void EngineCases(GpuSuite& suite);
/// Runs a rank's diff of its shards in the trainer's process.
void TrainerCases(GpuSuite& suite);

int RunGpuSuite(int argc, char** argv);

}  // namespace deltawire::bench
