// The state of one run of the suite: a pair of versions on the host and on the device, a half on
// tmpfs that is pinned as a sender's, the digests that the scalar oracle gives them, and what went
// wrong so far. All but the pair is made when a case first asks for it. Threads: one, which checks
// on all of the pool's. After a wrong result or a failed call the suite goes on with the next case.
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

/// OK, or kInternal with CUDA's message.
Status FromGpu(const kernels::GpuStatus& status);
StatusOr<double> TimedOnGpu(const std::function<kernels::GpuStatus()>& call);

/// Results that were not the oracle's, calls that failed, and the time after which no case starts.
class Findings {
 public:
  explicit Findings(double seconds) : seconds_(seconds) {}
  bool Late() const { return SecondsSince(start_) > seconds_; }
  void Expect(const std::string& what, bool right);
  void Failed(const std::string& what, const Status& status);
  /// kDataLoss with all names, if there are any.
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
    MutableBytes mapped;  ///< the kernels' way to it
  };

  /// Files go into `dir`. All outlive the suite.
  GpuSuite(const Workload& pair, const std::filesystem::path& dir, ThreadPool& pool, Bench& bench,
           Findings& findings);

  const Workload& pair() const { return pair_; }
  ThreadPool& pool() const { return pool_; }
  const std::vector<kernels::GpuChunk>& chunks() const { return chunks_; }
  const std::vector<uint32_t>& all() const { return all_; }
  const std::vector<uint64_t>& digests(Version v) const { return digests_[v]; }
  Bytes host(Version v) const { return (v == kOld ? pair_.old_data : pair_.new_data).data(); }
  /// The pair's name behind an operation's.
  std::string NameOf(std::string_view operation) const;
  bool AnyAsked(const std::vector<std::string>& operations) const;

  StatusOr<MutableBytes> OnDevice(Version v);
  /// Device memory of a half's size, of which a copy changes the content.
  StatusOr<MutableBytes> Spare();
  StatusOr<Half> half();
  StatusOr<kernels::GpuQueue*> queue();
  /// Queues a copy and waits for it.
  Status Copy(MutableBytes to, Bytes from);

  /// Whether each chunk of `half` has the version's digest, by the oracle.
  bool Holds(Bytes half, Version v) const;
  /// As kernels::Scalar().place, on all threads.
  void PlaceOnCpu(const kernels::StridedCopy& copy, Bytes from, MutableBytes to) const;
  void Expect(std::string_view operation, bool right) {
    findings_.Expect(NameOf(operation), right);
  }
  void Failed(std::string_view operation, const Status& status) {
    findings_.Failed(NameOf(operation), status);
  }

  struct Measured {
    std::string operation;
    std::function<StatusOr<double>()> work;  ///< returns seconds; only these count
    Beside beside = Beside::kNothing;
    uint64_t bytes = 0;          ///< 0: a half's
    double ratio_at_least = 0;   ///< wanted, of the throughput of what runs beside it
    double seconds_at_most = 0;  ///< wanted
  };
  /// Measures one case, unless it was not asked for or no time is left.
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

/// Pinning, the link, and what a trainer's tensors take into the pinned half.
void LinkCases(GpuSuite& suite, const std::filesystem::path& dir);
void PlaceCases(GpuSuite& suite);
/// diff + encode, decode + apply and digest.
void CodecCases(GpuSuite& suite);
/// An update of an engine's parameters.
void EngineCases(GpuSuite& suite);

/// The whole program.
int RunGpuSuite(int argc, char** argv);

}  // namespace deltawire::bench
