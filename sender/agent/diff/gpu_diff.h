// A model's diffs on a GPU. Exists only where the options ask for a GPU and a usable one is found;
// otherwise the CPU diffs. Owner: the Model; the halves outlive it, since it pins their memory.
// Threads: Diff by one thread at a time; counts from any. Cost: see kernels/gpu.h. Pinning takes
// seconds for large halves, and copies that do not wait for it are slower. Errors: logged and
// counted; the caller diffs the chunks that are left.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/bytes.h"
#include "common/config/options.h"
#include "common/layout/chunks.h"
#include "kernels/gpu.h"

namespace deltawire::sender {

class GpuDiff {
 public:
  struct Counts {
    uint64_t publishes = 0;   ///< diffed wholly on the GPU
    uint64_t failures = 0;    ///< stopped by a CUDA error, finished by the CPU
    uint64_t mismatches = 0;  ///< stopped by a result that the CPU does not confirm; 0 or 1
    Counts& operator+=(const Counts& other) {
      publishes += other.publishes;
      failures += other.failures;
      mismatches += other.mismatches;
      return *this;
    }
  };
  /// In so many publishes, every chunk's result is compared with the CPU's once.
  static constexpr uint32_t kCheckRounds = 16;

  /// Null when `use` is kOff, or when no GPU can be used (this is logged; a GPU that fails the
  /// self-test cannot). kAuto holds the base on the device if the device has the memory. `key` and
  /// `halves` outlive the GpuDiff, which pins them on a thread of its own. `where`, if not null:
  /// gets what diffs run on, and if that is the CPU, why.
  static std::unique_ptr<GpuDiff> Create(const std::string& model, GpuUse use,
                                         const ChunkTable& chunks, const kernels::DigestKey& key,
                                         std::span<const Bytes> halves,
                                         std::string* where = nullptr);
  /// Waits until the half that is just being pinned is.
  ~GpuDiff();
  /// Waits until all halves are pinned, or could not be.
  void WaitUntilPinned();

  /// Calls GpuDiffer::Diff. False after an error: the chunks that were not handed to `encoded`
  /// remain.
  bool Diff(Bytes before, Bytes after, std::span<const uint32_t> which,
            std::span<const uint64_t> digests_before, const kernels::GpuEncoded& encoded);

  /// False once a result was wrong: the caller must not diff here any more.
  bool trusted() const { return mismatches_ == 0; }
  /// Records that a result was wrong; `what` says where.
  void Distrust(const std::string& what);
  /// Which share of the chunks to compare in this publish, 0 .. kCheckRounds - 1; advances by one.
  uint32_t NextRound() { return round_++ % kCheckRounds; }

  Counts counts() const { return {publishes_, failures_, mismatches_}; }

 private:
  GpuDiff(std::string model, std::unique_ptr<kernels::GpuDiffer> differ)
      : model_(std::move(model)), differ_(std::move(differ)) {}
  /// On the pinning thread.
  void Pin(const std::vector<Bytes>& halves);

  const std::string model_;
  std::vector<std::unique_ptr<kernels::GpuPin>> pins_;  // the pinning thread's until that has ended
  std::unique_ptr<kernels::GpuDiffer> differ_;
  std::atomic<uint64_t> publishes_{0};
  std::atomic<uint64_t> failures_{0};
  std::atomic<uint64_t> mismatches_{0};
  std::atomic<uint32_t> round_{0};
  std::atomic<bool> stopping_{false};
  std::thread pinning_;
};

}  // namespace deltawire::sender
